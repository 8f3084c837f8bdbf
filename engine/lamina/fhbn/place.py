"""Where a process is, as far as the choice of an engine goes."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from lamina.fhbn.control import WireMessage, field


@dataclass(frozen=True)
class Place:
    """Two processes whose `machine` is the same can hand each other memory, if they are the same `user`."""

    machine: str
    user: int

    @staticmethod
    def here() -> Place:
        """Of this process: the running kernel, and the network namespace with its local sockets."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        network = Path("/proc/self/ns/net").readlink()
        return Place(f"{boot} {network}", os.getuid())

    @staticmethod
    def from_wire(message: WireMessage, peer: str) -> Place:
        """As the peer has sent it."""
        place = field(message, "place", dict, peer)
        return Place(field(place, "machine", str, peer), field(place, "user", int, peer))

    def to_wire(self) -> WireMessage:
        """As the peer gets it."""
        return asdict(self)
