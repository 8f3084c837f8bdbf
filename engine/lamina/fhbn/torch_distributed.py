"""The shared base of engines over torch.distributed: how two processes meet, the ends' state, messages.

A group of two is made for every channel. torch's global group is neither used nor changed.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from lamina.fhbn.channel import MOST_PARTS, ChannelSpec
from lamina.fhbn.control import Control, Deadline, Place, field
from lamina.fhbn.errors import (
    ChannelClosedError,
    ChannelCorruptedError,
    ChannelError,
    ChannelTimeoutError,
    HandshakeError,
)

# The header is that of a slot in csrc/fhbn/wire.hpp. Parts that fit into the frame follow it at once, each
# from a multiple of 64, so that a small message is one send; others are a second one.
HEADER = struct.Struct(f"<QII{MOST_PARTS}Q")
# A second send costs gloo more than copying this much does, on both sides.
MOST_INLINE = 64 << 10
_ALIGNMENT = 64
_SEQNOS = 1 << 64
_THE_END = 0xFFFFFFFF


@dataclass(frozen=True)
class Spans:
    """The offsets of a message's parts from its first one; `total` is their size."""

    parts: tuple[tuple[int, int], ...]
    total: int

    @staticmethod
    def of(sizes: Sequence[int]) -> Spans:
        """Return the spans of parts of these sizes."""
        parts, at = [], 0
        for size in sizes:
            parts.append((at, at + size))
            at += rounded_up(size)
        return Spans(tuple(parts), at)


class Framing:
    """Headers of one channel, made and checked of one channel."""

    def __init__(self, spec: ChannelSpec, peer: str, most_inline: int = MOST_INLINE) -> None:
        self.peer = peer
        self.most = spec.message_bytes
        # Each part begins at a multiple of 64. However the bytes are divided, they need no more than this.
        self.room = rounded_up(self.most) + (MOST_PARTS - 1) * _ALIGNMENT
        self.inline = min(self.room, most_inline)
        self.frame_bytes = HEADER.size + self.inline
        self._epoch = spec.epoch

    def spans(self, sizes: Sequence[int]) -> Spans:
        """Return the spans of parts of these sizes; raise ValueError if no message can have them."""
        if len(sizes) > MOST_PARTS:
            raise ValueError(f"a message has up to {MOST_PARTS} parts, not {len(sizes)}")
        spans = Spans.of(sizes)
        if sum(sizes) > self.most:
            raise ValueError(
                f"the parts have {sum(sizes)} bytes together and a message to {self.peer} holds {self.most}: "
                "open the channel with larger messages"
            )
        return spans

    def write(self, frame: memoryview, seqno: int, sizes: Sequence[int]) -> None:
        """Put a message's header into its frame."""
        unused = (0,) * (MOST_PARTS - len(sizes))
        HEADER.pack_into(frame, 0, seqno, self._epoch, len(sizes), *sizes, *unused)

    def write_end(self, frame: memoryview, seqno: int) -> None:
        """Put in the place of a header that no message follows, for an engine that has no other way."""
        HEADER.pack_into(frame, 0, seqno, self._epoch, _THE_END, *(0,) * MOST_PARTS)

    def is_end(self, frame: memoryview, seqno: int) -> bool:
        """Return whether the received header is the end."""
        return HEADER.unpack_from(frame)[:3] == (seqno, self._epoch, _THE_END)

    def checked(self, frame: memoryview, seqno: int) -> Spans:
        """Return the spans of a received header's parts. Nothing in it is believed unchecked."""
        number, epoch, count, *sizes = HEADER.unpack_from(frame)
        if number != seqno:
            raise ChannelCorruptedError(f"{self.peer} has put another message where the next one belongs")
        if epoch != self._epoch:
            raise ChannelCorruptedError(f"{self.peer} has sent a message of another epoch")
        if count > MOST_PARTS:
            raise ChannelCorruptedError(f"{self.peer} has sent a message of impossibly many parts")
        if sum(sizes[:count]) > self.most:
            raise ChannelCorruptedError(f"{self.peer} has sent a message larger than the channel's messages")
        return Spans.of(sizes[:count])


def rounded_up(size: int) -> int:
    """Return the size rounded up to the alignment of parts."""
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def after(seqno: int) -> int:
    """Return the number of the next message; they have 64 bits."""
    return (seqno + 1) % _SEQNOS


def distance(first: int, last: int) -> int:
    """Return how many messages lie between two numbers."""
    return (last - first) % _SEQNOS


SENDER, RECEIVER = 0, 1  # ranks

Group = TypeVar("Group")
# Not an exception: its traceback would hold this end, and its connection open.
Ending = tuple[type[ChannelError], str]


