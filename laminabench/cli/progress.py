"""Progress of long work on stderr: bars on a terminal, else occasional lines."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from laminabench.util.live_progress import Expected, FaultEvent, Moment

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
    def print_message(self, sentence: str) -> None: ...


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

    def __init__(self, steps: list[Step], print_message: Callable[[str], None]) -> None:
        self._steps, self.print_message = steps, print_message
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._now_and_then, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(STOP_S)

    def ended(self, step: Step) -> None:
        if step.reported:
            self.print_message(step.ending())

    def _now_and_then(self) -> None:
        while not self._over.wait(LINES_EVERY_S):
            for step in list(self._steps):
                step.reported = True
                self.print_message(step.line())


@dataclass(slots=True)
class LiveStep(Step):
    """The progress of a live replay, measured in tokens rather than requests."""

    expected: Expected = field(default_factory=lambda: Expected(requests=0))
    moment: Moment | None = None
    _tokens: int | None = None  # expected of all requests that do not fail

    def happens(self, moment: Moment) -> None:
        """Update the step from a moment of the replay."""
        self.moment = moment
        self.done, self.total = moment.finished + moment.failed, moment.requests
        if self.expected.tokens is not None and moment.requests:
            self._tokens = round(self.expected.tokens * (1 - moment.failed / moment.requests))
        self.pace.reached(self.done if self._tokens is None else moment.tokens)
        self.more = how_it_goes(moment, self.expected.kv_capacity_tokens)

    @property
    def left_s(self) -> float | None:
        left_s = self.pace.left_s(self.total if self._tokens is None else self._tokens)
        if left_s is None or self.moment is None:
            return None
        # An open replay does not end before its last arrival.
        return max(left_s, self.expected.last_arrival_s - self.moment.at_s)


def how_it_goes(moment: Moment, kv_capacity_tokens: int | None) -> str:
    """Describe the last seconds."""
    parts = []
    if moment.tokens_per_s is not None:
        parts.append(f"{moment.tokens_per_s:,.0f} tokens/s")
    if moment.tbt_ms_p50 is not None and moment.tbt_ms_p99 is not None:
        parts.append(f"TBT p50 {_ms(moment.tbt_ms_p50)} and p99 {_ms(moment.tbt_ms_p99)} ms")
    if moment.batch is not None:
        parts.append(f"{moment.batch:,} decode")
    if moment.waiting:
        parts.append(f"{moment.waiting:,} wait")
    if moment.kv_tokens is not None and kv_capacity_tokens:
        parts.append(f"KV {moment.kv_tokens / kv_capacity_tokens:.0%}")
    if moment.failed:
        parts.append(f"{moment.failed:,} failed")
    if moment.workers_lost:
        parts.append(f"{moment.workers_lost:,} {'worker' if moment.workers_lost == 1 else 'workers'} lost")
    return ", ".join(parts)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sentence_of(fault: FaultEvent) -> str:
    """Describe a fault."""
    if fault.struck is not None:
        return f"at {fault.at_s:.2f} s: {', '.join(fault.workers)} gets a {fault.struck} (--chaos)"
    unnamed = [worker for worker in fault.workers if worker not in fault.why]
    others = f"; lost too: {', '.join(unnamed)}" if unnamed else ""
    went_on = "" if fault.resumed_s is None else f"; work went on {fault.resumed_s - fault.at_s:.2f} s later"
    return f"at {fault.at_s:.2f} s: {fault.why}{others}{went_on}"
