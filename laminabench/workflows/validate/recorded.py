"""Recorded runs, replayed on the modelled cluster: how far off each request's times are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.costs import CostSet
from laminabench.catalog.host import parse_host
from laminabench.catalog.server_host import Steps, server_host
from laminabench.traces.table import Float64
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.workflows.validate.recording import Recording
from laminabench.workflows.validate.server import replayed

METRICS = ("ttft", "tpot", "latency")
POINTS = {"p50": 50, "p90": 90, "p99": 99}
# Targets for a prediction without anything tuned on the run, in percent: means, and TPOT's percentiles.
TARGETS = {"ttft": 3.0, "tpot": 1.0, "latency": 1.0}
TPOT_POINTS = 2.0
AS_MEASURED = "nothing"


@dataclass(frozen=True, slots=True)
class Times:
    """Times of every request, in seconds; TPOT of those with two tokens and more."""

    ttft: Float64
    tpot: Float64
    latency: Float64

    @classmethod
    def of(cls, recording: Recording, first: Float64, last: Float64) -> Times:
        several = recording.output_tokens > 1
        tpot = (last - first)[several] / (recording.output_tokens[several] - 1)
        return cls(first - recording.arrival_s, tpot, last - recording.arrival_s)

    @classmethod
    def measured(cls, recording: Recording) -> Times:
        """Return the recorded times; raise a UserError without times between tokens."""
        times = cls.of(recording, recording.first_token_s, recording.last_token_s)
        if not len(times.tpot) or np.median(times.tpot) <= 0:
            raise UserError(
                "validation-no-tpot",
                f"{recording.name} has no time between tokens; record a server that streams, and longer "
                "answers",
            )
        return times


@dataclass(frozen=True, slots=True)
class Judged:
    """A prediction and its recording."""

    recording: Recording
    constants: str  # where those are from that no table holds
    gap_s: float
    predicted: Times

    @property
    def measured(self) -> Times:
        return Times.measured(self.recording)

    def errors(self) -> dict[str, dict[str, float]]:
        """Return errors by metric, in percent: of the mean, of percentiles, and requests' mean absolute."""
        return {
            name: _errors(getattr(self.predicted, name), getattr(self.measured, name)) for name in METRICS
        }

    def missed(self) -> list[str]:
        """Return the targets that it does not meet."""
        errors = self.errors()
        names = [name for name in METRICS if abs(errors[name]["mean"]) > TARGETS[name]]
        return names + [f"tpot {p}" for p in POINTS if abs(errors["tpot"][p]) > TPOT_POINTS]

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        about = self.recording.about
        return {
            "recording": self.recording.name,
            "costs": about["costs"],
            "constants": self.constants,
            "gap_ms": self.gap_s * 1000,
            "errors_percent": self.errors(),
            "missed": self.missed(),
            "others": {name: dict(errors) for name, errors in self.recording.others.items()},
        }


def judged(recordings: Sequence[Recording], costs: str | None = None) -> list[Judged]:
    """Predict each from the tables, and with the gap between steps of others of its device."""
    for each in recordings:
        Times.measured(each)  # what cannot be judged is refused before anything is predicted
    results = []
    gaps = {each.name: gap_of(each, _costs(each, costs)) for each in recordings if _twins(each, recordings)}
    for each in recordings:
        of = _costs(each, costs)
        results.append(Judged(each, AS_MEASURED, of.host.gap_s, predict(each, of)))
        for other in _twins(each, recordings):
            gap = gaps[other.name]
            results.append(Judged(each, other.name, gap, predict(each, with_gap(of, gap))))
    return results


def predict(recording: Recording, costs: CostSet) -> Times:
    """Return the modelled times of the same requests, set up as the server was."""
    requests = replayed(recording.about, recording.trace(), costs, host=host_of(recording))
    return Times.of(recording, requests["first_token_s"], requests["finished_s"])


def host_of(recording: Recording) -> HostCost | None:
    """Return a server's host: as given, or that of its release on its devices; None if neither is known."""
    about = recording.about
    if "host" in about:
        return parse_host(str(about["host"]))
    if "server_version" not in about:
        return None
    version, given = str(about["server_version"]), about.get("host_async")
    return server_host(version, recording.device, None if given is None else Steps(bool(given)))


def with_gap(costs: CostSet, gap_s: float) -> CostSet:
    """Return the set with such a gap between two steps, whatever the host hides behind them."""
    server = costs.server and replace(costs.server, gap_s=gap_s)
    return replace(costs, host=replace(costs.host, gap_s=gap_s), server=server)


def gap_of(recording: Recording, costs: CostSet) -> float:
    """Return the gap between steps that reproduces a recording's mean latency; not negative."""
    measured = float(np.mean(Times.measured(recording).latency))

    def off(gap_s: float) -> float:
        return float(np.mean(predict(recording, with_gap(costs, gap_s)).latency)) / measured - 1

    low, high = 0.0, 4e-3
    if off(low) >= 0:
        return 0.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if off(middle) >= 0 else (middle, high)
    return (low + high) / 2


def _costs(recording: Recording, costs: str | None) -> CostSet:
    return load_costs(costs or recording.about["costs"])


def _twins(one: Recording, recordings: Sequence[Recording]) -> list[Recording]:
    return [each for each in recordings if each.device == one.device and each.name != one.name]


def _errors(predicted: Float64, measured: Float64) -> dict[str, float]:
    errors = {"mean": float(np.mean(predicted) / np.mean(measured) - 1)}
    for name, point in POINTS.items():
        errors[name] = float(np.percentile(predicted, point) / np.percentile(measured, point) - 1)
    timed = measured > 0  # tokens may come together
    errors["by_request"] = float(np.mean(np.abs(predicted[timed] / measured[timed] - 1)))
    return {name: 100 * error for name, error in errors.items()}
