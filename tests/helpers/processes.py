"""Processes as /proc has them."""

from __future__ import annotations

from pathlib import Path


def processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def children_of(parent: int) -> list[int]:
    """Processes begun by another one and not reaped."""
    return [number for number in processes() if stat_of(number)[1:2] == [str(parent)]]


def members(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    return [number for number in processes() if stat_of(number)[2:3] == [str(group)] and alive(number)]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return stat_of(pid)[:1] not in ([], ["Z"])


def stat_of(pid: int) -> list[str]:
    """Its state, its parent, and more; nothing if it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
