"""The verdict on a plan: the winner against the cheapest of every other system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from laminabench.analysis.verdict import Contender, Verdict, verdict
from laminabench.systems.includes import Includes
from laminabench.systems.modelled.includes import accuracy_of, includes_of
from laminabench.workflows.plan.answer import Answer
from laminabench.workflows.plan.measure import Point, best_of_each, times_of, winner
from laminabench.workflows.verdict import LOADS, baseline, limits, nearest_even, prices_of


def verdict_on(answer: Answer) -> Verdict:
    """Judge the cheapest candidate of each system; without any within the limits the nearest."""
    question = answer.question
    points = {point.candidate.system: point for point in _cheapest(answer)}
    judged = verdict(
        [_contender(answer, point) for point in points.values()],
        _limits(answer),
        subject=f"{question.trace.meta.name} with {question.model.name} ({LOADS[question.mode]})",
        baseline=baseline(points),
    )
    changed = {each.partition("=")[0] for each in answer.other.kernels}
    unchanged = (each for each in answer.search.points if changed.isdisjoint(each.candidate.devices))
    best = winner(unchanged, question.slo_tbt_p99_ms)
    elsewhere = None if best is None else _contender(answer, best)
    if decides := answer.other.decide(judged, elsewhere):
        return replace(judged, depends=decides)
    if judged.cheapest is None or judged.runner_up is None:
        return judged
    one, other = (_priced(points[each.system]) for each in (judged.cheapest, judged.runner_up))
    return replace(judged, depends=str(nearest_even(one, other) or ""))


def includes(answer: Answer) -> Includes:
    """Return what the numbers of these candidates include."""
    judged = verdict_on(answer)
    named = [each.system for each in (judged.cheapest, judged.runner_up) if each]
    candidates = (point.candidate for point in _cheapest(answer))
    setups = ((each.system, answer.question.setup(each)) for each in candidates if each.system in named)
    return includes_of(setups)


def described(answers: Sequence[Answer]) -> dict[str, object]:
    """Return the answers for --json, each with its verdict; of a single one that comes first."""
    rows = [
        {**each.row(), "verdict": verdict_on(each).describe(), "includes": includes(each).describe()}
        for each in answers
    ]
    alone = rows[0] if len(rows) == 1 else {}
    return {"verdict": alone.get("verdict"), "includes": alone.get("includes"), "answers": rows}


def _cheapest(answer: Answer) -> list[Point]:
    """Return the cheapest point of each system within the limits, else the nearest.

    In an open plan only those that were replayed: others cost at least 11 % more than the winner.
    """
    best = best_of_each(answer.search.points, answer.question.slo_tbt_p99_ms)
    return best or [each for each in (answer.nearest,) if each]


def _limits(answer: Answer) -> dict[str, float]:
    """Return the limits; of queueing only where it may be what the nearest misses."""
    if answer.nearest:
        return {name: limit for name, (_, limit) in times_of(answer.nearest, answer.question).items()}
    return limits(answer.question.slo_tbt_p99_ms, answer.question.slo_ttft_ms)


def _contender(answer: Answer, point: Point) -> Contender:
    candidate = point.candidate
    setup = answer.question.setup(candidate)
    return Contender(
        system=candidate.system,
        deployment=str(candidate).removeprefix(f"{candidate.system} "),
        usd_per_million_tokens=point.usd_per_million_tokens,
        tokens_per_s=point.tokens_per_s,
        tbt_ms=point.tbt_p50_ms,
        percentiles_ms={name: ms for name, (ms, _) in times_of(point, answer.question).items()},
        error=accuracy_of(candidate.system, setup).error,
    )


def _priced(point: Point) -> tuple[float, dict[str, tuple[int, float]]]:
    candidate = point.candidate
    return point.tokens_per_s, prices_of([candidate.deployment] * candidate.instances)
