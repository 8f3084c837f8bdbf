"""The memory of this machine."""

from __future__ import annotations

import os


def memory_per_core() -> float:
    """Return the machine's memory in bytes divided by its cores."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (os.cpu_count() or 1)
