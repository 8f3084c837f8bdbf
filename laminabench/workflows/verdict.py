"""Verdicts on modelled systems: from summaries and prices to sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from laminabench.analysis.rates import cost
from laminabench.analysis.verdict import TBT, Contender
from laminabench.catalog.deployment import Deployment
from laminabench.runs.summary import Summary, number_at
from laminabench.systems.registry import system

TTFT = "TTFT p99"
# How requests come in, by the mode of a replay.
LOADS: Mapping[str, str] = {"saturate": "saturated", "open": "own arrivals"}


class Even(NamedTuple):
    """The price of a device at which two systems have equal costs."""

    device: str
    usd_each_per_hour: float
    change: float  # of today's price; 0.1 is 10 % more

    def __str__(self) -> str:
        return (
            f"Among the prices {self.device}'s decides most: at ${self.usd_each_per_hour:.2f} an hour "
            f"({self.change:+.0%}) both cost the same."
        )


def contender(
    name: str, deployment: str, usd_per_hour: float, summary: Summary, error: float | None
) -> Contender:
    """Return a replayed system as the verdict takes it."""
    rate = summary.throughput_tokens_per_s or 0.0
    times = {TBT: number_at(summary, "tbt_ms.p99"), TTFT: number_at(summary, "ttft_ms.p99")}
    return Contender(
        system=name,
        deployment=deployment,
        usd_per_million_tokens=cost(rate, usd_per_hour).usd_per_million_tokens or math.inf,
        tokens_per_s=rate,
        tbt_ms=number_at(summary, "tbt_ms.p50") or 0.0,
        percentiles_ms={name: math.inf if value is None else value for name, value in times.items()},
        error=error,
    )


def limits(tbt_ms: float, ttft_ms: float | None) -> dict[str, float]:
    """Return limits by their names."""
    return {TBT: tbt_ms} | ({} if ttft_ms is None else {TTFT: ttft_ms})


def baseline(systems: Iterable[str]) -> str:
    """Return the system among these that people run today; empty without one."""
    return next((name for name in systems if system(name).BASELINE), "")


def prices_of(deployments: Iterable[Deployment]) -> dict[str, tuple[int, float]]:
    """Return the count of each device, and the hourly price of one."""
    counts: dict[str, tuple[int, float]] = {}
    for part in (part for each in deployments for part in each.parts):
        count, _ = counts.get(part.device.name, (0, 0.0))
        counts[part.device.name] = count + part.count, part.device.price_usd_per_hour or 0.0
    return counts


Priced = tuple[float, Mapping[str, tuple[int, float]]]  # tokens/s, and devices as of `prices_of`


def nearest_even(one: Priced, other: Priced) -> Even | None:
    """Return the price that has to change least for equal costs; None if no single price can do it.

    Costs are linear in prices, and throughput does not depend on them.
    """
    rate, devices = one
    rate_of_other, devices_of_other = other

    def lead(device: str = "", factor: float = 1.0) -> float:
        """Return what both would pay for each other's tokens, the difference."""

        def bill(of: Mapping[str, tuple[int, float]]) -> float:
            return sum(count * usd * (factor if name == device else 1.0) for name, (count, usd) in of.items())

        return rate * bill(devices_of_other) - rate_of_other * bill(devices)

    evens = []
    for device, (_, usd) in {**devices, **devices_of_other}.items():
        slope = lead(device, 2.0) - lead()
        factor = 1 - lead() / slope if slope else 0.0
        if factor > 0 and usd:
            evens.append(Even(device, factor * usd, factor - 1))
    return min(evens, key=lambda even: abs(math.log1p(even.change)), default=None)
