"""How much of the host's memory this process may still take."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """What the kernel and the container leave."""
    return min(_available(), _left_in_container())


def _available() -> int:
    # Unlike the free pages, this counts what the page cache would give back.
    try:
        for line in MEMINFO.read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "MemAvailable":
                return int(amount.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_in_container() -> int:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = (CGROUP / "memory.current").read_text()
        return max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return 2**63  # no limit that we can see
