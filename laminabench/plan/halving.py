"""Successive halving: who is clearly beaten on a small part of the trace is not replayed on a larger one.

A heuristic, unlike the bounds: a part of a trace is not the trace. Hence the margins, and that only places
on the front away from the winner are decided by it. Not for open replays: how much comes changes over time,
so that no part of such a trace is like the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from laminabench.plan import stages
from laminabench.plan.candidate import Candidate
from laminabench.plan.measure import Point
from laminabench.plan.stages import Stage
from laminabench.traces.table import Trace

# Of the trace's requests, one in so many.
SHARES = (16, 4)
# A smaller part says nothing, and costs nearly as much to set up as all.
FEWEST_REQUESTS = 500
# So often must a sample fill the batches of a candidate to say anything about it: they begin empty.
FEWEST_TURNS = 3
# How far samples of one trace were off against each other, whole traces being right: 15 % of throughput and
# 22 % of TBT between the two worst of 788 candidates on three traces, with one in 16 requests.
COST_MARGIN, TBT_MARGIN = 1.15, 1.22
SEED = 0


def undominated_on_samples(
    stage: Stage, rivals: Sequence[Candidate], known: Sequence[Candidate], jobs: int | None
) -> list[bool]:
    """Which rivals may be on the front with the known ones, judged by parts of the trace."""
    kept = [True] * len(rivals)
    for share in SHARES:
        part = part_of(stage.trace, share)
        left = [i for i, keep in enumerate(kept) if keep]
        if part is None or not left:
            continue
        some = [*(rivals[i] for i in left), *known]
        found = stages.points(replace(stage, trace=part), some, jobs, lambda _: None)
        telling = [point for point in found if point.mean_batch * FEWEST_TURNS <= len(part)]
        for i, point in zip(left, found, strict=False):
            kept[i] = point not in telling or not any(_beats(other, point) for other in telling)
    return kept


def part_of(trace: Trace, share: int) -> Trace | None:
    """One in `share` requests, at random; None if that is too few."""
    size = len(trace) // share
    if size < FEWEST_REQUESTS:
        return None
    drawn = np.random.Generator(np.random.PCG64(SEED)).permutation(len(trace))[:size]
    return trace.take(np.sort(drawn))


def _beats(one: Point, other: Point) -> bool:
    """Better in both by more than a sample is off."""
    cheaper = one.usd_per_million_tokens * COST_MARGIN <= other.usd_per_million_tokens
    return cheaper and one.tbt_p99_ms * TBT_MARGIN <= other.tbt_p99_ms
