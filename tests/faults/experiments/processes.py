"""An engine's processes: who began whom, whether it is there, what it takes."""

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
    """Processes that these have begun and that have not ended."""
    wanted = {str(parent) for parent in parents}
    states = {pid: host.stat(pid) for pid in host.pids()}
    return sorted(pid for pid, stat in states.items() if stat[:1] != ["Z"] and wanted.intersection(stat[1:2]))


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return host.stat(pid)[:1] not in ([], ["Z"])


def fork_servers(front_end: int) -> list[int]:
    """What a front end's workers are forked from."""
    return [pid for pid in children_of(front_end) if _FORK_SERVER in host.read(pid, "cmdline")]


def workers(front_end: int) -> list[int]:
    """An engine's workers, those among them that have just been begun."""
    return children_of(*fork_servers(front_end))


def facts(pids: list[int]) -> dict[str, int]:
    """What processes take, all together."""
    found = {"rss_bytes": 0, "descriptors": 0, "threads": 0}
    for pid in pids:
        lines = dict(line.split(b":", 1) for line in host.read(pid, "status").splitlines() if b":" in line)
        found["rss_bytes"] += int(lines.get(b"VmRSS", b"0 kB").split()[0]) << 10
        found["threads"] += int(lines.get(b"Threads", b"0"))
        with contextlib.suppress(OSError):  # it has just ended
            found["descriptors"] += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return found


def shared_memory() -> set[str]:
    """Names in /dev/shm, without those of other experiments and of multiprocessing, which no engine uses."""
    return {path.name for path in _SHM.iterdir() if not path.name.startswith(("laminabench-", "sem.mp-"))}


def eventually(holds: Callable[[], bool], within_s: float) -> bool:
    """Whether something comes to hold in time."""
    end_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(LOOK_S)
    return True
