"""Attainment and goodput: within one limit, for every limit at once, and curves to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.distribution import Distribution, chunks, distribution
from laminabench.analysis.rates import offered_s, per_second, produced
from laminabench.analysis.tbt import Tokens, tbt, tokens_of
from laminabench.analysis.window import whole_run
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import TICKS_PER_S, Float64, Ticks, ticks

# Limits of the default grid, spaced evenly on a log scale from the shortest gap to the longest.
DEFAULT_LIMITS = 101
# For a replay without a single gap; any would do.
_NO_GAPS_MS = (1.0, 1000.0)
_PER_MS = 1000.0 / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Curve:
    """Attainment and goodput by TBT limit; NaN where there was no gap, or no request that finished."""

    limits_ms: Float64
    token_attainment: Float64
    request_attainment: Float64
    goodput_tokens_per_s: Float64


def curve(
    outcome: Outcome, window: Window | None = None, limits_ms: Sequence[float] | Float64 | None = None
) -> Curve:
    """Return token and request attainment and goodput by TBT limit, defined as in a summary's `slo`.

    Without a window, the full replay counts.
    """
    tokens = tokens_of(outcome)
    gaps = tbt(tokens, window)
    limits = _default_limits_ms(gaps) if limits_ms is None else np.asarray(limits_ms, np.float64)
    at = ticks(limits / 1000)
    in_tokens = gaps.shares_at_most(at)
    within = whole_run(outcome) if window is None else window
    made = produced(outcome, within)
    late = np.nan_to_num(gaps.count * (1.0 - in_tokens))
    per_s = per_second(1.0, within)
    goodput = np.full(len(at), np.nan) if per_s is None else np.rint(made - late) * per_s
    worst = distribution(worst_gaps(outcome, tokens, window)[1])
    return Curve(limits, in_tokens, worst.shares_at_most(at), goodput)


@dataclass(frozen=True, slots=True)
class Joint:
    """The wait for the first token and the longest gap of each request that finished in the window."""

    waits: Ticks
    gaps: Ticks

    def over_tbt(self, limits_ms: Float64, ttft_ms: float) -> Float64:
        """Return joint attainment for several TBT limits and one TTFT limit; NaN without any request."""
        return self._shares(self.gaps[self.waits <= limit_ticks(ttft_ms)], limits_ms)

    def over_ttft(self, limits_ms: Float64, tbt_ms: float) -> Float64:
        """Return joint attainment for several TTFT limits and one TBT limit."""
        return self._shares(self.waits[self.gaps <= limit_ticks(tbt_ms)], limits_ms)

    def _shares(self, within_other: Ticks, limits_ms: Float64) -> Float64:
        within = np.searchsorted(np.sort(within_other), ticks(limits_ms / 1000), side="right")
        shares: Float64 = within / (len(self.waits) or np.nan)
        return shares


def joint(outcome: Outcome, window: Window | None = None) -> Joint:
    """Return what joint attainment is computed from; of the full replay without a window."""
    rows = _finished(outcome, window)
    first_s, offered = outcome.requests["first_token_s"][rows], offered_s(outcome)[rows]
    # A server may end an answer without a token.
    made = np.isfinite(first_s)
    waits = np.full(len(rows), np.iinfo(np.int64).max)
    waits[made] = ticks(first_s[made]) - ticks(offered[made])
    if outcome.tally is not None:
        waits = waits[:0]
    return Joint(waits, worst_gaps(outcome, tokens_of(outcome), window)[1])


def cdf(outcome: Outcome, window: Window | None = None, points: int = 400) -> tuple[Float64, Float64]:
    """Return (ms, share of the gaps at or below it), ascending; all values occurred, the last share is 1.

    All distinct gaps if there are at most `points`; otherwise `points` of them, half in the tail.
    """
    gaps = tbt(tokens_of(outcome), window)
    if not gaps.count:
        return np.zeros(0), np.zeros(0)
    values = gaps.support(points)
    at_ms = (values * _PER_MS).astype(np.float64)
    return at_ms, gaps.shares_at_most(values)


def worst_gaps(outcome: Outcome, tokens: Tokens, window: Window | None = None) -> tuple[Ticks, Ticks]:
    """Return when each finished request (in the window) finished, and its longest gap (0 with one token)."""
    if outcome.tally is not None:  # a tally does not record which request a gap belongs to
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    columns, stints = outcome.requests, outcome.stints
    lengths = [len(lane.end) for lane in tokens.lanes]
    base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # At base[j] + k: the gap before iteration k of batch j. A request's first iteration needs none.
    gap = np.zeros(int(base[-1]), np.int64)
    for j, lane in enumerate(tokens.lanes):
        gap[base[j] + 1 : base[j + 1]] = np.diff(lane.end)
    worst = np.zeros(len(columns["finished_s"]), np.int64)
    unbroken = np.flatnonzero(columns["first_iteration"] >= 0)
    unbroken = unbroken[~np.isin(unbroken, stints["request"])]
    worst[unbroken] = _longest(gap, base, columns["batch"][unbroken], *_span(columns, unbroken))
    every = np.arange(len(stints["request"]))
    inside = _longest(gap, base, stints["batch"], *_span(stints, every))
    np.maximum.at(worst, stints["request"], inside)
    np.maximum.at(worst, tokens.alone.request, tokens.alone.gap)
    rows = _finished(outcome, window)
    return ticks(columns["finished_s"][rows]), worst[rows]


def _finished(outcome: Outcome, window: Window | None) -> NDArray[np.int64]:
    """Return the rows of requests that finished (in the window)."""
    finished_s = outcome.requests["finished_s"]
    rows = np.flatnonzero(np.isfinite(finished_s))
    if window is None:
        return rows
    at = ticks(finished_s[rows])
    return rows[(at > window.start) & (at <= window.end)]


def _span(columns: dict[str, NDArray[np.int64]], rows: NDArray[np.int64]) -> tuple[Ticks, Ticks]:
    first, last = (columns[name][rows].astype(np.int64) for name in ("first_iteration", "last_iteration"))
    return first, last


def _longest(
    gap: Ticks, base: NDArray[np.int64], batch: NDArray[np.int32], first: Ticks, last: Ticks
) -> Ticks:
    """Return the longest gap between iterations `first` and `last` of these batches, 0 where they are equal.

    A range-maximum query by powers of two (sparse table); only one level is in memory at a time.
    """
    longest = np.zeros(len(first), np.int64)
    begin, length = base[batch] + first + 1, last - first
    highest, width = gap, 1
    levels = np.frexp(length)[1] - 1  # floor(log2(length)), -1 for 0
    for power in range(int(levels.max(initial=-1)) + 1):
        if power:
            highest = np.maximum(highest[:-width], highest[width:])
            width *= 2
        level = np.flatnonzero(levels == power)
        start = begin[level]
        longest[level] = np.maximum(highest[start], highest[start + length[level] - width])
    return longest


def _default_limits_ms(gaps: Distribution) -> Float64:
    if not gaps.count:
        return np.geomspace(*_NO_GAPS_MS, DEFAULT_LIMITS)
    low, high = max(int(gaps.values[0]), 1) * _PER_MS, int(gaps.values[-1]) * _PER_MS
    limits = np.geomspace(low, max(low, high), DEFAULT_LIMITS)
    limits[-1] = max(low, high)  # rounding must not leave the longest gap out
    return limits


def limit_ticks(slo_tbt_ms: float) -> int:
    return int(ticks(slo_tbt_ms / 1000))


def token_attainment(gaps: Distribution, limit: int) -> float | None:
    """Return the share of the gaps that are within the limit; None without any."""
    return gaps.at_most(limit) / gaps.count if gaps.count else None


def in_time(produced: int, gaps: Distribution, limit: int) -> int:
    """Return goodput: produced tokens that were not late. First tokens have no gap and are never late."""
    return produced - (gaps.count - gaps.at_most(limit))


def request_attainment(
    outcome: Outcome, tokens: Tokens, limit: int, window: Window | None = None
) -> float | None:
    """Return the share of finished requests (in the window) all of whose gaps were within the limit."""
    return requests_in_time(outcome, tokens, limit, window).share


class InTime(NamedTuple):
    """Requests that finished, those within the limit on gaps, and those within both limits."""

    finished: int
    gaps: int
    both: int

    @property
    def share(self) -> float | None:
        """Share of finished requests within the limit on gaps; None without any."""
        return self.gaps / self.finished if self.finished else None


def requests_in_time(
    outcome: Outcome,
    tokens: Tokens,
    limit: int,
    window: Window | None = None,
    first_token: int | None = None,
) -> InTime:
    """Count the requests that finished (in the window) and those within the limits (in ticks) throughout."""
    columns = outcome.requests
    late, base = _late_before(tokens, limit)
    own_gaps, missed = _missed_by_own_gaps(outcome, tokens, limit, late, base)
    finished = attained = both = 0
    for rows in chunks(len(columns["finished_s"])):
        some = rows.start + np.flatnonzero(np.isfinite(columns["finished_s"][rows]))
        if window is not None:
            at = ticks(columns["finished_s"][some])
            some = some[(at > window.start) & (at <= window.end)]
        finished += len(some)
        met = np.zeros(0, np.int64)
        if len(own_gaps):
            met = some[own_gaps[some] & ~missed[some]]
            some = some[~own_gaps[some]]
        offset = base[columns["batch"][some]]
        first, last = offset + columns["first_iteration"][some], offset + columns["last_iteration"][some]
        met = np.concatenate([met, some[late[first] == late[last]]])
        attained += len(met)
        if first_token is not None:
            waited = ticks(columns["first_token_s"][met]) - ticks(offered_s(outcome)[met])
            both += int(np.count_nonzero(waited <= first_token))
    return InTime(finished, attained, both)


def _late_before(tokens: Tokens, limit: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return, at base[j] + k, how many iterations of batch j up to k were late after their predecessor."""
    lengths = [len(lane.end) for lane in tokens.lanes]
    base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    late = np.zeros(int(base[-1]), np.int32)
    for j, lane in enumerate(tokens.lanes):
        np.cumsum(np.diff(lane.end) > limit, out=late[base[j] + 1 : base[j + 1]])
    return late, base