class ControlStore(Store):
    """The key-value store by which torch's groups meet, over the authenticated connection: no port is opened.

    What one side sets is sent to the other, which reads it when it asks for it.
    """

    def __init__(self, control: Control, deadline: Deadline) -> None:
        super().__init__()
        self._control = control
        self._deadline = deadline
        self._values: dict[str, bytes] = {}
        # torch puts its own in the place of what is raised in here.
        self.error: BaseException | None = None

    def set(self, key: str, value: bytes | str) -> None:
        """Publish a value to both sides."""
        value = value.encode() if isinstance(value, str) else bytes(value)
        self._values[key] = value
        self._noting(lambda: self._control.send_message({"key": key, "value": value}, self._deadline))

    def get(self, key: str) -> bytes:
        """Wait until it was set."""
        self._noting(lambda: self._wait_for(key))
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:  # noqa: ARG002
        """Wait until the keys are set; the deadline is that of the opening."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether the keys are set."""
        return all(key in self._values for key in keys)

    def _wait_for(self, key: str) -> None:
        while key not in self._values:
            message = self._control.receive_message(self._deadline)
            name = field(message, "key", str, self._control.peer)
            self._values[name] = field(message, "value", bytes, self._control.peer)

    def _noting(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            self.error = error
            raise


def met(
    control: Control, deadline: Deadline, make: Callable[[ControlStore], Group]
) -> tuple[Group, ControlStore]:
    """Return the group that `make` gives, while the other process does the same. The store must live as
    long.
    """
    store = ControlStore(control, deadline)
    try:
        return make(store), store
    except (RuntimeError, ValueError) as error:
        if store.error is not None:
            raise store.error from error
        if deadline.left_s == 0:
            raise ChannelTimeoutError(f"{control.peer} did not come to the channel in time") from error
        raise HandshakeError(
            "channel-connect", f"torch cannot connect to {control.peer}: {first_line(error)}"
        ) from error


def own_host(control: Control, deadline: Deadline) -> str:
    """Return the address to listen on: local only, or the address at which the peer has already reached
    us.
    """
    here = Place.here().machine
    control.send_message({"machine": here}, deadline)
    if field(control.receive_message(deadline), "machine", str, control.peer) == here:
        return "127.0.0.1"
    return control.own_host


def patience(timeout_s: float) -> datetime.timedelta:
    """Return the timeout for torch: whole milliseconds, rounded up, as zero would mean for ever."""
    return datetime.timedelta(milliseconds=max(1, math.ceil(min(timeout_s, 1e6) * 1e3)))


def first_line(error: BaseException) -> str:
    """Return torch's message without its stack."""
    return str(error).strip().split("\n", 1)[0][:200]


def flat_bytes(tensor: Any) -> Any:
    """Return a contiguous tensor as one of bytes, in the same memory."""
    if not tensor.is_contiguous():
        raise ValueError("a tensor to send must be contiguous")
    return tensor.detach().reshape(-1).view(torch.uint8)


class GroupEnd:
    """The state of a channel. What began and did not end leaves it broken, as these libraries are then."""

    engine: str
    _group: Any = None  # until it is made, and when it is closed

    def __init__(
        self, control: Control, spec: ChannelSpec, rank: int, framing: Callable[..., Framing]
    ) -> None:
        self.peer = f"{control.peer} (channel {spec.name})"
        self._other = 1 - rank
        self._direction = "from" if rank == RECEIVER else "to"
        self._timeout_s = spec.timeout_s
        self._framing = framing(spec, self.peer)
        self._ended: Ending | None = None  # what later calls raise too

    def _require_open(self) -> None:
        if self._group is None:
            raise ChannelClosedError(f"the channel {self._direction} {self.peer} was closed at this end")
        if self._ended is not None:
            kind, sentence = self._ended
            raise kind(sentence)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _begin(self) -> None:
        """Mark the end as in use: until _finish(), a signal leaves unknown how much was done."""
        self._ended = self._broken("an interruption")

    def _finish(self) -> None:
        self._ended = None

    def _broken(self, by: str) -> Ending:
        sentence = (
            f"the channel {self._direction} {self.peer} did not survive {by}: over {self.engine}, none does"
        )
        return ChannelError, sentence

    def _end_with(self, kind: type[ChannelError], sentence: str) -> ChannelError:
        """Return this error, which later calls raise too."""
        self._ended = kind, sentence
        return kind(sentence)

    def _checked(self, header: memoryview, seqno: int) -> Spans:
        try:
            return self._framing.checked(header, seqno)
        except ChannelCorruptedError as error:
            raise self._end_with(ChannelCorruptedError, str(error)) from error


class RetainedMessage:
    """A message that holds its slot until it is released."""

    __slots__ = ("__weakref__", "_give_back", "_released", "seqno")

    def __init__(self, give_back: Callable[[int], None], seqno: int) -> None:
        self._give_back = give_back
        self._released = False
        self.seqno = seqno

    def release(self) -> None:
        """Give the slot back."""
        if not self._released:
            self._released = True
            self._give_back(self.seqno)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
