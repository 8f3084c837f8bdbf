"""Everything measured in turns, round after round, and how stable the machine was meanwhile."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from laminabench.catalog.cost_terms import Float64

# What was measured, and at what: ("gemm qkv", 64), ("decode", 8, 1024).
Point = tuple[str | int, ...]
Seconds = Mapping[Point, Sequence[float]]
# Of seconds so far and in all.
Told = Callable[[int, int], None]

# Columns are taken as long as there is time for so many rounds of them.
ROUNDS = 5
FEWEST_ROUNDS = 3
FEWEST_COLUMNS = 2
# A share: of the repeats' median the distance between their quartiles, and of the control's time how much it
# changed while a term was measured. Beyond it a term is unstable.
UNSTABLE = 0.1


class Term(Protocol):
    """What belongs together, as columns of points, each dearer than the one before."""

    @property
    def name(self) -> str: ...

    @property
    def share(self) -> float:
        """Of the time."""

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
        """The median."""
        return float(np.median(self.seconds[point]))

    def drift(self, term: str) -> float:
        """By what share the control changed while the term was measured, as a rule."""
        return float(np.median(self.drifts[term])) if self.drifts[term] else 0.0

    def of_kind(self, *kinds: str) -> Seconds:
        """Points of these kinds."""
        return {point: taken for point, taken in self.seconds.items() if point[0] in kinds}


def mean_spread(seconds: Seconds) -> float:
    """Of all points, on average."""
    return float(np.mean([relative_spread(taken) for taken in seconds.values()])) if seconds else 0.0


def relative_spread(taken: Sequence[float]) -> float:
    """The distance between the quartiles over the median; all of it where that is nothing."""
    low, middle, high = np.percentile(taken, (25, 50, 75))
    return float((high - low) / middle) if middle > 0 else float(high > low)


def straight(x: Float64, y: Float64) -> tuple[float, float]:
    """Where the line begins, and its slope; neither is negative. Small ones count as much as large ones."""
    weights = 1 / y
    slope, start = np.polyfit(x, y, 1, w=weights) if len(x) > 1 else (0.0, float(y[0]))
    if slope < 0:
        return float(np.average(y, weights=weights)), 0.0
    if start < 0:
        return 0.0, float(np.average(y / x, weights=weights))
    return float(start), float(slope)


def in_rounds(
    terms: Sequence[Term], control: Callable[[], float], seconds: float, told: Told, total: int
) -> Repeats:
    """Terms in turns, the control between them, for about so many seconds and three rounds in any case.

    The first round finds out which columns there is time for. `told` hears of the time that has passed, of
    `total`.
    """
    found, began = Repeats(), time.perf_counter()
    control()

    def elapsed() -> float:
        return time.perf_counter() - began

    took = 0.0
    while found.rounds < FEWEST_ROUNDS or elapsed() + took < seconds:
        round_began, before = elapsed(), control()
        found.controls.append(before)
        for term in terms:
            told(min(int(elapsed()), total), total)
            columns = found.columns.get(term.name)
            if columns is None:
                columns = found.columns[term.name] = _affordable(term, found, seconds * term.share / ROUNDS)
            else:
                for column in columns:
                    _take(term, column, found)
                    told(min(int(elapsed()), total), total)
            after = control()
            found.controls.append(after)
            found.drifts[term.name].append(abs(after / before - 1))
            before = after
        took = elapsed() - round_began
        found.rounds += 1
    return found


def _affordable(term: Term, found: Repeats, seconds: float) -> list[int]:
    """Measure columns for the first time, until the next one would not be within the time."""
    chosen: list[int] = []
    began, last = time.perf_counter(), 0.0
    for column in term.columns:
        spent = time.perf_counter() - began
        # The next is about twice as dear: columns double, or more.
        if len(chosen) >= FEWEST_COLUMNS and spent + 2 * last > seconds:
            break
        _take(term, column, found)
        last = time.perf_counter() - began - spent
        chosen.append(column)
    return chosen


def _take(term: Term, column: int, found: Repeats) -> None:
    for point, took in term.measure(column).items():
        found.seconds[point].append(took)
