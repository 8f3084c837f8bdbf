"""Progress of long work on stderr: bars on a terminal, else occasional lines."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

# Without a terminal, steps shorter than this print nothing.
LINES_EVERY_S = 10.0
STOP_S = 5.0  # for the thread to print its last line
# The pace is computed from this many recent reports, at least this far apart.
REPORTS, REPORT_S = 100, 0.3


@dataclass(slots=True)
class Pace:
    """The recent pace of work, to estimate the time left."""

    now: Callable[[], float] = time.monotonic
    _reports: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=REPORTS))

    def reached(self, done: float) -> None:
        """Record how much is done; work before the first report does not count towards the pace."""
        now_s, reports = self.now(), self._reports
        if reports and done <= reports[-1][1]:
            return
        if len(reports) > 1 and now_s - reports[-2][0] < REPORT_S:
            reports[-1] = (now_s, done)
        else:
            reports.append((now_s, done))

    def left_s(self, total: float | None) -> float | None:
        """Return the time left; None while it cannot be estimated."""
        if total is None or len(self._reports) < 2:
            return None
        (first_s, first), (last_s, last) = self._reports[0], self._reports[-1]
        return max(0.0, (total - last) * (last_s - first_s) / (last - first) - (self.now() - last_s))


@dataclass(slots=True)
class Step:
    """A step under way."""

    what: str
    unit: str
    done: int = 0
    total: int | None = None
    more: str = ""  # details of recent progress
    pace: Pace = field(default_factory=Pace)
    reported: bool = False
    began_s: float = field(default_factory=time.monotonic)

    def report(self, done: int, total: int | None) -> None:
        """Record how much is done, of a total that may become known later."""
        self.done, self.total = done, total
        self.pace.reached(done)

    @property
    def left_s(self) -> float | None:
        return self.pace.left_s(self.total)

    @property
    def left(self) -> str:
        """The time left in words; empty if unknown."""
        left_s = self.left_s
        return "" if left_s is None else f"about {clock(left_s)} left"

    @property
    def elapsed(self) -> str:
        return clock(time.monotonic() - self.began_s)

    def counted(self, of: str = "/") -> str:
        """Return the completed count in words; empty if the step has no unit."""
        if not self.unit:
            return ""
        if self.unit == "bytes":
            total = "" if self.total is None else f"{of}{self.total / 1e6:,.1f}"
            return f"{self.done / 1e6:,.1f}{total} MB"
        return f"{self.done:,}{'' if self.total is None else f'{of}{self.total:,}'} {self.unit}"

    def line(self) -> str:
        """Return a line for displays without bars."""
        parts = (self._summary, self.more, f"{self.elapsed} so far", self.left)
        return ", ".join(part for part in parts if part)

    def ending(self) -> str:
        return f"{self._summary} in {self.elapsed}"

    @property
    def _summary(self) -> str:
        return ": ".join(part for part in (self.what, self.counted(" of ")) if part)


def clock(seconds: float) -> str:
    """Format a duration: 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Display(Protocol):
    """A display of steps, from the first start to the last end."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def ended(self, step: Step) -> None: ...
    def say(self, sentence: str) -> None: ...


class Board:
    """The steps under way in a command, outermost first; `display` may return None to show nothing."""

    def __init__(self, display: Callable[[list[Step]], Display | None]) -> None:
        self._make = display
        self._steps: list[Step] = []
        self.display: Display | None = None

    @contextlib.contextmanager
    def under_way(self, step: Step) -> Iterator[None]:
        """Show the step while the block runs."""
        outermost = not self._steps
        self._steps.append(step)
        if outermost and (display := self._make(self._steps)):
            display.start()
            self.display = display
        try:
            yield
        finally:
            if self.display:
                self.display.ended(step)
            self._steps.remove(step)
            if self.display and outermost:
                self.display.stop()
                self.display = None


class Lines:
    """A display that prints a line for each step every few seconds."""

    def __init__(self, steps: list[Step], say: Callable[[str], None]) -> None:
        self._steps, self.say = steps, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._now_and_then, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(STOP_S)

    def ended(self, step: Step) -> None:
        if step.reported:
            self.say(step.ending())

    def _now_and_then(self) -> None:
        while not self._over.wait(LINES_EVERY_S):
            for step in list(self._steps):
                step.reported = True
                self.say(step.line())
