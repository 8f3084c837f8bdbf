"""A stored plan at other prices: each candidate's cost, the front, and the winner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from laminabench.workflows.plan.stored import StoredPoint

Cost = Literal["usd_per_million_tokens", "usd_per_hour"]
Speed = Literal["tbt_p99_ms", "tokens_per_s"]


class Billed(NamedTuple):
    """A candidate at some prices."""

    point: StoredPoint
    usd_per_hour: float
    usd_per_million_tokens: float

    @property
    def order(self) -> tuple[float, float, float, str]:
        """Sort key: the cheapest tokens first, as `measure.order`."""
        return (self.usd_per_million_tokens, self.point.tbt_p99_ms, self.usd_per_hour, self.point.candidate)


@dataclass(frozen=True, slots=True)
class Front:
    """All candidates at some prices; `on` are indices into `all`, fastest first."""

    all: list[Billed]
    on: list[int]
    winner: int | None


def bill(point: StoredPoint, prices: Mapping[str, float]) -> Billed:
    usd_per_hour = 0.0
    for device, count in point.devices.items():
        usd_per_hour += count * prices[device]
    per_hour = point.tokens_per_s * 3600
    return Billed(point, usd_per_hour, usd_per_hour / per_hour * 1e6 if per_hour else math.inf)


def front_at(
    points: Sequence[StoredPoint],
    prices: Mapping[str, float],
    slo_tbt_p99_ms: float,
    cost: Cost = "usd_per_million_tokens",
    speed: Speed = "tbt_p99_ms",
) -> Front:
    """Return the front of cost and speed at these prices, among stored points within the limit.

    The winner does not depend on that: the cheapest tokens do. The budget is applied at the
    prices that the plan was made with.
    """
    billed = [bill(point, prices) for point in points]
    costs: Callable[[Billed], float] = lambda each: getattr(each, cost)  # noqa: E731

    def slowness(each: Billed) -> float:
        return each.point.tbt_p99_ms if speed == "tbt_p99_ms" else -each.point.tokens_per_s

    meeting = [i for i, each in enumerate(billed) if each.point.meets(slo_tbt_p99_ms)]
    on: list[int] = []
    for i in sorted(meeting, key=lambda i: (costs(billed[i]), slowness(billed[i]), *billed[i].order)):
        if not on or slowness(billed[i]) < slowness(billed[on[-1]]):
            on.append(i)
    winner = min(meeting, key=lambda i: billed[i].order, default=None)
    return Front(billed, on[::-1], winner)
