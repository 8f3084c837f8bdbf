"""How many requests, and how much KV, are in service at each moment, in slices of time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.streams import seen_of
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Float64, Ticks, ticks


class Sliced(NamedTuple):
    """One value a slice: its time's mean, and the least and the most at any moment of it."""

    middle_s: Float64
    mean: Float64
    least: Float64
    most: Float64


def in_service(outcome: Outcome, column: str, slices: int) -> Sliced:
    """`size` or `kv_tokens` of all batches together, in equal slices from the beginning to the end.

    A batch counts from the start of an iteration to that of its next one, or, where nobody stays for that,
    to the iteration's own end; a request that only a client saw counts from its first chunk to its last.
    Within a slice nothing is left out: mean and extremes are exact.
    """
    middle_s = np.linspace(0.0, outcome.end_s, 2 * slices + 1)[1::2]
    at, level = _levels(outcome, column)
    edges = ticks(np.linspace(0.0, outcome.end_s, slices + 1))
    if edges[-1] == 0:  # everybody was rejected
        return Sliced(middle_s, *np.zeros((3, slices)))
    # When something changes and when a slice begins, each with the level from then on.
    moments = np.unique(np.concatenate([at, edges[:-1]]))
    place = np.searchsorted(at, moments, side="right") - 1
    levels = np.where(place >= 0, level[place], 0)
    lasts = np.diff(np.append(moments, max(int(edges[-1]), int(moments[-1]))))
    inside = moments < edges[-1]
    moments, levels, lasts = moments[inside], levels[inside], lasts[inside]
    first = np.searchsorted(moments, edges[:-1])
    width = np.maximum(np.add.reduceat(lasts, first), 1)
    mean = np.add.reduceat(levels * lasts.astype(np.float64), first) / width
    least, most = (each.reduceat(levels, first).astype(np.float64) for each in (np.minimum, np.maximum))
    return Sliced(middle_s, mean, least, most)


def _levels(outcome: Outcome, column: str) -> tuple[Ticks, NDArray[np.int64]]:
    """When the sum over all batches changes, ascending, and what it is from then on."""
    seen = seen_of(outcome)
    if seen is not None:
        assert column == "size"
        some = seen.streams.first >= 0
        ones = np.ones(np.count_nonzero(some), np.int64)
        return _sums(seen.streams.first[some], seen.streams.last[some], ones)
    rows = outcome.iterations
    start = ticks(rows["start_s"])
    until = start + ticks(rows["duration_s"])
    for batch in np.unique(rows["batch"]).tolist():
        mine = np.flatnonzero(rows["batch"] == batch)
        stayed = (rows["size"][mine] > rows["joined"][mine])[1:]
        until[mine[:-1][stayed]] = start[mine[1:][stayed]]
    return _sums(start, until, rows[column].astype(np.int64))


def _sums(start: Ticks, until: Ticks, value: NDArray[np.int64]) -> tuple[Ticks, NDArray[np.int64]]:
    """Of spans of time with a value each: when their sum changes, and what it is from then on."""
    at = np.concatenate([start, until])
    order = np.argsort(at, kind="stable")
    at, change = at[order], np.concatenate([value, -value])[order]
    moments, first = np.unique(at, return_index=True)
    if not len(moments):
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    return moments, np.cumsum(np.add.reduceat(change, first))