def _missed_by_own_gaps(
    outcome: Outcome, tokens: Tokens, limit: int, late: NDArray[np.int32], base: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which requests have gaps of their own, and which of them a late token; empty if none has.

    Where a request ran in stints its first and last iteration may be of different batches. One that only a
    client saw has no iterations.
    """
    stints, requests = outcome.stints, len(outcome.requests["finished_s"])
    from_client = outcome.chunks is not None
    if not from_client and not len(stints["request"]) and outcome.pool is None:
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    own_gaps, missed = np.full(requests, from_client), np.zeros(requests, np.bool_)
    own_gaps[stints["request"]] = True
    if outcome.pool is not None:
        # All requests were in the prompt pool first, and some made their only token there.
        columns = outcome.requests
        unbroken = np.flatnonzero(~own_gaps & (columns["last_iteration"] >= 0))
        offset = base[columns["batch"][unbroken]]
        first, last = (offset + columns[name][unbroken] for name in ("first_iteration", "last_iteration"))
        missed[unbroken] = late[first] != late[last]
        own_gaps[:] = True
    offset = base[stints["batch"]]
    within = late[offset + stints["first_iteration"]] != late[offset + stints["last_iteration"]]
    missed[stints["request"][within]] = True
    missed[tokens.alone.request[tokens.alone.gap > limit]] = True
    return own_gaps, missed
