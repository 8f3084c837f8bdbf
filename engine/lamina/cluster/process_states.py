"""States of processes and threads: whether they could go on, and when they last did."""

from __future__ import annotations

import time
from pathlib import Path

# After the name of the program, which is in brackets and may have anything in it.
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
# It waits for a disk, which the kernel does not let it be interrupted in.
_ON_DISK = "D"
# It has a core or waits for one, or for its memory to come from a disk.
_GOES_ON = ("R", _ON_DISK)


def runs(pid: int) -> bool:
    """Return whether any thread of a process could go on; false for a stopped one."""
    return any(map(_goes_on, Path(f"/proc/{pid}/task").glob("*/stat")))


def wants_core(thread: int) -> bool:
    """Return whether a thread of this process, by its native id, has a core or could go on."""
    return _goes_on(Path(f"/proc/self/task/{thread}/stat"))


def _goes_on(stat: Path) -> bool:
    try:
        return _fields(stat)[_STATE] in _GOES_ON
    except OSError:  # it has ended
        return False


def _fields(stat: Path) -> list[str]:
    return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


class Life:
    """A process's lifetime, from when this is made."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._ticks = -1
        self._since = time.monotonic()

    def silent_s(self) -> float:
        """Return the seconds since its last observed activity."""
        try:
            fields = _fields(self._stat)
        except OSError:  # it has ended, which others see
            return 0.0
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        if ticks != self._ticks or fields[_STATE] == _ON_DISK:
            self._ticks, self._since = ticks, time.monotonic()
        return time.monotonic() - self._since
