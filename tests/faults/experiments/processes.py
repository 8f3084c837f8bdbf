"""An engine's processes: parents and children, whether they run, and their resources."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from laminabench.util import host

_FORK_SERVER = b"lamina.cluster.fork_server"
_SHM = Path("/dev/shm")
LOOK_S = 0.01


def children_of(*parents: int) -> list[int]:
    """Return the running processes that these have started."""
    parent_texts = {str(parent) for parent in parents}
    states = {pid: host.stat(pid) for pid in host.pids()}
    return sorted(
        pid for pid, stat in states.items() if stat[:1] != ["Z"] and parent_texts.intersection(stat[1:2])
    )


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return host.stat(pid)[:1] not in ([], ["Z"])


def fork_servers(front_end: int) -> list[int]:
    """Return the fork servers of a front end's workers."""
    return [pid for pid in children_of(front_end) if _FORK_SERVER in host.read(pid, "cmdline")]


def workers(front_end: int) -> list[int]:
    """Return an engine's workers, including those that have just started."""
    return children_of(*fork_servers(front_end))


def facts(pids: list[int]) -> dict[str, int]:
    """Return the resources of these processes, summed up."""
    sums = {"rss_bytes": 0, "descriptors": 0, "threads": 0}
    for pid in pids:
        lines = dict(line.split(b":", 1) for line in host.read(pid, "status").splitlines() if b":" in line)
        sums["rss_bytes"] += int(lines.get(b"VmRSS", b"0 kB").split()[0]) << 10
        sums["threads"] += int(lines.get(b"Threads", b"0"))
        with contextlib.suppress(OSError):  # it has just ended
            sums["descriptors"] += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return sums


def shared_memory() -> set[str]:
    """Return the names in /dev/shm, without those of other experiments and of multiprocessing."""
    return {path.name for path in _SHM.iterdir() if not path.name.startswith(("laminabench-", "sem.mp-"))}


def eventually(holds: Callable[[], bool], within_s: float) -> bool:
    """Return whether a condition becomes true in time."""
    end_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(LOOK_S)
    return True
