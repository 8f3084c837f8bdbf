"""How a message lies in what torch.distributed sends: a header, then the parts, each from a multiple of 64.

The header is that of a slot in csrc/fhbn/wire.hpp. Parts that fit into the frame follow it at once, so that a
small message is one send; others are a second one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lamina.fhbn.channel import MOST_PARTS
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.errors import ChannelCorruptedError

HEADER = struct.Struct(f"<QII{MOST_PARTS}Q")
# A second send costs gloo more than copying this much does, on both sides.
MOST_INLINE = 64 << 10
_ALIGNMENT = 64
_SEQNOS = 1 << 64
_THE_END = 0xFFFFFFFF


@dataclass(frozen=True)
class Spans:
    """Where the parts of a message lie, counted from the first one; `total` is what they take."""

    parts: tuple[tuple[int, int], ...]
    total: int

    @staticmethod
    def of(sizes: Sequence[int]) -> Spans:
        """Of parts of these sizes."""
        parts, at = [], 0
        for size in sizes:
            parts.append((at, at + size))
            at += rounded_up(size)
        return Spans(tuple(parts), at)


class Framing:
    """Makes and checks the headers of one channel."""

    def __init__(self, spec: ChannelSpec, peer: str, most_inline: int = MOST_INLINE) -> None:
        self.peer = peer
        self.most = spec.message_bytes
        # Each part begins at a multiple of 64. However the bytes are divided, they need no more than this.
        self.room = rounded_up(self.most) + (MOST_PARTS - 1) * _ALIGNMENT
        self.inline = min(self.room, most_inline)
        self.frame_bytes = HEADER.size + self.inline
        self._epoch = spec.epoch

    def spans(self, sizes: Sequence[int]) -> Spans:
        """Where parts of these sizes go; ValueError if no message can have them."""
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
        """Whether that is what was received."""
        return HEADER.unpack_from(frame)[:3] == (seqno, self._epoch, _THE_END)

    def checked(self, frame: memoryview, seqno: int) -> Spans:
        """Where the parts are that a received header tells of. Nothing in it is believed unchecked."""
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
    """To where the next part begins."""
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def after(seqno: int) -> int:
    """The number of the next message; they have 64 bits."""
    return (seqno + 1) % _SEQNOS


def distance(first: int, last: int) -> int:
    """How many messages lie between two numbers."""
    return (last - first) % _SEQNOS
