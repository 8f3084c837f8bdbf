"""The ends of channels and their messages, as protocols that every engine fulfils; what both know."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from lamina._native import _MOST_PARTS
from lamina.fhbn.control import WireMessage, field, seconds, sound_name
from lamina.fhbn.errors import HandshakeError


class Message(Protocol):
    """A received message: its parts, where they arrived.

    Its slot goes back to the sender by release(), by leaving `with`, or when the message and all views of it
    are deleted. After release() the views still exist, but the sender may write there.
    """

    @property
    def seqno(self) -> int:
        """Its number, one more than that of the message before."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> memoryview: ...
    def release(self) -> None:
        """Give the slot back."""

    def __enter__(self) -> Message: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class End(Protocol):
    """The part that both ends of a channel share."""

    @property
    def engine(self) -> str:
        """The engine that moves the messages."""

    @property
    def peer(self) -> str:
        """The other end, as errors call it."""

    @property
    def next_seqno(self) -> int:
        """The number of the next message to send or to receive."""

    @property
    def consumed(self) -> int:
        """The first message that the receiver has not released: all before it are done with."""

    def close(self) -> None:
        """Announce that there will be nothing more. What was sent can still be received."""


class Sender(End, Protocol):
    """The sending end of a channel. For one thread at a time."""

    def send(self, *buffers: object, timeout_s: float | None = None) -> None:
        """Send the bytes of contiguous arrays, tensors and buffers as the parts of one message.

        Waits while the receiver has no free slot. What raises has sent nothing.
        """


class Receiver(End, Protocol):
    """The receiving end of a channel. For one thread at a time."""

    def recv(self, timeout_s: float | None = None) -> Message:
        """Wait for the next message."""

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Return whether a message is there, or arrives in this time. Without waiting it costs next to
        nothing.

        Return False if the peer has died; shared memory raises on waiting, gloo only in `recv`.
        """


# What a message can have at most, over every engine.
MOST_PARTS = _MOST_PARTS


MOST_SLOTS = 1 << 16
_SHARED: dict[str, type] = {"name": str, "message_bytes": int, "slots": int, "epoch": int, "first_seqno": int}


@dataclass(frozen=True)
class ChannelSpec:
    """The receiver's offer, and how long this end waits."""

    name: str
    message_bytes: int
    slots: int
    epoch: int  # drawn anew for every opening: identifies what was meant for another one
    first_seqno: int
    timeout_s: float
    spin_s: float

    def __post_init__(self) -> None:
        sound_name(self.name, "a channel")
        for time_s in (self.timeout_s, self.spin_s):
            seconds(time_s)
        if self.message_bytes < 1:
            raise ValueError(f"messages of {self.message_bytes} bytes: give 1 or more")
        if power_of_two(self.slots) != self.slots:
            raise ValueError(f"{self.slots:,} slots: their number is a power of two")
        if not 0 <= self.first_seqno < 1 << 64 or not 0 <= self.epoch < 1 << 32:
            raise ValueError(f"seqno {self.first_seqno}, epoch {self.epoch}: they have 64 and 32 bits")

    @staticmethod
    def new(
        name: str, message_bytes: int, slots: int, first_seqno: int, timeout_s: float, spin_s: float
    ) -> ChannelSpec:
        """Return a receiver's end, for one opening."""
        epoch = secrets.randbits(32)
        return ChannelSpec(name, message_bytes, power_of_two(slots), epoch, first_seqno, timeout_s, spin_s)

    @staticmethod
    def from_wire(message: WireMessage, peer: str, timeout_s: float, spin_s: float) -> ChannelSpec:
        """Parse and check the spec that the receiver has sent."""
        values: WireMessage = {key: field(message, key, kind, peer) for key, kind in _SHARED.items()}
        try:
            return ChannelSpec(**values, timeout_s=timeout_s, spin_s=spin_s)
        except ValueError as error:
            raise HandshakeError(
                "channel-message", f"{peer} offers a channel that cannot be: {error}"
            ) from error

    def to_wire(self) -> WireMessage:
        """Return the spec as sent to the sender."""
        return {key: getattr(self, key) for key in _SHARED}


def power_of_two(slots: int) -> int:
    """Return the next power of two: slots are chosen by the low bits of a seqno."""
    if not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"{slots:,} slots: give 1 to {MOST_SLOTS:,}")
    return 1 << (slots - 1).bit_length()
