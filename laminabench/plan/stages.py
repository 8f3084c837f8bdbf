"""The work of a search that is done in many processes: bounds and replays of some candidates at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from laminabench.plan.bounds import (
    Bound,
    Why,
    bound,
    bound_of_arrivals,
    bound_with_pool,
    falls_behind,
    room_of,
)
from laminabench.plan.demand import Demand, demand_of
from laminabench.plan.early import misses
from laminabench.plan.measure import Point, cluster, measure
from laminabench.plan.question import Candidate, Question, Slo
from laminabench.sim.spec import Spec
from laminabench.spread import cores, spread
from laminabench.systems.registry import MODULES, system
from laminabench.traces.table import Trace

Judged = TypeVar("Judged")
Told = Callable[[int], None]

# So that one that takes longer does not keep the others waiting at the end.
CHUNKS_PER_CORE = 4
# Below so many seconds of work, by rough guess, other processes take longer to begin than they save.
WORTH_SPREADING_S = 1.5
BUILD_S, REQUEST_S = 1.5e-3, 0.5e-6


@dataclass(frozen=True, slots=True)
class Stage:
    """What the work on all candidates has in common: the trace may be a sample."""

    question: Question
    trace: Trace
    demands: dict[tuple[int, int], Demand]  # by block size, and what each request has beside its tokens

    def demand(self, block_tokens: int, request_tokens: int = 0) -> Demand:
        key, question = (block_tokens, request_tokens), self.question
        if key not in self.demands:
            waiting_s = question.slo_queueing_p99_s
            self.demands[key] = demand_of(self.trace, *key, waiting_s, prompts=question.prompts)
        return self.demands[key]

    def cluster(self, candidate: Candidate) -> Spec | None:
        """With tables no longer than the batches that memory has room for: the same replay, made sooner.

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
    """The whole trace, for the block sizes that systems have."""
    blocks = {system(name).BLOCK_TOKENS for name in MODULES}
    stage = Stage(question, question.trace, {})
    for block in sorted(blocks):
        stage.demand(block)
    return stage


def bounds(stage: Stage, some: Sequence[Candidate], jobs: int | None, told: Told) -> list[Bound | Why]:
    """How good each could be, or why it cannot be at all."""
    return _everywhere(_bound, stage, some, jobs, BUILD_S, told)


def points(stage: Stage, some: Sequence[Candidate], jobs: int | None, told: Told) -> list[Point]:
    """Each replayed; all of them fit."""
    return _everywhere(_point, stage, some, jobs, _replay_s(stage), told)


def points_unless_missed(
    stage: Stage, slo: Slo, some: Sequence[Candidate], jobs: int | None, told: Told
) -> list[Point | None]:
    """The same of an open trace, but None where a limit is missed early on."""
    return _everywhere(partial(_point_unless_missed, slo), stage, some, jobs, _replay_s(stage), told)


def _replay_s(stage: Stage) -> float:
    return BUILD_S + len(stage.trace) * REQUEST_S


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


def _point(stage: Stage, candidate: Candidate) -> Point:
    return measure(stage.question, stage.trace, candidate, _fitting(stage, candidate))


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


def _everywhere(
    work: Callable[[Stage, Candidate], Judged],
    stage: Stage,
    some: Sequence[Candidate],
    jobs: int | None,
    seconds_each: float,
    told: Told,
) -> list[Judged]:
    """`work` of all of them, in their order, on as many cores as it is worth."""
    if len(some) * seconds_each < WORTH_SPREADING_S:
        jobs = 1
    wanted = 1 if jobs == 1 else CHUNKS_PER_CORE * (jobs or cores())
    # Neighbours are much alike and take as long: dealt out, every chunk has some of each.
    chunks = [chunk for start in range(wanted) if (chunk := some[start::wanted])]
    found: dict[int, Judged] = {}
    for index, judged in spread(partial(_all_of, work), chunks, stage, jobs=jobs):
        found.update(zip(range(index, len(some), wanted), judged, strict=True))
        told(len(judged))
    return [found[index] for index in range(len(some))]
