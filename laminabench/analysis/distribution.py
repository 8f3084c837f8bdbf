"""Exact whole-number statistics: sums over long columns, and distributions whose percentiles occurred."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.runs.summary import Percentiles
from laminabench.sim.spec import TICKS_PER_S, Float64, Ticks, ticks

_ROWS = 1 << 18
# Low bits that are multiplied separately from the high ones, so that no partial sum exceeds 64 bits.
_LOW_BITS = 24
_LOW_MASK = (1 << _LOW_BITS) - 1


def chunks(rows: int) -> Iterator[slice]:
    """Yield slices of rows: small enough to stay in cache, large enough to hide Python's overhead."""
    return (slice(first, min(first + _ROWS, rows)) for first in range(0, rows, _ROWS))


def column_ticks(seconds: Float64) -> Ticks:
    """Convert a column of seconds to ticks without an intermediate copy. It must not contain NaN."""
    out = np.empty(len(seconds), np.int64)
    for rows in chunks(len(seconds)):
        out[rows] = ticks(seconds[rows])
    return out


def dot(values: Ticks, weights: NDArray[Any]) -> int:
    """Return the sum of values times weights as a Python int. Neither is negative; a weight fits 32 bits."""
    result = 0
    for rows in chunks(len(values)):
        some, weight = values[rows], weights[rows].astype(np.int64)
        result += int(np.dot(some & _LOW_MASK, weight))
        high = some >> _LOW_BITS
        if high.any():
            result += int(np.dot(high, weight)) << _LOW_BITS
    return result


def total(values: NDArray[Any]) -> int:
    return int(np.sum(values, dtype=np.int64))


# Ranks are computed in integers: 0.07 * 100 is not 7 in floating point.
PERMILLE = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999}
_BITS = 63


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values in ascending order and how many there are up to each; without counts, each is there once."""

    values: Ticks
    up_to: NDArray[np.int64] | None
    sum: int

    @property
    def count(self) -> int:
        if self.up_to is None:
            return len(self.values)
        return int(self.up_to[-1]) if len(self.up_to) else 0

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    @property
    def max(self) -> int | None:
        return int(self.values[-1]) if len(self.values) else None

    def percentile(self, permille: int) -> int | None:
        """Return the smallest value that at least this share of all does not exceed (the inverted CDF)."""
        if not self.count:
            return None
        rank = max(1, -(-self.count * permille // 1000))
        place = rank - 1 if self.up_to is None else int(np.searchsorted(self.up_to, rank))
        return int(self.values[place])

    def at_most(self, limit: int) -> int:
        place = int(np.searchsorted(self.values, limit, side="right"))
        if self.up_to is None or place == 0:
            return place
        return int(self.up_to[place - 1])

    def shares_at_most(self, limits: Ticks) -> Float64:
        """Return, for each limit, the share of the values that do not exceed it; NaN without any value."""
        if not self.count:
            return np.full(len(limits), np.nan)
        places = np.searchsorted(self.values, limits, side="right")
        counts = places if self.up_to is None else np.concatenate([[0], self.up_to])[places]
        shares: Float64 = counts / self.count
        return shares

    def support(self, most: int) -> Ticks:
        """Return the distinct values, or about `most` of them.

        Half are at equal steps of the share, half at the hundred times finer steps of the last hundredth.
        """
        values = _distinct(self.values)
        if len(values) <= most:
            return values
        tail = most // 2
        shares = np.concatenate([np.linspace(0.0, 1.0, most - tail), np.linspace(0.99, 1.0, tail)])
        ranks = np.maximum(1, np.ceil(shares * self.count)).astype(np.int64)
        places = ranks - 1 if self.up_to is None else np.searchsorted(self.up_to, ranks)
        return np.unique(self.values[places])

    def describe(self, per_s: float) -> Percentiles:
        """Return mean, percentiles and maximum of values in ticks; 1000 per_s gives milliseconds."""

        def scaled(value: float | None) -> float | None:
            return None if value is None else value * per_s / TICKS_PER_S

        values = {name.replace(".", "_"): self.percentile(rank) for name, rank in PERMILLE.items()}
        points = {name: scaled(value) for name, value in values.items()}
        return Percentiles(mean=scaled(self.mean), max=scaled(self.max), **points)


def _distinct(ordered: Ticks) -> Ticks:
    """Return the distinct values of a sorted array; np.unique would sort it again, or hash each value."""
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def distribution(values: Ticks, weights: NDArray[Any] | None = None) -> Distribution:
    """Return the distribution of non-negative values with weights, whole numbers of 1 or more."""
    if weights is None:
        ordered = np.sort(values)
        return Distribution(ordered, None, dot(ordered, np.ones(len(ordered), np.uint8)))
    if not len(values):
        return Distribution(values, np.zeros(0, np.int64), 0)
    summed = dot(values, weights)
    bits = int(weights.max()).bit_length()
    if int(values.max()).bit_length() + bits > _BITS:
        order = np.argsort(values, kind="stable")
        return Distribution(values[order], np.cumsum(weights[order], dtype=np.int64), summed)
    # Sorting one array of value and weight in one word is many times faster than ordering two arrays.
    packed = np.empty(len(values), np.int64)
    for rows in chunks(len(values)):
        packed[rows] = (values[rows] << bits) | weights[rows]
    packed.sort()
    up_to = packed & ((1 << bits) - 1)
    packed >>= bits
    np.cumsum(up_to, out=up_to)
    return Distribution(packed, up_to, summed)
