"""The work of a search that is done in many processes: bounds and replays of some candidates at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from laminabench.analysis.tbt import tbt, tokens_of
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import TICKS_PER_S, Spec, ticks
from laminabench.systems.registry import MODULES, system
from laminabench.traces.table import Trace
from laminabench.util.parallel import WorkerPool, cores, worker_pool
from laminabench.workflows.plan.bounds import (
    Bound,
    Why,
    bound,
    bound_of_arrivals,
    bound_with_pool,
    falls_behind,
    room_of,
)
from laminabench.workflows.plan.demand import Demand, demand_of
from laminabench.workflows.plan.measure import Point, cluster, measure
from laminabench.workflows.plan.question import Candidate, Question, Slo

Judged = TypeVar("Judged")
Report = Callable[[int], None]

# So that one that takes longer does not keep the others waiting at the end.
CHUNKS_PER_CORE = 4
# Below so many seconds of work, by rough guess, other processes take longer to begin than they save.
WORTH_SPREADING_S = 1.5
BUILD_S, REQUEST_S = 1.5e-3, 0.5e-6

# A smaller part of a trace says nothing, and costs nearly as much to set up as all.
FEWEST_REQUESTS = 500
# First parts of an open trace in which it may miss a limit, one in so many requests: a third of a replay more
# for candidates that pass both.
PARTS = (16, 4)
SEED = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """The data shared by the work on all candidates."""

    question: Question
    demands: dict[tuple[int, int], Demand]  # by block size and tokens charged per request its tokens
    parts: dict[int, Trace | None]  # by share

    @property
    def trace(self) -> Trace:
        return self.question.trace

    def part(self, share: int) -> Trace | None:
        """Return a random one in `share` requests; None if too few. All of them stay as they are."""
        if share not in self.parts:
            drawn = np.random.Generator(np.random.PCG64(SEED)).permutation(len(self.trace))
            size = len(self.trace) // share
            self.parts[share] = self.trace.take(np.sort(drawn[:size])) if size >= FEWEST_REQUESTS else None
        return self.parts[share]

    def demand(self, block_tokens: int, request_tokens: int = 0) -> Demand:
        key, question = (block_tokens, request_tokens), self.question
        if key not in self.demands:
            waiting_s = question.slo_queueing_p99_s
            self.demands[key] = demand_of(self.trace, *key, waiting_s, prompts=question.prompts)
        return self.demands[key]

    def cluster(self, candidate: Candidate) -> Spec | None:
        """Return the cluster with tables limited to batches that fit in memory: the same replay, faster.

        All of the devices' memory is more than KV ever gets. A board has no tables; with prompts they are as
        long as the budget of tokens.
        """
        own = system(candidate.system)
        if not own.TABLES or candidate.prompt_budget:
            return cluster(self.question, candidate)
        part = candidate.deployment.attention or candidate.deployment.model
        tokens = part.memory_bytes / self.question.model.kv_bytes_per_token
        most = max(1, self.demand(1).can_run(tokens))
        # A power of two, so that many candidates have the same tables.
        most = 1 << (most - 1).bit_length()
        return cluster(self.question, candidate, min(most, own.most_requests(candidate.deployment)))


def stage_of(question: Question) -> Stage:
    """Return the full trace's stage, for the block sizes that systems have."""
    blocks = {system(name).BLOCK_TOKENS for name in MODULES}
    stage = Stage(question, {}, {1: question.trace})
    for block in sorted(blocks):
        stage.demand(block)
    return stage


class Team:
    """The worker processes of a search, which live until its end.

    Tables that they have computed for a candidate's devices are reused for the next one.
    """

    def __init__(self, stage: Stage, of_workers: WorkerPool, jobs: int) -> None:
        self.stage = stage
        self._workers = of_workers
        self._chunks = 1 if jobs == 1 else CHUNKS_PER_CORE * jobs

    def bounds(self, some: Sequence[Candidate], report: Report) -> list[Bound | Why]:
        """Return the bounds of each, or why it is impossible."""
        return self._everywhere(_bound, some, report)

    def points(self, some: Sequence[Candidate], report: Report, share: int = 1) -> list[Point]:
        """Replay each on the trace, or on one in `share` of its requests; all of them fit."""
        return self._everywhere(partial(_point, share), some, report)

    def points_unless_missed(self, slo: Slo, some: Sequence[Candidate], report: Report) -> list[Point | None]:
        """Replay each on an open trace; None if a limit is missed early on."""
        return self._everywhere(partial(_point_unless_missed, slo), some, report)

    def _everywhere(
        self, work: Callable[[Stage, Candidate], Judged], some: Sequence[Candidate], report: Report
    ) -> list[Judged]:
        """Return `work` of all of them, in their order."""
        # Neighbours are similar and take equally long: interleaved, every chunk has some of each.
        chunks = [chunk for start in range(self._chunks) if (chunk := some[start :: self._chunks])]
        results: dict[int, Judged] = {}
        for index, judged in self._workers(partial(_all_of, work), chunks):
            results.update(zip(range(index, len(some), self._chunks), judged, strict=True))
            report(len(judged))
        return [results[index] for index in range(len(some))]


