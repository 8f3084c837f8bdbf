"""Where a process is, as far as the choice of an engine goes."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lamina.fhbn.control import field


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
    def of(message: dict[str, Any], peer: str) -> Place:
        """As the peer has said it."""
        said = field(message, "place", dict, peer)
        return Place(field(said, "machine", str, peer), field(said, "user", int, peer))

    def said(self) -> dict[str, Any]:
        """For a message."""
        return asdict(self)
