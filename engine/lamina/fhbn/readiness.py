"""Waiting for a descriptor of any number, never without a deadline. (select() ends at number 1,024.)"""

from __future__ import annotations

import math
import select
from typing import Protocol, TypeAlias

# What the kernel counts in milliseconds, in 31 bits.
LONGEST_WAIT_S = 2e6


class _Open(Protocol):
    def fileno(self) -> int: ...


File: TypeAlias = int | _Open


def readable(file: File, timeout_s: float) -> bool:
    """Return whether there is something to read, an end among it, within this time."""
    return _ready(file, select.POLLIN, timeout_s)


def writable(file: File, timeout_s: float) -> bool:
    """Return whether data can be written, or the peer is lost, within this time."""
    return _ready(file, select.POLLOUT, timeout_s)


def _ready(file: File, what: int, timeout_s: float) -> bool:
    waiting = select.poll()
    waiting.register(file, what)
    return bool(waiting.poll(math.ceil(min(timeout_s, LONGEST_WAIT_S) * 1000)))
