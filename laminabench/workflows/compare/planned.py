"""Sides that a plan chooses: the cheapest deployment of each system within the limits, under both loads."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from msgspec import structs

from laminabench.requests.compare import CompareRequest
from laminabench.requests.plan import PlanMode, PlanRequest
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.modelled.prepared import Routed
from laminabench.systems.registry import system
from laminabench.traces.table import Trace
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import Json
from laminabench.util.progress import SILENT, Listener
from laminabench.workflows.compare.cells import Cell, Placed, cell
from laminabench.workflows.compare.plan import Plan
from laminabench.workflows.compare.runs import request_of
from laminabench.workflows.compare.spec import ComparisonSpec, Deployed, fitting_everywhere
from laminabench.workflows.plan.answer import require_replayed, unmet
from laminabench.workflows.plan.measure import Point, order, winner
from laminabench.workflows.plan.question import Question
from laminabench.workflows.plan.request import ResolvedPlan, resolve
from laminabench.workflows.plan.search import SearchResult, search_each
from laminabench.workflows.plan.stages import SEED
from laminabench.workflows.replay import Workload
from laminabench.workflows.replay.run import load
from laminabench.workflows.verdict import LOADS

# Most requests of a trace that a search replays.
MOST_REQUESTS = 20_000
# Of a comparison, unless the user says; a replay's attainment has the same default.
SLO_TBT_MS = ReplayRequest().slo_tbt_ms


@dataclass(frozen=True, slots=True)
class Load:
    """The cheapest deployment of each system within the limits, where requests come in one way."""

    plan: ResolvedPlan
    question: Question
    costs_as_named: str
    best: Mapping[str, Point]
    unmet: Mapping[str, CheckFailedError]  # of systems without one: the limit that is missed, and the nearest
    result: SearchResult  # of all systems

    @property
    def name(self) -> str:
        return LOADS[self.question.mode]

    @property
    def winner(self) -> str:
        """The system with the cheapest tokens, which is plan's winner."""
        return min(self.best, key=lambda name: order(self.best[name]))

    def spec(self) -> ComparisonSpec:
        """Return what the replays of the chosen deployments have in common."""
        question, given = (
            self.question,
            {name: each.routed.instances for name, each in self.deployed().items()},
        )
        workload = Workload(
            question.mode, slo_tbt_ms=question.slo_tbt_p99_ms, slo_ttft_ms=question.slo_ttft_ms
        )
        ahead = tuple(given) if question.host_async else ()
        return ComparisonSpec(
            tuple(given),
            given=given,
            network=question.network,
            host_async=ahead,
            workload=workload,
            load=self.name,
        )

    def deployed(self) -> dict[str, Deployed]:
        return {
            name: Deployed(
                self.question.setup(point.candidate),
                Routed((point.candidate.deployment,) * point.candidate.instances),
            )
            for name, point in self.best.items()
        }

    def requests(self, common: ReplayRequest) -> dict[str, ReplayRequest]:
        """Return the replay of each chosen deployment as `laminabench replay` takes it."""
        common, spec = self.common(common), self.spec()
        return {name: request_of(name, each, spec, common) for name, each in self.deployed().items()}

    def common(self, replay: ReplayRequest) -> ReplayRequest:
        """Return the part that all replays have in common."""
        mode, costs = self.question.mode, self.costs_as_named
        # How prompts are computed is chosen for each.
        return structs.replace(replay, mode=mode, costs=costs, prefill=None, max_batched_tokens=None)

    def cell(self, trace: Trace, common: ReplayRequest | None, *, with_curves: bool) -> Cell:
        """Replay the chosen deployments on the whole trace."""
        question, chosen = self.question, self.deployed()
        # All of them hold the longest request that was searched with.
        fitting = trace if trace is question.trace else fitting_everywhere(trace, chosen)
        placement = Placed(chosen, chosen, fitting, len(trace) - len(fitting))
        common = common and self.common(common)
        spec, model, costs = self.spec(), question.model, question.costs
        return cell(spec, model, trace, costs, common=common, with_curves=with_curves, placement=placement)

    def describe(self, common: ReplayRequest) -> dict[str, Json]:
        """Return the choice for --json."""
        commands = {
            name: shlex.join(["laminabench", "replay", *request.arguments()])
            for name, request in self.requests(common).items()
        }
        chosen: dict[str, Any] = {
            name: {**point.row(), "replay": commands[name]} for name, point in self.best.items()
        }
        missed = {name: {"unmet": error.code, "why": str(error)} for name, error in self.unmet.items()}
        return {
            "load": self.name,
            "mode": self.question.mode,
            "costs": self.question.costs.name,
            "requests": len(self.question.trace),
            "winner": self.winner if self.best else None,
            "systems": {**chosen, **missed},
            "search": {"considered": self.result.considered, "counts": dict(self.result.counts)},
        }


