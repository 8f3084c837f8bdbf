"""The receiving end of a channel over gloo, and its messages."""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelError
from lamina.fhbn.frame import HEADER, Spans, after, distance
from lamina.fhbn.gloo_end import FRAMES, PAYLOADS, GlooEnd
from lamina.fhbn.torch_distributed import RECEIVER, HeldMessage

Bytes = NDArray[np.uint8]
_SEQNO = np.dtype("<u8")  # what a frame's header begins with
_NOT = (1 << 64) - 1  # the seqno with all its bits turned: no byte of it is left as it was
_LOOK_EVERY_S = 50e-6


class GlooReceiver(GlooEnd):
    """Has every free slot open for gloo to write to, in order.

    A slot is opened again when its message and all before it were released, so that nothing that is held is
    overwritten, and the sender waits as it does for slots in shared memory. A `recv` that timed out has
    broken the channel.
    """

    def __init__(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> None:
        super().__init__(control, spec, deadline, RECEIVER)
        self._mask = spec.slots - 1
        self._next = self._consumed = spec.first_seqno
        self._frames = _Open(spec.slots, self._framing.frame_bytes, FRAMES, spec.first_seqno)
        large = self._framing.room > self._framing.inline
        self._payloads = _Open(spec.slots if large else 0, self._framing.room, PAYLOADS, 0)
        for buffers in (self._frames, self._payloads):
            for _ in buffers.works:
                buffers.open_next(self)
        self._large = 0  # messages with a payload
        self._has_payload = [False] * spec.slots
        self._given_back = [False] * spec.slots
        self._giving_back = False
        # Of messages that are held: to know when one is gone. A __del__ would also run for those that were
        # released, in the middle of the loop that uses them, and what a signal raises in there is lost.
        self._held: list[weakref.ref[GlooMessage] | None] = [None] * spec.slots

    @property
    def next_seqno(self) -> int:
        """Of the next message to receive."""
        return self._next

    @property
    def consumed(self) -> int:
        """The first message that was not released."""
        return self._consumed

    def recv(self, timeout_s: float | None = None) -> GlooMessage:
        """Wait for the next message. It lies in its slot until it is released."""
        self._require_open()
        if distance(self._consumed, self._next) > self._mask:
            raise ChannelError(
                f"all {self._mask + 1} slots of the channel from {self.peer} hold messages that were "
                "not released"
            )
        deadline = self._deadline(timeout_s)
        late = f"nothing came from {self.peer} in time"
        self._begin()
        frame = self._frames.taken(self, self._next, deadline, late)
        spans = self._checked(frame.data, self._next)
        slot = self._next & self._mask
        self._has_payload[slot] = spans.total > self._framing.inline
        if self._has_payload[slot]:
            body = self._payloads.taken(self, self._large, deadline, late)
            self._large += 1
        else:
            body = frame[HEADER.size :]
        message = GlooMessage(self, self._next, body, spans)
        seqno = self._next
        self._held[slot] = weakref.ref(message, lambda _: self._give_back(seqno))
        self._next = after(self._next)
        self._finish()
        return message

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Whether the next message has begun to arrive, now or in this time.

        gloo knows of a wait that ends with a message or with the channel, and of no question: so it is looked
        at what lies where gloo writes.
        """
        deadline = Deadline(timeout_s)
        while not self._begun:
            if deadline.left_s == 0:
                return False
            time.sleep(min(deadline.left_s, _LOOK_EVERY_S))
        return True

    @property
    def _begun(self) -> bool:
        # Where all slots are held, the next one's has a message that was received already.
        return distance(self._consumed, self._next) <= self._mask and self._frames.touched(self._next)

    def _give_back(self, seqno: int) -> None:
        self._held[seqno & self._mask] = None
        self._given_back[seqno & self._mask] = True
        if self._giving_back or self._group is None:
            return
        # Another message may end while this one's slot is opened, wherever memory is collected.
        self._giving_back = True
        try:
            while self._given_back[slot := self._consumed & self._mask]:
                self._given_back[slot] = False
                if self._has_payload[slot]:
                    self._payloads.open_next(self)
                self._frames.open_next(self)
                self._consumed = after(self._consumed)
        finally:
            self._giving_back = False

    def _forget(self) -> None:
        super()._forget()
        self._frames.works.clear()
        self._payloads.works.clear()


class _Open:
    """Buffers that gloo writes to in turn; number n is buffer n modulo their count, a power of two."""

    def __init__(self, count: int, size: int, tag: int, first: int) -> None:
        self._tag = tag
        self._mask = count - 1
        # Not touched before something is written there: large slots that are never used cost nothing.
        self._tensors = [torch.empty(size, dtype=torch.uint8) for _ in range(count)]
        self._arrays: list[Bytes] = [tensor.numpy() for tensor in self._tensors]
        self._seqnos = [array[: _SEQNO.itemsize].view(_SEQNO) for array in self._arrays]
        self.works: list[Any] = [None] * count
        self._last = first

    def open_next(self, end: GlooReceiver) -> None:
        at = self._last & self._mask
        # Of a group that was lost: recv() tells, when it comes to this buffer.
        self.works[at] = None
        self._untouched(at)
        with contextlib.suppress(RuntimeError):
            self.works[at] = end._expect(self._tensors[at], self._tag)
        self._last = after(self._last)

    def _untouched(self, at: int) -> None:
        """Put what no message begins with where one will begin."""
        if self._tag == FRAMES:
            self._seqnos[at][:] = self._last ^ _NOT

    def touched(self, number: int) -> bool:
        """Whether something of frame `number` has been written."""
        return int(self._seqnos[number & self._mask][0]) != number ^ _NOT

    def taken(self, end: GlooReceiver, number: int, deadline: Deadline, late: str) -> Bytes:
        at = number & self._mask
        work = self.works[at]
        if work is None:
            raise end._lost(deadline, late)
        end._wait(work, deadline, late)
        return self._arrays[at]


class _Part(np.ndarray[Any, Any]):
    """What a memoryview of a part is over; it keeps the message."""

    message: GlooMessage


class GlooMessage(HeldMessage):
    """A received message: memoryviews of its parts, where they arrived."""

    __slots__ = ("_body", "_spans")

    def __init__(self, receiver: GlooReceiver, seqno: int, body: Bytes, spans: Spans) -> None:
        super().__init__(receiver._give_back, seqno)
        self._body = body
        self._spans = spans.parts

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> memoryview:
        if not -len(self._spans) <= index < len(self._spans):
            raise IndexError("a message has no such part")
        start, end = self._spans[index]
        part = self._body[start:end].view(_Part)
        part.message = self
        return part.data
