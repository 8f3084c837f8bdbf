"""Where a ping-pong's two threads run, and that nothing comes between them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def two_cores() -> tuple[int, int] | None:
    """Two that this process may use, if there are, and not one core's two threads if that can be."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        return None
    first = usable[0]
    threads = threads_of(first)
    apart = [core for core in usable[1:] if core not in threads]
    return first, (apart or usable[1:])[0]


def threads_of(core: int, cpus: Path = _CPUS) -> set[int]:
    """The processors that share this one's core, itself among them."""
    path = cpus / f"cpu{core}" / "topology" / "thread_siblings_list"
    found: set[int] = {core}
    with contextlib.suppress(OSError, ValueError):
        for stretch in path.read_text(encoding="ascii").split(","):
            start, _, end = stretch.partition("-")
            found |= set(range(int(start), int(end or start) + 1))
    return found


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """This thread on one core, and where it was before afterwards."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
