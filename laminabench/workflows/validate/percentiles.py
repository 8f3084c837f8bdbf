"""Measured loads with medians and 99th percentiles, and predictions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from laminabench.catalog.entries import packaged_in
from laminabench.util.json import JsonObject
from laminabench.util.parallel import spread
from laminabench.workflows.validate.serving import ServerLoad, request_times
from laminabench.workflows.validate.serving_rows import server_of

POINTS = {"median": 50, "p99": 99}
# In the order of a row's numbers.
METRICS = tuple(f"{metric}, {point}" for metric in ("ttft", "tpot", "latency") for point in POINTS)


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """A load, and its times in ms by metric; the load's own, of means, are its medians."""

    load: ServerLoad
    ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """Predicted and measured times of a load, in ms by metric."""

    load: ServerLoad
    measured: Mapping[str, float]
    predicted: Mapping[str, float]

    @property
    def errors(self) -> dict[str, float]:
        """In percent."""
        return {name: 100 * (self.predicted[name] / ms - 1) for name, ms in self.measured.items()}

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        return {
            **self.load.describe(),
            "measured_ms": dict(self.measured),
            "predicted_ms": dict(self.predicted),
            "errors_percent": self.errors,
        }


@cache
def measured_loads() -> tuple[MeasuredLoad, ...]:
    """Return all packaged loads."""
    table = packaged_in(__package__, "percentiles.toml")
    about, day = table["server"], table["measured"]
    known = server_of(about["model"], about["device"], about["version"], about["precision"], day)
    server = {**known, **about}
    loads = []
    for row in table["rows"].strip().splitlines():
        layout, prompt, at_once, *numbers = row.split()
        ms = dict(zip(METRICS, map(float, numbers), strict=True))
        lengths = int(prompt), table["output_tokens"], int(at_once)
        medians = ms["ttft, median"], ms["tpot, median"]
        load = ServerLoad(server, table["layouts"][layout], *lengths, *medians, day)
        loads.append(MeasuredLoad(load, ms))
    return tuple(loads)


def compared(chosen: Sequence[MeasuredLoad], costs: str | None = None) -> list[Compared]:
    """Predict each load with the cost set of its kernels, or another; on all cores."""
    results = dict(spread(_compared, chosen, costs))
    return [results[index] for index in range(len(results))]


def _compared(costs: str | None, measured: MeasuredLoad) -> Compared:
    times = request_times(costs, measured.load)
    predicted = {
        name: 1000 * float(np.percentile(getattr(times, f"{metric}_s"), POINTS[point]))
        for name in METRICS
        for metric, point in (name.split(", "),)
    }
    return Compared(measured.load, measured.ms, predicted)
