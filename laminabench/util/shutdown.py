"""The end of this process and of all that it has begun, for who will not wait any longer."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NoReturn

from laminabench.util import proc

# What Python's multiprocessing has beside it: it ends by itself, and takes what is left in /dev/shm with it.
_TRACKER = b"multiprocessing.resource_tracker"


def end_at_once(status: int) -> NoReturn:
    """Nothing is waited for, and nothing can be in the way: a process that is stopped is killed too."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os._exit(status)


def _descendants(pid: int) -> list[int]:
    """Parents first: what they would begin meanwhile ends with them."""
    children: dict[int, list[int]] = {}
    for other in proc.pids():
        if _TRACKER not in proc.read(other, "cmdline") and (fields := proc.stat(other)):
            children.setdefault(int(fields[1]), []).append(other)
    found = list(children.get(pid, ()))
    for child in found:  # grows meanwhile
        found += children.get(child, ())
    return found
