"""Sums over long columns of whole ticks: exact, the same on every machine, and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.sim.spec import Float64, Ticks, ticks

_ROWS = 1 << 18
# Low bits that are multiplied apart from the high ones, so that no partial sum leaves 64 bits.
_LOW_BITS = 24
_LOW_MASK = (1 << _LOW_BITS) - 1


def chunks(rows: int) -> Iterator[slice]:
    """Rows to work on at a time: few enough to stay in cache, enough to forget Python's share."""
    return (slice(first, min(first + _ROWS, rows)) for first in range(0, rows, _ROWS))


def column_ticks(seconds: Float64) -> Ticks:
    """A column of seconds as ticks, without a copy of it in between. It must not contain NaN."""
    out = np.empty(len(seconds), np.int64)
    for rows in chunks(len(seconds)):
        out[rows] = ticks(seconds[rows])
    return out


def dot(values: Ticks, weights: NDArray[Any]) -> int:
    """The sum of values times weights as a Python int; neither may be negative, a weight fits 32 bits."""
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
