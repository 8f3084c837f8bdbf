"""Processes as /proc has them."""

from __future__ import annotations

import os


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - asked often


def read(pid: int, name: str) -> bytes:
    """A file of one; nothing if it has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - asked a hundred times a second
            return file.read()
    except OSError:
        return b""


def stat(pid: int) -> list[str]:
    """Its state, its parent, and what follows; nothing if it has ended."""
    # Before them is the program's name, in brackets, which may have anything in it.
    return read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def used_s(pid: int) -> float:
    """Of a processor, so far; 0 of one that has ended."""
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0
