"""Processes of this machine, from /proc, and the name of its processor."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - called often


def read(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc; nothing if it has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - called a hundred times a second
            return file.read()
    except OSError:
        return b""


def stat(pid: int) -> list[str]:
    """Return a process's state, its parent, and what follows; nothing if it has ended."""
    # Before them is the program's name, in brackets, which may have anything in it.
    return read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def used_s(pid: int) -> float:
    """Return the processor time a process has used; 0 if it has ended."""
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def processor() -> str:
    """Return the processor's name, and its design's numbers: in virtual machines many share a name."""
    facts: dict[str, str] = {}
    with (
        contextlib.suppress(OSError),
        Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines,
    ):
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:  # the first core's entry ends here
                break
            facts[name.strip()] = value.strip()
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return "{} (family {}, model {})".format(
        *(facts.get(name, "unknown") for name in ("model name", "cpu family", "model"))
    )


def memory_per_core() -> float:
    """Return the machine's memory in bytes divided by its cores."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (os.cpu_count() or 1)
