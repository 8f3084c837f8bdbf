"""What both ends of a channel know of it before they open it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from lamina.fhbn.control import WireMessage, field, sound_name
from lamina.fhbn.deadline import seconds
from lamina.fhbn.errors import HandshakeError

MOST_SLOTS = 1 << 16
_SHARED: dict[str, type] = {"name": str, "message_bytes": int, "slots": int, "epoch": int, "first_seqno": int}


@dataclass(frozen=True)
class ChannelSpec:
    """The receiver's offer, and how long this end waits."""

    name: str
    message_bytes: int
    slots: int
    epoch: int  # drawn anew for every opening: tells what was meant for another opening
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
        """A receiver's, for one opening."""
        epoch = secrets.randbits(32)
        return ChannelSpec(name, message_bytes, power_of_two(slots), epoch, first_seqno, timeout_s, spin_s)

    @staticmethod
    def from_wire(message: WireMessage, peer: str, timeout_s: float, spin_s: float) -> ChannelSpec:
        """As the receiver has sent it, checked."""
        values: WireMessage = {key: field(message, key, kind, peer) for key, kind in _SHARED.items()}
        try:
            return ChannelSpec(**values, timeout_s=timeout_s, spin_s=spin_s)
        except ValueError as error:
            raise HandshakeError(
                "channel-message", f"{peer} offers a channel that cannot be: {error}"
            ) from error

    def to_wire(self) -> WireMessage:
        """As the sender gets it."""
        return {key: getattr(self, key) for key in _SHARED}


def power_of_two(slots: int) -> int:
    """At least as many: slots are chosen by the low bits of a seqno."""
    if not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"{slots:,} slots: give 1 to {MOST_SLOTS:,}")
    return 1 << (slots - 1).bit_length()
