"""Requests made from a profile: the same profile, count and seed give the same trace on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laminabench.traces.draws import BLOCK, Draws
from laminabench.traces.profile import profile_sha256
from laminabench.traces.reuse import synthesise_reuse
from laminabench.traces.table import Trace, TraceMeta, make_trace
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from laminabench.traces.profile import Arrivals, Profile
    from laminabench.traces.table import Float64, Int32, Int64

# Requests handled at once: enough that numpy's overhead does not show, few enough that 27 million of them
# need little more memory than the trace itself.
_BATCH = 64 * BLOCK
# Gaps are added up as whole millionths of the mean gap, because sums of whole numbers are exact.
_GAP_UNIT = 1e6

_LENGTHS, _ARRIVALS, _REUSE = range(3)


def synthesise(profile: Profile, requests: int | None = None, seed: int = 0) -> Trace:
    """Generate requests with the profile's statistics, by default as many as the real trace has.

    Fewer requests are the first part of the profile's time at its own rate; more repeat it from the start.
    """
    count = profile.requests if requests is None else requests
    if count < 1:
        raise UserError(
            "profile-no-requests",
            f"cannot make {count} requests from profile {profile.name}: ask for at least one",
        )
    if seed < 0:
        raise UserError("profile-negative-seed", f"seed {seed} is negative; take 0 or more")
    prompt_tokens, output_tokens = _lengths(profile, count, Draws(seed, _LENGTHS))
    arrival_s = np.zeros(count)
    if profile.arrivals is not None:
        arrival_s = _arrival_times(profile.arrivals, count, Draws(seed, _ARRIVALS))
    blocks = None
    if profile.reuse is not None:
        # Without arrival times a request stands for a second, as in the fit.
        times_s = arrival_s if profile.arrivals is not None else np.arange(count, dtype=np.float64)
        blocks = synthesise_reuse(profile, prompt_tokens, output_tokens, times_s, Draws(seed, _REUSE))
    return make_trace(arrival_s, prompt_tokens, output_tokens, _meta(profile, seed), prefix_blocks=blocks)


def _meta(profile: Profile, seed: int) -> TraceMeta:
    fitted_to = profile.fitted_to
    sum_ = f", sha256 {fitted_to.sha256[:12]}" if fitted_to.sha256 else ""
    made = f"generated from a {profile.method} profile with seed {seed}"
    return TraceMeta(
        name=profile.name,
        source="profile",
        sha256=profile_sha256(profile),
        origin=f"profile {profile.name} ({profile.method} to {fitted_to.source}{sum_})",
        has_arrivals=profile.arrivals is not None,
        block_tokens=profile.block_tokens,
        notes=(made, profile.note) if profile.note else (made,),
    )


def _lengths(profile: Profile, count: int, draws: Draws) -> tuple[Int32, Int32]:
    """Return prompt and output tokens: each block has both distributions, joined by the copula."""
    prompt_tokens, output_tokens = np.empty(count, np.int32), np.empty(count, np.int32)
    conditional = _Conditional(profile.copula)
    start = 0
    while start < count:
        left = count - start
        block = min(left, BLOCK)
        rows = min(left, _BATCH) // block
        prompt_ranks = draws.stratified(rows, block)
        # In order of prompt, so that every part of the prompts has its own distribution of outputs in full.
        places = np.floor(prompt_ranks * block).astype(np.int64)
        places += np.repeat(np.arange(rows) * block, block)
        output_ranks = conditional.draw(prompt_ranks, draws.along(places))
        output_ranks = draws.restratified(output_ranks, rows, block)
        end = start + rows * block
        prompt_tokens[start:end] = profile.prompt.at(prompt_ranks) + 0.5
        output_tokens[start:end] = profile.output.at(output_ranks) + 0.5
        start = end
    return prompt_tokens, output_tokens


class _Conditional:
    """Output ranks given prompt ranks: rows of the copula, each as a cumulative distribution."""

    def __init__(self, copula: tuple[tuple[int, ...], ...]) -> None:
        grid = np.array(copula, np.float64)
        self._parts = len(grid)
        before = np.cumsum(grid, axis=1) - grid
        total = before[:, -1:] + grid[:, -1:]
        # Row r covers [r, r + 1), so one search finds the cell for all rows at once.
        self._starts = (before / total + np.arange(self._parts)[:, None]).ravel()
        self._widths = np.append(np.diff(self._starts), self._parts - self._starts[-1])

    def draw(self, prompt_ranks: Float64, uniform: Float64) -> Float64:
        where = np.floor(prompt_ranks * self._parts) + uniform
        cells = np.searchsorted(self._starts, where, side="right") - 1
        inside: Float64 = (where - self._starts[cells]) / self._widths[cells]
        inside += cells % self._parts
        inside /= self._parts
        return inside


def _arrival_times(arrivals: Arrivals, count: int, draws: Draws) -> Float64:
    """Return arrival times in seconds, rising from 0, whole microseconds."""
    arrived_us = np.empty(count, np.int64)
    start = 0
    bins = _bin_counts(arrivals, count, draws)
    per_pass = len(arrivals.counts)
    busy = np.flatnonzero(bins)
    for batch in _batches(busy, bins[busy]):
        counts = bins[batch]
        passes, position = np.divmod(batch, per_pass)
        opens = passes * arrivals.duration_s + position * arrivals.bin_s
        closes = np.minimum((position + 1) * arrivals.bin_s, arrivals.duration_s)
        widths = closes - position * arrivals.bin_s
        if batch[-1] == busy[-1]:
            widths[-1] *= _share_of_last_bin(arrivals, count, int(position[-1]))
        end = start + int(counts.sum())
        turns = draws.uniform(len(batch))
        # A trace begins with a request, as real ones do: moving all to begin at 0 would shift every bin.
        turns[0] *= start > 0
        arrived_us[start:end] = _spread(_gaps(arrivals, end - start, draws), counts, opens, widths, turns)
        start = end
    # The first request opens the trace, also when its bin happens to be a later one.
    arrived_us[0] = 0
    return arrived_us / 1e6


def _bin_counts(arrivals: Arrivals, count: int, draws: Draws) -> Int64:
    """Return requests by bin, in as many passes as needed: Poisson noise around the profile's counts."""
    cumulative = np.cumsum(arrivals.counts)
    total, per_pass = int(cumulative[-1]), len(cumulative)
    bins = np.zeros(-(-count // total) * per_pass, np.int64)
    for start in range(0, count, _BATCH):
        expected = draws.uniform(min(_BATCH, count - start)) * count
        passes = np.floor(expected / total).astype(np.int64)
        position = np.searchsorted(cumulative, expected - passes * total, side="right")
        # Rounding may carry a number over the very end.
        where = np.minimum(passes * per_pass + position, len(bins) - 1)
        bins += np.bincount(where, minlength=len(bins))
    return bins


def _share_of_last_bin(arrivals: Arrivals, count: int, last: int) -> float:
    """Return the share of its last bin that a trace of `count` requests covers."""
    cumulative = np.cumsum(arrivals.counts)
    inside = (count - 1) % int(cumulative[-1]) + 1
    here = int(np.searchsorted(cumulative, inside, side="left"))
    # By chance nothing may have fallen into that bin; then the last busy bin was covered in full.
    return (
        (inside - int(cumulative[here] - arrivals.counts[here])) / arrivals.counts[here]
        if here == last
        else 1.0
    )


def _batches(busy: Int64, counts: Int64) -> Iterator[Int64]:
    """Return runs of bins with about `_BATCH` requests together."""
    runs = np.cumsum(counts) // _BATCH
    yield from np.split(busy, np.flatnonzero(np.diff(runs)) + 1)


def _gaps(arrivals: Arrivals, count: int, draws: Draws) -> Int64:
    """Return gaps in millionths of the mean: any run of a bin's size has about the full distribution."""
    ranks = draws.along(np.arange(count))
    return np.rint(arrivals.gaps.at(ranks) * _GAP_UNIT).astype(np.int64)


def _spread(gaps: Int64, counts: Int64, opens: Float64, widths: Float64, turns: Float64) -> Int64:
    """Return microseconds of arrivals inside these bins: the gaps stretched to fill each bin.

    The gaps of a bin are a circle, as they were when measured, and turned by a random angle.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    last = np.cumsum(counts) - 1
    elapsed = np.cumsum(gaps)
    before = np.append(0, elapsed[last[:-1]])
    # A bin of only simultaneous requests has no gaps to stretch: all of it falls on one moment.
    totals = np.maximum(elapsed[last] - before, 1)
    angle = (elapsed - before[owner]) / totals[owner] + turns[owner]
    angle -= np.floor(angle)
    arrived_us: Int64 = np.rint((opens[owner] + angle * widths[owner]) * 1e6).astype(np.int64)
    arrived_us.sort()
    return arrived_us
