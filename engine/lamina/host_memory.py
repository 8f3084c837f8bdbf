"""The memory of the host that this process may still use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")


def free_bytes() -> int:
    """Return the bytes that the kernel and the container leave."""
    return min(_available(), _left_in_container())


def killed() -> int:
    """Return how many processes the kernel has reported killed for lack of memory."""
    count = 0
    for file in (VMSTAT, CGROUP / "memory.events"):
        with contextlib.suppress(OSError, ValueError):
            fields = dict(line.split() for line in file.read_text().splitlines())
            count += int(fields.get("oom_kill", 0))
    return count


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
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        return max(0, limit - max(0, used - _reclaimable()))
    except (OSError, ValueError):
        return 2**63  # no limit that we can see


def _reclaimable() -> int:
    # The page cache counts as used, and is freed on demand.
    try:
        fields = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return int(fields["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0