def planned(
    request: CompareRequest,
    listener: Listener,
    traces: Sequence[Trace] | None,
    *,
    stored: bool,
    with_curves: bool,
) -> tuple[Plan, list[Cell], tuple[Load, ...]]:
    """Choose each system's deployment, and replay them, with `stored` as Runs.

    Cells are of the loads that the base serves. Curves are of the last one: of saturated deployments, where
    there are such.
    """
    replay = structs.replace(request.replay, **request.limits())
    trace = traces[0] if traces else load(structs.replace(replay, trace=request.trace[0]), listener)
    loads = choose(request, trace, listener)
    serving = [each for each in loads if each.best]
    base = _base(request, serving)
    serving = [each for each in serving if base in each.best]
    plan = Plan(request, base, serving[0].spec(), [], [], {}, [loads[0].plan.model], [trace])
    common = plan.replay if stored else None
    cells = [each.cell(trace, common, with_curves=with_curves and each is serving[-1]) for each in serving]
    return plan, cells, tuple(loads)


def choose(request: CompareRequest, trace: Trace, listener: Listener) -> list[Load]:
    """Search each system for its cheapest deployment; an error if no system has one within the limits."""
    part = busiest(trace)
    if len(part) < len(trace):
        what = "busiest" if trace.meta.has_arrivals else "random"
        listener.note(
            f"deployments are chosen by {len(part):,} of {len(trace):,} requests ({what}), then replay all"
        )
    loads = [
        load
        for place, mode in enumerate(_modes(request, trace))
        for load in _loads(_plan_of(request, mode), part, SILENT if place else listener, listener)
    ]
    if not any(each.best for each in loads):
        require_replayed(loads[0].question, loads[0].result)
        raise unmet(loads[0].question, loads[0].result)
    return loads


def busiest(trace: Trace) -> Trace:
    """Return the most requests that are searched with: in a row where they are busiest, or random ones."""
    if len(trace) <= MOST_REQUESTS:
        return trace
    if not trace.meta.has_arrivals:
        drawn = np.random.Generator(np.random.PCG64(SEED)).permutation(len(trace))
        return trace.take(np.sort(drawn[:MOST_REQUESTS]))
    spans = trace.arrival_s[MOST_REQUESTS - 1 :] - trace.arrival_s[: 1 - MOST_REQUESTS]
    return trace.take(np.arange(MOST_REQUESTS) + int(spans.argmin()))


def _base(request: CompareRequest, loads: Sequence[Load]) -> str:
    """Return the system that others are compared with, chosen for every load if there is such."""
    common = [name for name in loads[0].best if all(name in each.best for each in loads)]
    names = common or list(loads[0].best)
    if request.base is not None and request.base not in names:
        raise UserError(
            "compare-base-unknown",
            f"--base {request.base} is not among those that meet the limits: {', '.join(names)}",
        )
    return request.base or next((name for name in names if system(name).BASELINE), names[0])


def _modes(request: CompareRequest, trace: Trace) -> tuple[PlanMode, ...]:
    """Return the ways in which requests come: with a limit of TTFT a queue that is never empty is none."""
    if request.mode == "saturate":
        return ("saturate",)
    if request.replay.mode == "open" or request.slo_ttft_ms:
        return ("open",)
    return ("open", "saturate") if trace.meta.has_arrivals else ("saturate",)


def _plan_of(request: CompareRequest, mode: PlanMode) -> PlanRequest:
    """Return the plan whose winner is the comparison's cheapest."""
    replay = request.replay
    prefill = replay.prefill
    assert prefill in (None, "off", "colocated")
    return structs.replace(
        request.plan,
        trace=request.trace[0],
        model=request.model[0],
        slo_tbt_p99_ms=request.slo_tbt_ms or SLO_TBT_MS,
        slo_ttft_ms=request.slo_ttft_ms,
        devices=request.devices,
        systems=request.systems,
        costs=request.costs,
        network=request.network,
        mode=mode,
        prefill=prefill,
        max_batched_tokens=replay.max_batched_tokens,
        slo_queueing_p99_s=request.plan.slo_queueing_p99_s if mode == "open" else None,
        jobs=request.jobs,
        replay=replay,
    )


def _loads(request: PlanRequest, trace: Trace, notes: Listener, listener: Listener) -> Iterator[Load]:
    """Search with each cost set."""
    plan = resolve(request, notes)
    for named, question in zip(plan.request.costs, plan.questions(trace), strict=True):
        candidates = plan.candidates(question)
        names = [name for name in plan.systems if any(each.system == name for each in candidates)]
        groups = [[each for each in candidates if each.system == name] for name in names]
        title = f"choosing deployments, {LOADS[question.mode]}"
        with listener.progress(title, unit="candidates") as report:
            results = search_each(question, groups, jobs=request.jobs, report=report)
        by_name = dict(zip(names, results, strict=True))
        best = {name: winner(each.points, question.slo_tbt_p99_ms) for name, each in by_name.items()}
        yield Load(
            plan,
            question,
            named,
            {name: point for name, point in best.items() if point is not None},
            {name: unmet(question, each) for name, each in by_name.items() if best[name] is None},
            reduce(_together, results),
        )


def _together(one: SearchResult, other: SearchResult) -> SearchResult:
    return SearchResult(
        (*one.points, *other.points),
        one.considered + other.considered,
        Counter(one.counts) + Counter(other.counts),
        one.seconds + other.seconds,
    )
