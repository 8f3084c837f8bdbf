"""Receiving KV from prefill workers, between an attention worker's QKV messages.

They compute a prompt chunk by chunk and layer by layer and send it in pieces, each of which begins with its
place. A piece is looked for only when no QKV message is there to be served; a prefill worker whose pieces are
not taken waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.attention.cpu import TensorWorker
from lamina.attention.cuda import CudaAttentionWorker
from lamina.fhbn import ChannelCorruptedError
from lamina.fhbn.channel import Message, Receiver
from lamina.fhbn.control import Deadline
from lamina.fhbn.device import DeviceReceiver
from lamina.fhbn.tensors import DeviceMessage
from lamina.kv import Arena
from lamina.kv.copy import KvCopy
from lamina.pipeline.kv_slots import Arrival

# K and V of a piece, together: as long as it takes to store them, a QKV message has to wait. On a core of an
# AMD EPYC (Zen 5) with llama-mini's heads in bfloat16, that is 20 us where a prompt's slots follow one
# another and 56 us (1 in 100: 123 us) where they are strewn over the arena; of a fourth of this 10 and 21 us,
# of twice as much 31 and 101 us. Seven of these are Python's, so that smaller pieces store less a second.
PIECE_BYTES = 128 << 10
# Pieces that a prefill worker may be ahead: two layers of a chunk of llama-mini's.
PIECE_SLOTS = 8
# How long an attention worker with nothing to do sleeps before it looks for pieces again. A QKV message wakes
# it, a piece does not. Less than what channels look for before they sleep would keep the core busy.
NAP_S = 1e-3
CALLED_OFF = -1  # in the place of a layer: no more will come of this name


class PieceHeader(NamedTuple):
    """The header of a piece; K and V of consecutive tokens are its other parts."""

    name: int
    layer: int
    first: int  # token, counted from the prompt's first

    def to_wire(self) -> NDArray[np.int64]:
        return np.array(self, np.int64)

    @staticmethod
    def from_wire(message: Message) -> PieceHeader:
        return PieceHeader(*np.frombuffer(message[0], np.int64).tolist())


def piece_tokens(token_bytes: int) -> int:
    """Return the most tokens a piece has; `token_bytes` is K and V of one token in one layer."""
    return max(1, PIECE_BYTES // token_bytes)


def piece_bytes(token_bytes: int) -> int:
    """Return the largest size of a message with a piece."""
    return PieceHeader(0, 0, 0).to_wire().nbytes + piece_tokens(token_bytes) * token_bytes


@dataclass
class _Incoming:
    """A sequence whose KV has not come, or not all of it."""

    arrival: Arrival
    left: int  # tokens of layers
    needed: bool = True  # else it comes because it was sent already


class KvPull:
    """The attention worker's ends of the channels from prefill workers, and whose KV comes on them."""

    def __init__(
        self,
        store: TensorWorker | CudaAttentionWorker,
        arena: Arena,
        have: Callable[[int], None],
        look: Callable[[], None],
    ) -> None:
        """`store` has all layers and heads of the `arena`. `have` is called with a name whose KV is here,
        whole; `look` takes what has come from the front end.
        """
        self._store, self._arena, self._have, self._look = store, arena, have, look
        self._spaces = [arena.space_of(layer) for layer in range(arena.shape.layers)]
        self._receivers: list[Receiver] = []  # the one that was served last comes last
        # Pieces of names that are not expected yet: a prefill worker may get its order, and send, before this
        # worker gets the plan that announces the name.
        self._early: dict[Receiver, Message] = {}
        self._coming: dict[int, _Incoming] = {}
        self.copy: KvCopy | None = None  # is brought up to date meanwhile

    def add(self, receiver: Receiver) -> None:
        self._receivers.append(receiver)

    def part(self) -> None:
        """Close all channels: nothing comes any more of what was expected."""
        for message in self._early.values():
            message.release()
        for receiver in self._receivers:
            receiver.close()
        self._early.clear()
        self._receivers.clear()
        self._coming.clear()

    def expect(self, arrival: Arrival) -> None:
        """Expect the KV of a sequence that has its slots."""
        left = sum(len(arrival.slots[space]) for space in self._spaces)
        self._coming[arrival.name] = _Incoming(arrival, left)

    def forget(self, names: Iterable[int]) -> None:
        """Forget sequences whose slots were released; what has been sent of them is dropped when it comes."""
        if self._coming:
            for name in names:
                if name in self._coming:
                    self._coming[name].needed = False

    def recv(self, receiver: Receiver | DeviceReceiver, timeout_s: float) -> Message | DeviceMessage:
        """Receive the next message of a model worker's channel; until it comes, pull pieces of prompts."""
        if not (self._coming or self.copy):
            return receiver.recv(timeout_s)
        deadline = Deadline(timeout_s)
        self.until(lambda wait_s: receiver.ready(wait_s) or not deadline.left_s)
        return receiver.recv(deadline.left_s)

    def until(self, there: Callable[[float], bool]) -> None:
        """Pull until something is there or nothing is to come; `there` looks, or waits so long for it."""
        while (self._coming or self.copy) and not there(0.0):
            if self.pull() or (self.copy and self.copy.catch_up()):
                continue
            if not self._coming:
                return
            self._look()
            there(NAP_S)

    def pull(self) -> bool:
        """Take one piece, if one is there; whether there was one."""
        for at, receiver in enumerate(self._receivers):
            message = self._early.pop(receiver, None)
            if message is None:
                if not receiver.ready():
                    continue
                message = receiver.recv()
            head = PieceHeader.from_wire(message)
            if head.name not in self._coming:
                self._early[receiver] = message
                continue
            with message:
                self._take(head, message, receiver)
            self._receivers.append(self._receivers.pop(at))
            return True
        return False

    def _take(self, head: PieceHeader, message: Message, receiver: Receiver) -> None:
        coming = self._coming[head.name]
        if head.layer == CALLED_OFF:
            del self._coming[head.name]
            return
        kv = [self._read(message, part) for part in ((1,) if self._store.latent else (1, 2))]
        tokens = len(kv[0])
        known = 0 <= head.layer < len(self._spaces)
        space = self._spaces[head.layer] if known else 0
        slots = coming.arrival.within(space, head.first, head.first + tokens)
        if not (known and len(slots) == tokens == len(kv[-1])):
            raise ChannelCorruptedError(f"{receiver.peer} has sent KV that a sequence has no place for")
        if coming.needed:
            self._store.append(head.layer, self._arena.spaces[space].physical(slots), *kv)
        coming.left -= tokens
        if coming.left > 0:
            return
        del self._coming[head.name]
        if coming.needed:
            self._have(head.name)

    def _read(self, message: Message, part: int) -> torch.Tensor:
        store = self._store
        rows = torch.frombuffer(message[part], dtype=store.dtype)
        return rows.view(-1, store.kv_heads, store.head_dim).to(store.device)
