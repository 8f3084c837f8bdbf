"""How much came in time: within one limit, for every limit at once, and curves to draw."""

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

# So many limits, in equal ratios from the shortest gap to the longest, if nobody says which.
DEFAULT_LIMITS = 101
# For a replay without a single gap; any would do.
_NO_GAPS_MS = (1.0, 1000.0)
_PER_MS = 1000.0 / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Curve:
    """One value a limit; NaN where there was no gap, or no request that finished."""

    limits_ms: Float64
    token_attainment: Float64
    request_attainment: Float64
    goodput_tokens_per_s: Float64


def curve(
    outcome: Outcome, window: Window | None = None, limits_ms: Sequence[float] | Float64 | None = None
) -> Curve:
    """Token and request attainment and goodput as functions of the TBT limit, as `slo` in a summary has them.

    Of the whole replay without a window.
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
        """`slo.joint_attainment` for each TBT limit beside this one of TTFT; NaN without any request."""
        return self._shares(self.gaps[self.waits <= limit_ticks(ttft_ms)], limits_ms)

    def over_ttft(self, limits_ms: Float64, tbt_ms: float) -> Float64:
        """Return joint attainment for several TTFT limits and one TBT limit."""
        return self._shares(self.waits[self.gaps <= limit_ticks(tbt_ms)], limits_ms)

    def _shares(self, kept: Ticks, limits_ms: Float64) -> Float64:
        within = np.searchsorted(np.sort(kept), ticks(limits_ms / 1000), side="right")
        shares: Float64 = within / (len(self.waits) or np.nan)
        return shares


def joint(outcome: Outcome, window: Window | None = None) -> Joint:
    """What both limits together are held against. Of the whole replay without a window."""
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
    """(ms, share of the gaps that are not above it), rising, every value one that occurred, the last share 1.

    Every distinct gap if there are not more than `points`; else as many of them, half in the tail.
    """
    gaps = tbt(tokens_of(outcome), window)
    if not gaps.count:
        return np.zeros(0), np.zeros(0)
    values = gaps.support(points)
    at_ms = (values * _PER_MS).astype(np.float64)
    return at_ms, gaps.shares_at_most(values)


def worst_gaps(outcome: Outcome, tokens: Tokens, window: Window | None = None) -> tuple[Ticks, Ticks]:
    """When each request finished that did (in the window), and its longest gap: 0 if it made one token."""
    if outcome.tally is not None:  # whose gaps they are is not known
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    columns, stints = outcome.requests, outcome.stints
    lengths = [len(lane.end) for lane in tokens.lanes]
    base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # At base[j] + k the gap before iteration k of batch j; a stretch never asks for that of its first.
    gap = np.zeros(int(base[-1]), np.int64)
    for j, lane in enumerate(tokens.lanes):
        gap[base[j] + 1 : base[j + 1]] = np.diff(lane.end)
    worst = np.zeros(len(columns["finished_s"]), np.int64)
    whole = np.flatnonzero(columns["first_iteration"] >= 0)
    whole = whole[~np.isin(whole, stints["request"])]
    worst[whole] = _longest(gap, base, columns["batch"][whole], *_span(columns, whole))
    every = np.arange(len(stints["request"]))
    inside = _longest(gap, base, stints["batch"], *_span(stints, every))
    np.maximum.at(worst, stints["request"], inside)
    np.maximum.at(worst, tokens.alone.request, tokens.alone.gap)
    rows = _finished(outcome, window)
    return ticks(columns["finished_s"][rows]), worst[rows]


def _finished(outcome: Outcome, window: Window | None) -> NDArray[np.int64]:
    """The requests that finished (in the window)."""
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
    """The longest gap between the iterations `first` and `last` of these batches, 0 where they are one.

    Ranges of every length by maxima over powers of two: one array at a time, doubled as lengths grow.
    """
    found = np.zeros(len(first), np.int64)
    begin, length = base[batch] + first + 1, last - first
    highest, width = gap, 1
    levels = np.frexp(length)[1] - 1  # floor(log2(length)), -1 for 0
    for power in range(int(levels.max(initial=-1)) + 1):
        if power:
            highest = np.maximum(highest[:-width], highest[width:])
            width *= 2
        mine = np.flatnonzero(levels == power)
        start = begin[mine]
        found[mine] = np.maximum(highest[start], highest[start + length[mine] - width])
    return found


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
    """Share of the gaps that are within the limit; None without any."""
    return gaps.at_most(limit) / gaps.count if gaps.count else None


def in_time(produced: int, gaps: Distribution, limit: int) -> int:
    """Goodput: the produced tokens that were not late. First tokens have no gap to be late by."""
    return produced - (gaps.count - gaps.at_most(limit))


def request_attainment(
    outcome: Outcome, tokens: Tokens, limit: int, window: Window | None = None
) -> float | None:
    """Share of the requests (that finished in the window) all of whose gaps were within the limit."""
    return requests_in_time(outcome, tokens, limit, window).share


class InTime(NamedTuple):
    """Requests that finished, those that kept the limit on gaps, and those that kept both limits."""

    finished: int
    gaps: int
    both: int

    @property
    def share(self) -> float | None:
        """Share of finished requests that kept the limit on gaps; None without any."""
        return self.gaps / self.finished if self.finished else None


def requests_in_time(
    outcome: Outcome,
    tokens: Tokens,
    limit: int,
    window: Window | None = None,
    first_token: int | None = None,
) -> InTime:
    """The requests that finished (in the window), by which limits, in ticks, they kept throughout."""
    columns = outcome.requests
    late, base = _late_before(tokens, limit)
    apart, missed = _missed_apart(outcome, tokens, limit, late, base)
    finished = attained = both = 0
    for rows in chunks(len(columns["finished_s"])):
        some = rows.start + np.flatnonzero(np.isfinite(columns["finished_s"][rows]))
        if window is not None:
            at = ticks(columns["finished_s"][some])
            some = some[(at > window.start) & (at <= window.end)]
        finished += len(some)
        kept = np.zeros(0, np.int64)
        if len(apart):
            kept = some[apart[some] & ~missed[some]]
            some = some[~apart[some]]
        offset = base[columns["batch"][some]]
        first, last = offset + columns["first_iteration"][some], offset + columns["last_iteration"][some]
        kept = np.concatenate([kept, some[late[first] == late[last]]])
        attained += len(kept)
        if first_token is not None:
            waited = ticks(columns["first_token_s"][kept]) - ticks(offered_s(outcome)[kept])
            both += int(np.count_nonzero(waited <= first_token))
    return InTime(finished, attained, both)


def _late_before(tokens: Tokens, limit: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """At base[j] + k: how many iterations of batch j, up to k, ended too long after the one before."""
    lengths = [len(lane.end) for lane in tokens.lanes]
    base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    late = np.zeros(int(base[-1]), np.int32)
    for j, lane in enumerate(tokens.lanes):
        np.cumsum(np.diff(lane.end) > limit, out=late[base[j] + 1 : base[j + 1]])
    return late, base


def _missed_apart(
    outcome: Outcome, tokens: Tokens, limit: int, late: NDArray[np.int32], base: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which requests have gaps by themselves, and which of them a late token; empty if none has.

    Where a request ran in stints its first and last iteration may be of different batches. One that only a
    client saw has no iterations.
    """
    stints, requests = outcome.stints, len(outcome.requests["finished_s"])
    seen = outcome.chunks is not None
    if not seen and not len(stints["request"]) and outcome.pool is None:
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    apart, missed = np.full(requests, seen), np.zeros(requests, np.bool_)
    apart[stints["request"]] = True
    if outcome.pool is not None:
        # All of them have been elsewhere first, and some made their only token there.
        columns, whole = outcome.requests, np.flatnonzero(~apart & (outcome.requests["last_iteration"] >= 0))
        offset = base[columns["batch"][whole]]
        first, last = (offset + columns[name][whole] for name in ("first_iteration", "last_iteration"))
        missed[whole] = late[first] != late[last]
        apart[:] = True
    offset = base[stints["batch"]]
    within = late[offset + stints["first_iteration"]] != late[offset + stints["last_iteration"]]
    missed[stints["request"][within]] = True
    missed[tokens.alone.request[tokens.alone.gap > limit]] = True
    return apart, missed
