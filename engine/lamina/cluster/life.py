"""Whether a process does anything, which tells a slow one from one that is stopped."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

# After the name of the program, which is in brackets and may have anything in it.
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
# It has a core, or waits for one.
_RUNS = "R"
# It waits for a disk, which the kernel does not let it be interrupted in.
_ON_DISK = "D"


def runs(pid: int) -> bool:
    """Whether any of its threads would go on if it had a core. It is false of one that is stopped."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            states.append(_fields(stat)[_STATE])
    return _RUNS in states


def _fields(stat: Path) -> list[str]:
    return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


class Life:
    """Of one process, from when this is made."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._ticks = -1
        self._since = time.monotonic()

    def silent_s(self) -> float:
        """Seconds since it was last seen to do something."""
        try:
            fields = _fields(self._stat)
        except OSError:  # it has ended, which others see
            return 0.0
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        if ticks != self._ticks or fields[_STATE] == _ON_DISK:
            self._ticks, self._since = ticks, time.monotonic()
        return time.monotonic() - self._since
