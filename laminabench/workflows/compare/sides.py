"""Comparison entries side by side: each has a ratio to the base, which gates check."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from laminabench.analysis.estimate import UNKNOWN, Estimate, Interval, ratio
from laminabench.analysis.metrics_table import (
    AT_EQUAL_COST,
    AT_EQUAL_POWER,
    COMPARED,
    RATED_W,
    SUMMARISED,
    THROUGHPUT,
    USD_PER_HOUR,
    Metric,
)
from laminabench.runs.manifest import Backend
from laminabench.runs.summary import Summary
from laminabench.util.errors import UserError
from laminabench.util.json import Json


@dataclass(frozen=True, slots=True)
class Side:
    """One column of a comparison: a system on a deployment, with its metrics."""

    label: str
    system: str
    deployment: str
    model: str
    backend: Backend
    estimates: Mapping[str, Estimate]  # by the metric's name
    runs: tuple[str, ...] = ()
    partial: str | None = None  # a sentence, where it ended before its trace did

    def describe(self) -> dict[str, Json]:
        """Return the side for --json, without its numbers."""
        facts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "estimates"}
        return {**facts, "runs": list(self.runs)}


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of every side, with its ratios to the base's."""

    metric: Metric
    values: tuple[Estimate, ...]
    ratios: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Several sides; `base` is the place of the base of ratios."""

    sides: tuple[Side, ...]
    base: int
    slo_tbt_ms: float | None  # None where each side has its own
    slo_ttft_ms: float | None = None  # likewise, and where there is none

    def ratio(self, metric: str, place: int) -> Estimate:
        """Return a side's metric over the base's; the base's own ratio is exactly 1."""
        to, base = (self.sides[each].estimates[metric] for each in (place, self.base))
        if place == self.base:
            return Estimate(1.0) if base.value else UNKNOWN
        return ratio(to, base)

    def rows(self) -> list[Row]:
        rows = []
        for metric in COMPARED.values():
            values = tuple(side.estimates[metric.name] for side in self.sides)
            if any(value.value is not None for value in values):
                ratios = tuple(self.ratio(metric.name, place) for place in range(len(self.sides)))
                rows.append(Row(metric, values, ratios))
        return rows

    def describe(self) -> dict[str, Json]:
        entries = [
            {
                **side.describe(),
                "metrics": {
                    name: _described(each, COMPARED[name].interval(each))
                    for name, each in side.estimates.items()
                },
                "ratios": {
                    name: _described(ratio_, ratio_.interval)
                    for name, ratio_ in ((name, self.ratio(name, place)) for name in side.estimates)
                },
            }
            for place, side in enumerate(self.sides)
        ]
        limits: dict[str, Json] = {"slo_tbt_ms": self.slo_tbt_ms}
        if self.slo_ttft_ms is not None:
            limits["slo_ttft_ms"] = self.slo_ttft_ms
        return {"base": self.sides[self.base].label, **limits, "sides": entries}


def side_by_side(
    sides: Sequence[Side], base: int, slo_tbt_ms: float | None, slo_ttft_ms: float | None = None
) -> SideBySide:
    """Return sides with the metrics of SUMMARISED, and the throughput at the base's cost and power added."""
    entries = list(sides)
    for scaled, amount in ((AT_EQUAL_COST, USD_PER_HOUR), (AT_EQUAL_POWER, RATED_W)):
        of_base = sides[base].estimates[amount.name].value
        entries = [_in_proportion(side, scaled, amount, of_base) for side in entries]
    return SideBySide(tuple(entries), base, slo_tbt_ms, slo_ttft_ms)


def modelled_estimates(summary: Summary) -> dict[str, Estimate]:
    """Return the metrics of a modelled replay, which are exact."""
    return {metric.name: Estimate(metric.of(summary)) for metric in SUMMARISED}


def _in_proportion(side: Side, scaled: Metric, amount: Metric, of_base: float | None) -> Side:
    """Add a side's throughput scaled to the base's cost, or power."""
    own, rate = side.estimates[amount.name].value, side.estimates[THROUGHPUT.name]
    if not own or of_base is None or rate.value is None:
        adjusted = UNKNOWN
    else:
        adjusted = replace(rate, value=rate.value * of_base / own)
    return replace(side, estimates={**side.estimates, scaled.name: adjusted})


def _described(estimate: Estimate, interval: Interval | None) -> dict[str, Json]:
    return {
        "value": estimate.value,
        "exact": estimate.exact,
        "interval": None if interval is None else list(interval),
    }


_EXPRESSION = re.compile(r"\s*([a-z0-9_.]+)\s*([<>])\s*(\d+(?:\.\d*)?|\.\d+)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gate:
    """A ratio to the base that must not be below, or above, a limit."""

    metric: str
    sign: Literal["<", ">"]
    limit: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.limit:.12g}"

    def fails(self, ratio: Estimate, *, strict: bool) -> bool:
        """Return whether a ratio is beyond the limit: with its whole interval, if measured, unless `strict`.

        An unknown ratio fails: a gate that cannot be judged must not let anything through.
        """
        if ratio.value is None:
            return True
        nearest_to_pass = ratio.value
        if ratio.interval is not None and not strict:
            nearest_to_pass = ratio.interval.high if self.sign == "<" else ratio.interval.low
        return nearest_to_pass < self.limit if self.sign == "<" else nearest_to_pass > self.limit


def parse_gate(text: str) -> Gate:
    """Parse `METRIC<NUMBER` or `METRIC>NUMBER`."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UserError(
            "gate-syntax",
            f"--fail-on {text!r}: expected METRIC<RATIO or METRIC>RATIO, such as throughput<0.95; "
            f"metrics are {', '.join(COMPARED)}",
        )
    name = match[1].lower()
    if name not in COMPARED:
        raise UserError(
            "gate-metric-unknown", f"--fail-on {text!r}: no metric {name!r}; there are {', '.join(COMPARED)}"
        )
    return Gate(name, "<" if match[2] == "<" else ">", float(match[3]))


def failures(gates: list[Gate], compared: SideBySide, *, strict: bool, where: str = "") -> list[str]:
    """Return a line for each gate that a side fails; a UserError for a side that ended early."""
    partial = next((side for side in compared.sides if side.partial), None)
    if gates and partial is not None:
        raise UserError(
            "gate-partial-run",
            f"--fail-on judges whole Runs, and {partial.runs[0]} is {partial.partial}; replay it again",
        )
    return [
        f"{gate}: {_sentence(compared, gate, place)}{where}"
        for gate in gates
        for place in range(len(compared.sides))
        if place != compared.base and gate.fails(compared.ratio(gate.metric, place), strict=strict)
    ]


def _sentence(compared: SideBySide, gate: Gate, place: int) -> str:
    side, base, ratio = (
        compared.sides[place],
        compared.sides[compared.base],
        compared.ratio(gate.metric, place),
    )
    if ratio.value is None:
        return f"there is no {gate.metric} of {side.label} and {base.label} to compare"
    within = ratio.interval
    sure = f" ({within.low:.4g} to {within.high:.4g})" if within else ""
    return f"{side.label} has {ratio.value:.6g}{sure} times the {gate.metric} of {base.label}"
