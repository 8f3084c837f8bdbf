"""This machine: a core's share of its memory."""

from __future__ import annotations

import os


def memory_per_core() -> float:
    """Bytes of the machine's memory, a core's share."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (os.cpu_count() or 1)
