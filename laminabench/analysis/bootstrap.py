"""Confidence intervals of a measured Run: a circular block bootstrap over its window.

The window is cut into equal slices of time, and a resample is made of blocks of neighbouring slices, begun
anywhere (at the end it goes on with the beginning), until it is as long as the window. Iterations that follow
each other resemble each other: the same requests are in the batch, the machine is disturbed for a while.
Drawing them one by one would give intervals far too narrow; blocks keep correlated iterations together.

Modelled numbers are exact and need no resamples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.attainment import limit_ticks, worst_gaps
from laminabench.analysis.distribution import PERMILLE, distribution
from laminabench.analysis.over_time import slice_of
from laminabench.analysis.rates import mean_batches
from laminabench.analysis.streams import all_arrivals, observed_of
from laminabench.analysis.tbt import Gaps, gaps_of, tokens_of
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import TICKS_PER_S, Float64, Ticks

RESAMPLES = 1000
# A block is an eighth of the window: long, to keep correlated iterations together. The number of blocks is
# the interval's degrees of freedom.
BLOCKS = 8
MOST_SLICES = 16 * BLOCKS
# With fewer in a slice most slices would be empty or the same.
ITERATIONS_A_SLICE = 4
FEWEST_ITERATIONS = 4 * ITERATIONS_A_SLICE * BLOCKS
# A percentile with fewer iterations beyond it depends on two or three stalls.
FEWEST_BEYOND = 30
# Percentiles of resamples are rounded to this many of the gaps that occurred, half of them in the tail.
_BINS = 500
_PER_MS = 1000.0 / TICKS_PER_S


def resamples(outcome: Outcome, window: Window, slo_tbt_ms: float, seed: int = 0) -> dict[str, Float64]:
    """Return RESAMPLES values of each headline number by its summary key; reproducible by seed.

    Empty if the window has fewer than FEWEST_ITERATIONS. Left out are numbers that some resample lacks, and
    percentiles with fewer than FEWEST_BEYOND iterations beyond them.

    Where only a client saw the replay its iterations are unknown. Concurrent requests get their chunks from
    the same ones, so their number is estimated by the chunks of one stream.
    """
    ends, sizes = all_arrivals(outcome)
    inside = (ends > window.start) & (ends <= window.end)
    observed = observed_of(outcome)
    at_once = 1.0 if observed is None else max(1.0, sum(mean_batches(outcome, window, observed)))
    iterations = int(np.count_nonzero(inside) / at_once)
    if iterations < FEWEST_ITERATIONS:
        return {}
    slices = min(MOST_SLICES, iterations // ITERATIONS_A_SLICE // BLOCKS * BLOCKS)
    edges = np.round(np.linspace(window.start, window.end, slices + 1)).astype(np.int64)
    drawn = _drawn(slices, seed)
    tokens = tokens_of(outcome, observed)
    gaps = gaps_of(tokens, window)
    limit = limit_ticks(slo_tbt_ms)
    seconds = window.ticks / TICKS_PER_S
    made = drawn @ _sums(ends[inside], edges, sizes[inside])
    late = drawn @ _sums(gaps.end, edges, np.where(gaps.gap > limit, gaps.count, 0))
    with_gap = drawn @ _sums(gaps.end, edges, gaps.count)
    finished, worst = worst_gaps(outcome, tokens, window)
    with np.errstate(invalid="ignore", divide="ignore"):
        samples = {
            "throughput_tokens_per_s": made / seconds,
            "slo.token_attainment": 1 - late / with_gap,
            "tbt_ms.mean": drawn @ _sums(gaps.end, edges, gaps.gap * _PER_MS * gaps.count) / with_gap,
            "slo.request_attainment": drawn
            @ _sums(finished, edges, worst <= limit)
            / (drawn @ _sums(finished, edges, np.ones(len(finished)))),
            "slo.goodput_tokens_per_s": (made - late) / seconds,
            **_percentiles(gaps, edges, drawn, len(gaps.gap) / at_once),
        }
    return {name: values for name, values in samples.items() if np.isfinite(values).all()}


def _drawn(slices: int, seed: int) -> Float64:
    """Return how often each slice is in each resample."""
    length = slices // BLOCKS
    first = np.random.default_rng(seed).integers(0, slices, (RESAMPLES, BLOCKS))
    members = (first[:, :, None] + np.arange(length)) % slices
    cell = np.arange(RESAMPLES)[:, None, None] * slices + members
    counts = np.bincount(cell.ravel(), minlength=RESAMPLES * slices)
    return counts.reshape(RESAMPLES, slices).astype(np.float64)


def _sums(at: Ticks, edges: Ticks, values: NDArray[np.generic]) -> Float64:
    return np.bincount(slice_of(at, edges), weights=values, minlength=len(edges) - 1).astype(np.float64)


def _percentiles(gaps: Gaps, edges: Ticks, drawn: Float64, iterations: float) -> dict[str, Float64]:
    """Return the percentiles of TBT in each resample, of gaps rounded up to one of _BINS that occurred."""
    if not len(gaps.gap):
        return {}
    bins = distribution(gaps.gap, gaps.count).support(_BINS)
    slices = len(edges) - 1
    cell = slice_of(gaps.end, edges) * len(bins) + np.searchsorted(bins, gaps.gap)
    counts = np.bincount(cell, weights=gaps.count, minlength=slices * len(bins)).reshape(slices, len(bins))
    up_to = np.cumsum(drawn @ counts, axis=1)
    total = up_to[:, -1:]
    percentiles = {}
    for name, permille in PERMILLE.items():
        if iterations * (1000 - permille) < FEWEST_BEYOND * 1000:
            continue
        rank = np.maximum(1.0, np.ceil(total * permille / 1000))
        place = np.argmax(up_to >= rank, axis=1)
        percentiles[f"tbt_ms.{name}"] = bins[place] * _PER_MS
    return percentiles