def jobs_for(replays: int, trace: Trace, jobs: int | None) -> int | None:
    """Return the number of processes: at most so many, or one where more would not be worth it."""
    return 1 if replays * (BUILD_S + len(trace) * REQUEST_S) < WORTH_SPREADING_S else jobs


@contextmanager
def team(stage: Stage, candidates: int, jobs: int | None = None) -> Iterator[Team]:
    """Yield a team for a search among so many, on as many cores as it is worth."""
    jobs = jobs_for(candidates, stage.trace, jobs)
    with worker_pool(stage, jobs=jobs) as workers:
        yield Team(stage, workers, jobs or cores())


def _bound(stage: Stage, candidate: Candidate) -> Bound | Why:
    question = stage.question
    spec = stage.cluster(candidate)
    if spec is None:
        return "does_not_fit"
    demand, room = stage.demand(spec.block_tokens, spec.request_tokens), room_of(spec)
    if demand.longest > room.pool_tokens:
        return "too_small"
    if spec.pool is not None:
        return bound_with_pool(spec, spec.pool, demand, question.slo_queueing_p99_s, question.mode)
    if question.mode == "saturate":
        return bound(spec, demand, room)
    if falls_behind(spec, demand, room, question.slo_queueing_p99_s):
        return "falls_behind"
    return bound_of_arrivals(spec, demand, room)


def _point(share: int, stage: Stage, candidate: Candidate) -> Point:
    trace = stage.part(share)
    assert trace is not None
    return measure(stage.question, trace, candidate, _fitting(stage, candidate))


def _point_unless_missed(slo: Slo, stage: Stage, candidate: Candidate) -> Point | None:
    spec = _fitting(stage, candidate)
    if misses(stage.trace, spec, slo):
        return None
    return measure(stage.question, stage.trace, candidate, spec)


def _fitting(stage: Stage, candidate: Candidate) -> Spec:
    spec = stage.cluster(candidate)
    assert spec is not None
    return spec


def _all_of(
    work: Callable[[Stage, Candidate], Judged], stage: Stage, some: Sequence[Candidate]
) -> list[Judged]:
    return [work(stage, each) for each in some]


def misses(trace: Trace, spec: Spec, slo: Slo) -> bool:
    """Return whether more are late in one of the parts than may be in the full trace.

    The next request is unknown to the scheduler: until then the part's replay is the whole trace's.
    """
    return any(_misses(trace, len(trace) // part, spec, slo) for part in PARTS if len(trace) >= part)


def _misses(trace: Trace, requests: int, spec: Spec, slo: Slo) -> bool:
    outcome = simulate(trace.first(requests), spec, Offered("open"))
    until_s = float(trace.arrival_s[requests])
    gaps = tbt(tokens_of(outcome), Window(start_s=0.0, end_s=until_s, kind="arrivals"))
    most_gaps = int(np.sum(trace.output_tokens, dtype=np.int64)) - len(trace)
    return (
        gaps.count - gaps.at_most(_ticks(slo.tbt_s)) > most_gaps // 100
        or _late(outcome, "first_token_s", until_s, slo.ttft_s) > len(trace) // 100
        or _late(outcome, "admitted_s", until_s, slo.queueing_s) > len(trace) // 100
    )


def _late(outcome: Outcome, moment: str, until_s: float, limit_s: float) -> int:
    """Count requests that had waited for longer by then; rejected ones do not wait."""
    came_s = outcome.requests[moment]
    some = np.isfinite(came_s)
    waited = ticks(np.minimum(came_s[some], until_s)) - ticks(outcome.requests["arrival_s"][some])
    return int(np.count_nonzero(waited > _ticks(limit_s)))


def _ticks(limit_s: float) -> int:
    """Return the limit in ticks, so that no value above it is within."""
    return math.ceil(min(limit_s * TICKS_PER_S, 2.0**62))
