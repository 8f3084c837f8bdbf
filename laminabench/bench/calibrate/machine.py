"""This machine: what its processor is called, and a core's share of its memory."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


def processor() -> str:
    """As the system calls it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def memory_per_core() -> float:
    """Bytes of the machine's memory, a core's share."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (os.cpu_count() or 1)
