"""A replay in slices of time: tokens a second, the gaps between tokens, and the waits for the first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.distribution import distribution
from laminabench.analysis.streams import all_arrivals
from laminabench.analysis.tbt import gaps_of, tokens_of
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import TICKS_PER_S, Float64, Ticks, ticks

# At most what a chart can show, and few enough that each has tokens for a percentile.
MOST_SLICES, FEWEST_SLICES = 120, 20
_MOMENTS_A_SLICE = 5
_PER_MS = 1000.0 / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class OverTime:
    """Tokens and gaps by slice of time; NaN where no token has a gap."""

    edges_s: Float64
    tokens_per_s: Float64
    tbt_p50_ms: Float64
    tbt_p99_ms: Float64


def over_time(outcome: Outcome, slices: int | None = None) -> OverTime:
    """Return equal slices from the beginning to the end; a token is in the slice in which it came."""
    at, tokens = all_arrivals(outcome)
    if slices is None:
        enough = len(at) // _MOMENTS_A_SLICE
        slices = min(MOST_SLICES, max(FEWEST_SLICES, enough))
    edges_s = np.linspace(0.0, outcome.end_s, slices + 1)
    edges = ticks(edges_s)
    gaps = gaps_of(tokens_of(outcome))
    made = np.bincount(slice_of(at, edges), weights=tokens, minlength=slices)
    width_s = outcome.end_s / slices
    per_s = made / width_s if width_s else np.zeros(slices)
    return OverTime(edges_s, per_s, *_percentiles(gaps.end, gaps.gap, gaps.count, edges))


def first_tokens_over_time(outcome: Outcome, edges_s: Float64) -> tuple[Float64, Float64]:
    """Return p50 and p99 of the time to the first token in each slice, in milliseconds."""
    requests = outcome.requests
    began = np.isfinite(requests["first_token_s"])
    first = ticks(requests["first_token_s"][began])
    waited = first - ticks(requests["arrival_s"][began])
    return _percentiles(first, waited, np.ones(len(first), np.int32), ticks(edges_s))


def _percentiles(at: Ticks, values: Ticks, count: NDArray[np.int32], edges: Ticks) -> tuple[Float64, Float64]:
    """Return p50 and p99 in each slice, in milliseconds, of weighted values at these moments."""
    slices = len(edges) - 1
    place = slice_of(at, edges)
    order = np.argsort(place, kind="stable")
    values, count, place = values[order], count[order], place[order]
    p50, p99 = np.full(slices, np.nan), np.full(slices, np.nan)
    first = np.searchsorted(place, np.arange(slices + 1))
    for each in range(slices):
        members = slice(first[each], first[each + 1])
        if first[each] < first[each + 1]:
            part = distribution(values[members], count[members])
            p50[each] = (part.percentile(500) or 0) * _PER_MS
            p99[each] = (part.percentile(990) or 0) * _PER_MS
    return p50, p99


def slice_of(at: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slice of each moment: after one edge and up to and including the next."""
    slices: NDArray[np.int64] = np.clip(np.searchsorted(edges, at, side="left") - 1, 0, len(edges) - 2)
    return slices
