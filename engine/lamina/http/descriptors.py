"""How many connections a server can have: the system gives a process so many descriptors and no more."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

# Connections that are told that there are too many, for the moment that they have to read it.
MOST_TURNED_AWAY = 256
# For everything else that is opened: weights, tokenizers, workers that take the place of lost ones.
KEPT = 256


class Room(NamedTuple):
    connections: int
    turned_away: int  # beside them


def room(wanted: int) -> Room:
    """For as many connections as are wanted, or can be; the process may have as many from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = sum(1 for _ in Path("/proc/self/fd").iterdir())
    need = there + wanted + MOST_TURNED_AWAY + KEPT
    if hard != resource.RLIM_INFINITY:
        need = min(need, hard)
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    spare = need - there
    turned_away, kept = min(MOST_TURNED_AWAY, spare // 4), min(KEPT, spare // 4)
    return Room(max(1, min(wanted, spare - turned_away - kept)), turned_away)
