"""Which of some points are worth a look: the Pareto front of cost and time between tokens, and the winner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laminabench.plan.measure import Point


def meets(point: Point, slo_tbt_p99_ms: float) -> bool:
    """Fast enough, and it serves the trace: in an open replay it keeps up with what comes."""
    return point.keeps_up and point.tbt_p99_ms <= slo_tbt_p99_ms


def order(point: Point) -> tuple[float, float, float, str]:
    """The cheapest tokens first; ties to the faster, then to the smaller bill, then by name."""
    return point.usd_per_million_tokens, point.tbt_p99_ms, point.candidate.usd_per_hour, str(point.candidate)


def winner(points: Iterable[Point], slo_tbt_p99_ms: float) -> Point | None:
    """The cheapest tokens of those that meet the limit."""
    return min((each for each in points if meets(each, slo_tbt_p99_ms)), key=order, default=None)


def front(points: Sequence[Point], slo_tbt_p99_ms: float) -> list[Point]:
    """Of those that meet the limit, where no other is as cheap and as fast, from the fastest on."""
    found: list[Point] = []
    kept = sorted((each for each in points if meets(each, slo_tbt_p99_ms)), key=order)
    for each in kept:
        if not found or each.tbt_p99_ms < found[-1].tbt_p99_ms:
            found.append(each)
    return found[::-1]


def nearest(points: Iterable[Point]) -> Point | None:
    """The fastest of those that serve the trace, whatever the limit."""
    serving = (each for each in points if each.keeps_up)
    return min(serving, key=lambda each: (each.tbt_p99_ms, *order(each)), default=None)
