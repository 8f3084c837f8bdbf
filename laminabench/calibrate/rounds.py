"""Measurement in rounds, in which all terms take turns, and how stable the machine was."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from laminabench.catalog.cost_terms import Float64

# What was measured, and its size: ("gemm qkv", 64), ("decode", 8, 1024).
Point = tuple[str | int, ...]
Seconds = Mapping[Point, Sequence[float]]
# Called with the seconds so far and in total.
OnProgress = Callable[[int, int], None]

# Columns are added as long as there is time for this many rounds of them.
ROUNDS = 5
FEWEST_ROUNDS = 3
FEWEST_COLUMNS = 2
# A term is unstable above this: the interquartile range over the median of its repeats, or the control's
# relative change while it was measured.
UNSTABLE = 0.1


class Term(Protocol):
    """A quantity to measure, as columns of points, each more expensive than the one before."""

    @property
    def name(self) -> str: ...

    @property
    def share(self) -> float:
        """The share of the time."""

    @property
    def columns(self) -> Sequence[int]: ...

    def measure(self, column: int) -> Mapping[Point, float]: ...


@dataclass
class Repeats:
    """All repeats of every point, and of the control around every term."""

    seconds: dict[Point, list[float]] = field(default_factory=lambda: defaultdict(list))
    controls: list[float] = field(default_factory=list)
    drifts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by term
    columns: dict[str, list[int]] = field(default_factory=dict)
    rounds: int = 0

    def at(self, *point: str | int) -> float:
        """Return the median of a point."""
        return float(np.median(self.seconds[point]))

    def drift(self, term: str) -> float:
        """Return the median relative change of the control while the term was measured."""
        return float(np.median(self.drifts[term])) if self.drifts[term] else 0.0

    def of_kind(self, *kinds: str) -> Seconds:
        """Return the points of these kinds."""
        return {point: taken for point, taken in self.seconds.items() if point[0] in kinds}


def mean_spread(seconds: Seconds) -> float:
    """Return the mean relative spread of all points."""
    return float(np.mean([relative_spread(taken) for taken in seconds.values()])) if seconds else 0.0


def relative_spread(taken: Sequence[float]) -> float:
    """Return the interquartile range over the median; 1 if only the median is 0."""
    low, middle, high = np.percentile(taken, (25, 50, 75))
    return float((high - low) / middle) if middle > 0 else float(high > low)


def straight(x: Float64, y: Float64) -> tuple[float, float]:
    """Return a line's intercept and slope, neither negative, fitted by relative error."""
    weights = 1 / y
    slope, start = np.polyfit(x, y, 1, w=weights) if len(x) > 1 else (0.0, float(y[0]))
    if slope < 0:
        return float(np.average(y, weights=weights)), 0.0
    if start < 0:
        return 0.0, float(np.average(y / x, weights=weights))
    return float(start), float(slope)


def in_rounds(
    terms: Sequence[Term], control: Callable[[], float], seconds: float, on_progress: OnProgress, total: int
) -> Repeats:
    """Measure terms in turns, with the control in between, for about `seconds` and at least three rounds.

    The first round determines which columns there is time for. `on_progress` gets the seconds so far, and
    `total`.
    """
    repeats, began = Repeats(), time.perf_counter()
    control()

    def elapsed() -> float:
        return time.perf_counter() - began

    took = 0.0
    while repeats.rounds < FEWEST_ROUNDS or elapsed() + took < seconds:
        round_began, before = elapsed(), control()
        repeats.controls.append(before)
        for term in terms:
            on_progress(min(int(elapsed()), total), total)
            columns = repeats.columns.get(term.name)
            if columns is None:
                columns = repeats.columns[term.name] = _affordable(
                    term, repeats, seconds * term.share / ROUNDS
                )
            else:
                for column in columns:
                    _take(term, column, repeats)
                    on_progress(min(int(elapsed()), total), total)
            after = control()
            repeats.controls.append(after)
            repeats.drifts[term.name].append(abs(after / before - 1))
            before = after
        took = elapsed() - round_began
        repeats.rounds += 1
    return repeats


def _affordable(term: Term, repeats: Repeats, seconds: float) -> list[int]:
    """Measure columns for the first time, until the next one would exceed the time."""
    chosen: list[int] = []
    began, last = time.perf_counter(), 0.0
    for column in term.columns:
        spent = time.perf_counter() - began
        # The next takes about twice as long: columns double, or more.
        if len(chosen) >= FEWEST_COLUMNS and spent + 2 * last > seconds:
            break
        _take(term, column, repeats)
        last = time.perf_counter() - began - spent
        chosen.append(column)
    return chosen


def _take(term: Term, column: int, repeats: Repeats) -> None:
    for point, took in term.measure(column).items():
        repeats.seconds[point].append(took)
