"""The answer to one question: the front, the winner, what prompts cost, and how far prices decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from laminabench.catalog.deployment import Deployment, Workers, devices_named
from laminabench.catalog.kernels import out_of_the_box, with_kernels
from laminabench.runs.summary import Summary
from laminabench.systems.base import Workload
from laminabench.systems.modelled.prepared import Routed, replay_on
from laminabench.systems.registry import system
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import to_json
from laminabench.workflows.plan.effects import bindings
from laminabench.workflows.plan.measure import (
    Point,
    best_of_each,
    cluster,
    front,
    front_at_any_price,
    measure,
    meets,
    nearest,
    order,
    times_of,
    winner,
)
from laminabench.workflows.plan.question import Candidate, Question
from laminabench.workflows.plan.search import PRICE_CHANGE, SearchResult, search
from laminabench.workflows.plan.stored import Effect, Repriced
from laminabench.workflows.verdict import DefaultKernels

# Candidates of an open replay without prompts among which the whole front is searched for.
MOST_FOR_FRONT = 4000


@dataclass(frozen=True)
class Answer:
    """The plan with one cost set. Without a winner, `nearest` comes nearest to the limits."""

    question: Question
    search: SearchResult
    front: list[Point]
    winner: Point | None
    nearest: Point | None
    summary: Summary | None  # of the winner's replay
    # Of all on the front, perhaps of candidates that would be there at other prices.
    binds: Mapping[Point, list[Effect]]
    prices: list[Repriced]
    other: DefaultKernels  # of the cheapest of each system
    without_prompts: Point | None = None  # the winner where prompts are there already

    @property
    def effects(self) -> list[Effect]:
        """The resources that bind the winner."""
        return [] if self.winner is None else self.binds[self.winner]

    @property
    def usd_of_prompts(self) -> float | None:
        """The cost that prompts add to a million tokens: the winner's less the cheapest without prompts."""
        if self.winner is None or self.without_prompts is None:
            return None
        return self.winner.usd_per_million_tokens - self.without_prompts.usd_per_million_tokens

    def row(self) -> dict[str, object]:
        without = self.without_prompts
        prompts = {
            "usd_per_million_tokens": self.usd_of_prompts,
            "without": None if without is None else self.row_of(without),
        }
        return {
            "costs": self.question.costs.name,
            "winner": None if self.winner is None else self.row_of(self.winner),
            "nearest": None if self.nearest is None else self.row_of(self.nearest),
            "front": [self.row_of(each) for each in self.front],
            "replayed": [self.row_of(each) for each in self.search.points],
            "summary": None if self.summary is None else to_json(self.summary),
            "binds": [to_json(each) for each in self.effects],
            "prices": [to_json(each) for each in self.prices],
            **({"prompts": prompts} if self.question.prompts else {}),
            "search": {
                "considered": self.search.considered,
                "counts": dict(self.search.counts),
                "seconds": self.search.seconds,
                "candidates_per_s": self.search.considered / self.search.seconds,
            },
        }

    def row_of(self, point: Point) -> dict[str, object]:
        """Return a point's row with its unmeasured devices, and what binds it where known."""
        effects = self.binds.get(point)
        return {
            **point.row(),
            "assumed_devices": list(point.candidate.borrowed(self.question.costs)),
            "binds": None if effects is None else [to_json(each) for each in effects],
        }


