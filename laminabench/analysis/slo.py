"""How much of what was served came in time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.distribution import Distribution
from laminabench.analysis.exact import chunks
from laminabench.analysis.tbt import Tokens
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import ticks


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
    columns = outcome.requests
    late, base = _late_before(tokens, limit)
    apart, missed = _missed_apart(outcome, tokens, limit, late, base)
    finished = attained = 0
    for rows in chunks(len(columns["finished_s"])):
        some = rows.start + np.flatnonzero(np.isfinite(columns["finished_s"][rows]))
        if window is not None:
            at = ticks(columns["finished_s"][some])
            some = some[(at > window.start) & (at <= window.end)]
        finished += len(some)
        if len(apart):
            attained += int(np.count_nonzero(apart[some] & ~missed[some]))
            some = some[~apart[some]]
        offset = base[columns["batch"][some]]
        first, last = offset + columns["first_iteration"][some], offset + columns["last_iteration"][some]
        attained += int(np.count_nonzero(late[first] == late[last]))
    return attained / finished if finished else None


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
    if not seen and not len(stints["request"]):
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    apart, missed = np.full(requests, seen), np.zeros(requests, np.bool_)
    apart[stints["request"]] = True
    offset = base[stints["batch"]]
    within = late[offset + stints["first_iteration"]] != late[offset + stints["last_iteration"]]
    missed[stints["request"][within]] = True
    missed[tokens.alone.request[tokens.alone.gap > limit]] = True
    return apart, missed
