"""Long work as stderr shows it: steps under way, drawn where a person watches, else said now and then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

# Where nobody watches: what is over sooner says nothing.
LINES_EVERY_S = 10.0
STOP_S = 5.0  # for its thread to write its last line
# The pace is that of so many of the last reports, which are so far apart at least.
REPORTS, REPORT_S = 100, 0.3


@dataclass(slots=True)
class Pace:
    """How fast work goes lately, and so how long the rest of it takes."""

    now: Callable[[], float] = time.monotonic
    _reports: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=REPORTS))

    def reached(self, done: float) -> None:
        """So much is done now; what had been done when this was first told was not done at this pace."""
        now_s, reports = self.now(), self._reports
        if reports and done <= reports[-1][1]:
            return
        if len(reports) > 1 and now_s - reports[-2][0] < REPORT_S:
            reports[-1] = (now_s, done)
        else:
            reports.append((now_s, done))

    def left_s(self, total: float | None) -> float | None:
        """Until all of it is done; None while that cannot be told."""
        if total is None or len(self._reports) < 2:
            return None
        (first_s, first), (last_s, last) = self._reports[0], self._reports[-1]
        return max(0.0, (total - last) * (last_s - first_s) / (last - first) - (self.now() - last_s))


@dataclass(slots=True)
class Step:
    """Something under way."""

    what: str
    unit: str
    done: int = 0
    total: int | None = None
    more: str = ""  # how it goes
    pace: Pace = field(default_factory=Pace)
    said: bool = False
    began_s: float = field(default_factory=time.monotonic)

    def told(self, done: int, total: int | None) -> None:
        """So much of it is done; of a total that may only be known meanwhile."""
        self.done, self.total = done, total
        self.pace.reached(done)

    @property
    def left_s(self) -> float | None:
        return self.pace.left_s(self.total)

    @property
    def left(self) -> str:
        """For a person; nothing where it is not known."""
        left_s = self.left_s
        return "" if left_s is None else f"about {clock(left_s)} left"

    @property
    def elapsed(self) -> str:
        return clock(time.monotonic() - self.began_s)

    def counted(self, of: str = "/") -> str:
        """How much of it is done; nothing where that is not counted."""
        if not self.unit:
            return ""
        if self.unit == "bytes":
            total = "" if self.total is None else f"{of}{self.total / 1e6:,.1f}"
            return f"{self.done / 1e6:,.1f}{total} MB"
        return f"{self.done:,}{'' if self.total is None else f'{of}{self.total:,}'} {self.unit}"

    def line(self) -> str:
        """Where nothing is drawn."""
        parts = (self._told, self.more, f"{self.elapsed} so far", self.left)
        return ", ".join(part for part in parts if part)

    def ending(self) -> str:
        return f"{self._told} in {self.elapsed}"

    @property
    def _told(self) -> str:
        return ": ".join(part for part in (self.what, self.counted(" of ")) if part)


def clock(seconds: float) -> str:
    """As 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Display(Protocol):
    """What shows steps, from the first that is under way to the end of the last."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def ended(self, step: Step) -> None: ...
    def say(self, sentence: str) -> None: ...


class Board:
    """The steps of a command that are under way, the outermost first; None displays them where none is to."""

    def __init__(self, display: Callable[[list[Step]], Display | None]) -> None:
        self._make = display
        self._steps: list[Step] = []
        self.display: Display | None = None

    @contextlib.contextmanager
    def under_way(self, step: Step) -> Iterator[None]:
        """While the block works at it."""
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
    """Says where the steps are every few seconds."""

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
        if step.said:
            self.say(step.ending())

    def _now_and_then(self) -> None:
        while not self._over.wait(LINES_EVERY_S):
            for step in list(self._steps):
                step.said = True
                self.say(step.line())