def answer(
    question: Question,
    candidates: Sequence[Candidate],
    *,
    exhaustive: bool = False,
    at_any_price: bool = False,
    jobs: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Answer:
    """Search the candidates; `at_any_price` finds what binds all that may be on the front at some prices."""
    # Of prompts or many instances there are too many candidates to examine those only faster and dearer.
    few = question.mode == "open" and (question.prompts or len(candidates) > MOST_FOR_FRONT)
    outcome = search(question, candidates, exhaustive=exhaustive, winner_only=few, jobs=jobs, report=report)
    limit = question.slo_tbt_p99_ms
    best = winner(outcome.points, limit)
    without = None
    if question.prompts and best is not None:
        decoding = replace(question, prefill="off", slo_ttft_ms=None)
        plain = list(dict.fromkeys(each.without_prompts for each in candidates))
        without = winner(search(decoding, plain, winner_only=True, jobs=jobs).points, limit)
    on_front = front(outcome.points, limit)
    some = [*on_front, *(front_at_any_price(outcome.points, limit) if at_any_price else ())]
    return Answer(
        question,
        outcome,
        on_front,
        best,
        nearest(outcome.points, question) if best is None else None,
        None if best is None else _summary(question, best),
        bindings(question, list(dict.fromkeys(some)), jobs),
        list(repriced(outcome.points, limit)),
        _with_default_kernels(question, best_of_each(outcome.points, limit)),
        without,
    )


def _with_default_kernels(question: Question, cheapest: Sequence[Point]) -> DefaultKernels:
    """Replay the cheapest of each system with vLLM's own kernels, if the winner is on devices with others."""
    kernels = [out_of_the_box(question.costs, devices_named(each.candidate.hardware)) for each in cheapest]
    if question.model.latent or not kernels or not kernels[0]:
        return DefaultKernels()
    other = replace(question, costs=with_kernels(question.costs, kernels[0]))
    points = {}
    for candidate in (each.candidate for each, own in zip(cheapest, kernels, strict=True) if own):
        spec = cluster(other, candidate)
        assert spec is not None
        points[candidate.system] = measure(other, question.trace, candidate, spec)
    rates = {name: point.tokens_per_s for name, point in points.items()}
    return DefaultKernels(kernels[0], rates, {name: point.tbt_p99_ms for name, point in points.items()})


def _summary(question: Question, point: Point) -> Summary:
    workload = Workload(question.mode, slo_tbt_ms=question.slo_tbt_p99_ms, slo_ttft_ms=question.slo_ttft_ms)
    candidate = point.candidate
    routed = Routed((candidate.deployment,) * candidate.instances)
    replayed = replay_on(
        system(candidate.system), question.trace, question.setup(candidate), workload, routed
    )
    return replayed.summary


def require_replayed(question: Question, result: SearchResult) -> None:
    """Raise a UserError if none of the candidates fits the longest request."""
    counts = result.counts
    if not result.points and counts.get("too_small") and not counts.get("falls_behind"):
        trace = question.trace
        longest = int((trace.prompt_tokens.astype("int64") + trace.output_tokens).max())
        raise UserError(
            "plan-longest-request",
            f"no candidate holds the longest request of {trace.meta.name}, {longest:,} tokens; leave such "
            "requests out with --max-prompt, --max-output and --too-long drop, or raise --budget",
        )


def require_winner(result: Answer) -> None:
    """Raise a CheckFailedError that names the nearest candidate, and by how much it misses."""
    if result.winner is None:
        raise unmet(result.question, result.search)


def unmet(question: Question, result: SearchResult) -> CheckFailedError:
    """Return which limit a search without a winner misses, the nearest candidate, and by how much."""
    costs, closest = question.costs.name, nearest(result.points, question)
    if closest is None:
        return CheckFailedError(
            "plan-falls-behind",
            f"with {costs}, none of {result.considered:,} candidates keeps up with "
            f"{question.trace.meta.name}: 99 of 100 requests are to wait no longer than "
            f"{question.slo_queueing_p99_s:g} s",
        )
    times = times_of(closest, question)
    within = " and ".join(f"a {name} of {limit:g} ms" for name, (_, limit) in times.items())
    missed = " and ".join(
        f"{name} of {ms:,.{0 if ms >= 1000 else 1}f} ms, {ms / limit - 1:.1%} over"
        for name, (ms, limit) in times.items()
        if ms > limit
    )
    return CheckFailedError(
        "plan-limit-missed",
        f"with {costs}, none of {result.considered:,} candidates is within {within}; "
        f"nearest is {closest.candidate} with a {missed}",
    )


def repriced(points: Sequence[Point], slo_tbt_p99_ms: float) -> Iterator[Repriced]:
    """Return winners with each price a tenth lower and higher; none if nothing meets the limit.

    All that could win at these prices is among the points: the search saw to it. The budget is what it was.
    """
    best = winner(points, slo_tbt_p99_ms)
    if best is None:
        return
    meeting = [each for each in points if meets(each, slo_tbt_p99_ms)]
    prices = {
        part.device.name: part.device.price_usd_per_hour
        for each in sorted(meeting, key=order)
        for part in each.candidate.deployment.parts
    }
    for device, usd in prices.items():
        for change in (-PRICE_CHANGE, PRICE_CHANGE):
            assert usd is not None
            new_usd = usd * (1 + change)
            changed = [(_at(each, device, new_usd), each) for each in meeting]
            now, before = min(changed, key=lambda pair: order(pair[0]))
            yield Repriced(
                device=device,
                change=change,
                usd_each_per_hour=new_usd,
                winner=str(now.candidate),
                stays=before is best,
                usd_per_million_tokens=now.usd_per_million_tokens,
            )


def _at(point: Point, device: str, usd_per_hour: float) -> Point:
    old = point.candidate.deployment
    others = (old.attention, old.prefill)
    new = Deployment(
        _priced(old.model, device, usd_per_hour),
        *(each and _priced(each, device, usd_per_hour) for each in others),
    )
    return replace(point, candidate=replace(point.candidate, deployment=new))


def _priced(workers: Workers, device: str, usd_per_hour: float) -> Workers:
    if workers.device.name != device:
        return workers
    return Workers(replace(workers.device, override_usd_per_hour=usd_per_hour), workers.count)
