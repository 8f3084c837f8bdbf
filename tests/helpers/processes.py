"""Processes, read from /proc."""

from __future__ import annotations

from laminabench.util import host


def children_of(parent: int) -> list[int]:
    """Return the processes started by another one and not reaped."""
    return [number for number in host.pids() if host.stat(number)[1:2] == [str(parent)]]


def members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    return [number for number in host.pids() if host.stat(number)[2:3] == [str(group)] and alive(number)]


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return host.stat(pid)[:1] not in ([], ["Z"])
