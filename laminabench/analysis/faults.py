"""The cost of each fault of a live replay: time to notice and to recover, the dip, the goodput lost.

A fault *began* when one of its workers was struck (`--chaos`), otherwise when it was noticed. The state
*before* it is taken from the last iterations that ended before it began, up to BEFORE of them since the
previous fault was over: the median of their tokens' gaps, and tokens within the limit a second. It is *over*
with the first iteration that begins after the engine resumed and whose tokens' gap is at most BACK times that
median; if there is none, with the end of the replay or the beginning of the next fault. Goodput lost is the
tokens expected within the limit from the beginning to then (at the rate before, at most what was left to be
made), less the actual ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.attainment import limit_ticks
from laminabench.analysis.distribution import distribution
from laminabench.runs.summary import FaultCost, FaultsInAll, InjectedFault
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import TICKS_PER_S, Ticks, ticks
from laminabench.util.live_progress import FaultEvent

# Iterations that define what was normal.
BEFORE = 100
# A gap of so many times the median is normal again.
BACK = 1.5
_PER_MS = 1000.0

_Dip = dict[str, float | None]  # FaultCost's fields on the time between tokens


class _Gaps:
    """The iterations of all batches in the order of their ends, with the gap of their tokens."""

    def __init__(self, outcome: Outcome) -> None:
        rows = outcome.iterations
        start = ticks(rows["start_s"])
        end = start + ticks(rows["duration_s"])
        last = np.full(len(end), -1, np.int64)  # when the batch's iteration before it ended
        for batch in np.unique(rows["batch"]).tolist():
            rows_of_batch = np.flatnonzero(rows["batch"] == batch)
            last[rows_of_batch[1:]] = end[rows_of_batch[:-1]]
        order = np.argsort(end, kind="stable")
        self.start: Ticks = start[order]
        self.end: Ticks = end[order]
        self.last: Ticks = last[order]
        self.size: NDArray[np.int64] = rows["size"][order].astype(np.int64)
        stayed = (rows["size"] - rows["joined"])[order].astype(np.int64)
        self.stayed: NDArray[np.int64] = np.where(self.last < 0, 0, stayed)
        self.gap: Ticks = self.end - self.last

    def median(self, rows: NDArray[np.int64]) -> int | None:
        """Return the median gap of all tokens of these iterations."""
        some = rows[self.stayed[rows] > 0]
        return distribution(self.gap[some], self.stayed[some]).percentile(500)

    def good(self, rows: NDArray[np.int64], limit: int) -> int:
        """Return the tokens that were not late; first tokens have no gap and are never late."""
        late = self.stayed[rows][self.gap[rows] > limit]
        return int(self.size[rows].sum() - late.sum())


def faults_of(
    outcome: Outcome, faults: Sequence[FaultEvent], strikes: Sequence[FaultEvent], slo_tbt_ms: float
) -> list[FaultCost]:
    gaps, limit = _Gaps(outcome), limit_ticks(slo_tbt_ms)
    causes = _causes(faults, strikes)
    began = [
        min([int(ticks(event.at_s)) for event in cause], default=int(ticks(fault.at_s)))
        for fault, cause in zip(faults, causes, strict=True)
    ]
    rows, over = [], 0
    for place, fault in enumerate(faults):
        until = began[place + 1] if place + 1 < len(faults) else int(ticks(outcome.end_s))
        dip, over = _cost(gaps, fault, began[place], over, max(until, began[place]), limit)
        cause = causes[place]
        detection_s = fault.at_s - min(each.at_s for each in cause) if cause else None
        rows.append(
            FaultCost(
                workers=list(fault.workers),
                why=fault.why,
                struck=[
                    InjectedFault(worker=each.workers[0], how=each.struck or "", at_s=each.at_s)
                    for each in cause
                ],
                noticed_s=fault.at_s,
                detection_s=detection_s,
                recovery_s=fault.recovered_s - fault.at_s,
                **dip,
                requests=fault.requests,
                kv_tokens=fault.kv_tokens,
            )
        )
    return rows


def in_all(rows: Sequence[FaultCost], strikes: Sequence[FaultEvent], planned: int) -> FaultsInAll:
    """Return the worst and the sum of all faults."""

    def worst(name: str) -> float | None:
        return max((value for row in rows if (value := getattr(row, name)) is not None), default=None)

    return FaultsInAll(
        faults=len(rows),
        strikes=len(strikes),
        strikes_planned=planned,
        **{name: worst(name) for name in ("detection_s", "recovery_s", "normal_again_s", "tbt_worst_ms")},
        goodput_lost_tokens=sum(row.goodput_lost_tokens or 0.0 for row in rows),
        kv_tokens=sum(row.kv_tokens for row in rows),
    )


def _causes(faults: Sequence[FaultEvent], strikes: Sequence[FaultEvent]) -> list[list[FaultEvent]]:
    """Return the injected faults behind each fault: on its workers, before it was noticed, used once."""
    left, causes = sorted(strikes, key=lambda event: event.at_s), []
    for fault in faults:
        own = [each for each in left if each.workers[0] in fault.workers and each.at_s <= fault.at_s]
        left = [each for each in left if each not in own]
        causes.append(own)
    return causes


def _cost(gaps: _Gaps, fault: FaultEvent, began: int, over: int, until: int, limit: int) -> tuple[_Dip, int]:
    """Return the dip and its cost (None where unknown), and when the fault was over.

    `over` is when the previous fault was over.
    """
    noticed, resumed = int(ticks(fault.at_s)), int(ticks(fault.recovered_s))
    before = np.flatnonzero((gaps.end <= began) & (gaps.start >= over))[-BEFORE:]
    median = gaps.median(before)
    spans = (gaps.stayed > 0) & (gaps.last < resumed) & (gaps.end > began)
    worst = int(gaps.gap[spans].max()) if spans.any() else None
    if median is None:
        return _dip(None, None, worst, None), max(over, resumed)
    normal = np.flatnonzero((gaps.start >= resumed) & (gaps.stayed > 0) & (gaps.gap <= BACK * median))
    end, normal_again_s = max(until, resumed), None
    if len(normal) and int(gaps.end[normal[0]]) <= end:
        end = int(gaps.end[normal[0]])
        normal_again_s = (end - noticed) / TICKS_PER_S
    during = np.flatnonzero((gaps.end > began) & (gaps.end <= end))
    span = int(gaps.end[before[-1]] - gaps.start[before[0]])
    rate = gaps.good(before, limit) / span if span else 0.0
    # Not more than was left to be made, whatever a burst before it promised.
    would = min(rate * (end - began), float(gaps.size[gaps.end > began].sum()))
    lost = max(0.0, would - gaps.good(during, limit))
    return _dip(normal_again_s, median, worst, lost), end


def _dip(again_s: float | None, before: int | None, worst: int | None, lost: float | None) -> _Dip:
    before_ms, worst_ms = (None if gap is None else gap * _PER_MS / TICKS_PER_S for gap in (before, worst))
    gaps_ms = {"tbt_before_ms": before_ms, "tbt_worst_ms": worst_ms}
    return {"normal_again_s": again_s, **gaps_ms, "goodput_lost_tokens": lost}
