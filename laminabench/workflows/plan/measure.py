"""Results of candidates: the Pareto front of cost and TBT, and the winner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from laminabench.analysis import rates
from laminabench.analysis.attainment import limit_ticks, token_attainment
from laminabench.analysis.tbt import tbt, tokens_of
from laminabench.analysis.window import whole_run, window
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import TICKS_PER_S, Spec
from laminabench.systems.registry import system
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.workflows.plan.question import Candidate, Question


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate's modelled replay: numbers of the steady window, queueing of the full replay."""

    candidate: Candidate
    tokens_per_s: float
    mean_batch: float
    tbt_p50_ms: float
    tbt_p99_ms: float
    token_attainment: float
    queueing_p99_s: float
    keeps_up: bool  # always, where requests wait by intention; within the limit of TTFT, if there is one
    # Of all requests, where prompts are computed.
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None

    @property
    def usd_per_million_tokens(self) -> float:
        return usd_per_million_tokens(self.candidate, self.tokens_per_s)

    def row(self) -> dict[str, object]:
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "candidate"}
        if self.ttft_p99_ms is None:
            numbers = {name: value for name, value in numbers.items() if not name.startswith("ttft")}
        return {
            "candidate": str(self.candidate),
            "system": self.candidate.system,
            "deployment": str(self.candidate.deployment),
            "devices": self.candidate.devices,
            "batches": self.candidate.batches,
            "most_requests": self.candidate.most_requests,
            **self.candidate.of_prompts(),
            "usd_per_hour": self.candidate.usd_per_hour,
            **numbers,
            "usd_per_million_tokens": self.usd_per_million_tokens,
        }


def usd_per_million_tokens(candidate: Candidate, tokens_per_s: float) -> float:
    cost = rates.cost(tokens_per_s, candidate.usd_per_hour).usd_per_million_tokens
    return float("inf") if cost is None else cost


def cluster(question: Question, candidate: Candidate, most_requests: int | None = None) -> Spec | None:
    """Return the candidate as the simulator takes it; None if weights or KV do not fit."""
    try:
        spec = system(candidate.system).build(question.setup(candidate, most_requests)).spec
    except UserError:
        return None
    return replace(spec, copies=spec.copies * candidate.instances)


def measure(question: Question, trace: Trace, candidate: Candidate, spec: Spec) -> Point:
    """Replay the trace: the same numbers as `laminabench replay`, without those that are not compared."""
    outcome = simulate(trace, spec, Offered(question.mode))
    steady = window(outcome, question.mode)
    tokens = tokens_of(outcome)
    gaps = tbt(tokens, steady)
    if not gaps.count:  # an overloaded deployment makes only first tokens while requests arrive
        steady = whole_run(outcome)
        gaps = tbt(tokens, steady)
    p50, p99 = gaps.percentile(500), gaps.percentile(990)
    attained = token_attainment(gaps, limit_ticks(question.slo_tbt_p99_ms))
    waited_s = (rates.queueing(outcome).percentile(990) or 0) / TICKS_PER_S
    ttft_ms, in_time = [], True
    if spec.prompts:
        first = rates.since_arrival(outcome, "first_token_s")
        ttft_ms = [(first.percentile(permille) or 0) * 1000 / TICKS_PER_S for permille in (500, 990)]
        in_time = question.slo_ttft_ms is None or ttft_ms[1] <= question.slo_ttft_ms
    if p50 is None or p99 is None or attained is None:
        raise UserError(
            "trace-no-tbt", f"{trace.meta.name} has no time between tokens: none of its requests makes two"
        )
    return Point(
        candidate,
        rates.per_second(rates.produced(outcome, steady), steady) or 0.0,
        sum(rates.mean_batches(outcome, steady)),
        p50 * 1000 / TICKS_PER_S,
        p99 * 1000 / TICKS_PER_S,
        attained,
        waited_s,
        question.mode == "saturate" or (waited_s <= question.slo_queueing_p99_s and in_time),
        *ttft_ms,
    )


def meets(point: Point, slo_tbt_p99_ms: float) -> bool:
    """Return whether a point is fast enough and, in an open replay, keeps up with arrivals."""
    return point.keeps_up and point.tbt_p99_ms <= slo_tbt_p99_ms


def order(point: Point) -> tuple[float, float, float, str]:
    """Return a sort key: cheapest tokens first; ties to the faster, the smaller bill, then by name."""
    return point.usd_per_million_tokens, point.tbt_p99_ms, point.candidate.usd_per_hour, str(point.candidate)


def winner(points: Iterable[Point], slo_tbt_p99_ms: float) -> Point | None:
    """Return the point with the cheapest tokens that meets the limit."""
    return min((each for each in points if meets(each, slo_tbt_p99_ms)), key=order, default=None)


def front(points: Sequence[Point], slo_tbt_p99_ms: float) -> list[Point]:
    """Return the Pareto front of cost and speed among points within the limit, the fastest first."""
    pareto: list[Point] = []
    meeting = sorted((each for each in points if meets(each, slo_tbt_p99_ms)), key=order)
    for each in meeting:
        if not pareto or each.tbt_p99_ms < pareto[-1].tbt_p99_ms:
            pareto.append(each)
    return pareto[::-1]


def front_at_any_price(points: Iterable[Point], slo_tbt_p99_ms: float) -> list[Point]:
    """Return the points within the limit that may be on the front at some prices.

    No other point is as fast and takes no more of any device for a token.
    """
    front_points: list[Point] = []
    for each in sorted(
        (each for each in points if meets(each, slo_tbt_p99_ms)), key=lambda at: (at.tbt_p99_ms, *order(at))
    ):
        if each.tokens_per_s and not any(_takes_no_more(other, each) for other in front_points):
            front_points.append(each)
    return front_points


def _takes_no_more(one: Point, other: Point) -> bool:
    """Return whether one takes no more of any device for as many tokens."""
    most = other.candidate.devices
    return all(
        count * other.tokens_per_s <= most.get(name, 0) * one.tokens_per_s
        for name, count in one.candidate.devices.items()
    )


def times_of(point: Point, question: Question) -> dict[str, tuple[float, float]]:
    """Return the times of a point in ms and their limits, by name; arrivals wait, a queue is meant to."""
    times = {"TBT p99": (point.tbt_p99_ms, question.slo_tbt_p99_ms)}
    if question.mode == "open":
        if question.slo_ttft_ms is not None:
            times["TTFT p99"] = point.ttft_p99_ms or 0.0, question.slo_ttft_ms
        times["queueing p99"] = 1000 * point.queueing_p99_s, 1000 * question.slo_queueing_p99_s
    return times


def excess(point: Point, question: Question) -> float:
    """Return the largest ratio of a time to its limit: at most one where all are met."""
    return max(ms / limit for ms, limit in times_of(point, question).values())


def nearest(points: Iterable[Point], question: Question) -> Point | None:
    """Return the point whose worst time is the least over its limit."""
    return min(points, key=lambda each: (excess(each, question), *order(each)), default=None)
