"""Gates: `throughput<0.95` fails where a side's throughput is less than 0.95 times the base's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from laminabench.analysis.estimate import Estimate
from laminabench.analysis.metrics_table import COMPARED
from laminabench.compare.sides import SideBySide
from laminabench.errors import UserError

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
        """Whether it is beyond; where it was measured, whether all of its interval is, unless `strict`.

        A ratio that there is not fails: a gate that cannot be judged must not let anything through.
        """
        if ratio.value is None:
            return True
        nearest_to_pass = ratio.value
        if ratio.interval is not None and not strict:
            nearest_to_pass = ratio.interval.high if self.sign == "<" else ratio.interval.low
        return nearest_to_pass < self.limit if self.sign == "<" else nearest_to_pass > self.limit


def parse_gate(text: str) -> Gate:
    """`METRIC<NUMBER` or `METRIC>NUMBER`."""
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
    """A line for each gate that a side does not pass; a UserError where there is nothing whole to judge."""
    partial = next((side for side in compared.sides if side.partial), None)
    if gates and partial is not None:
        raise UserError(
            "gate-partial-run",
            f"--fail-on judges whole Runs, and {partial.runs[0]} is {partial.partial}; replay it again",
        )
    return [
        f"{gate}: {_told(compared, gate, place)}{where}"
        for gate in gates
        for place in range(len(compared.sides))
        if place != compared.base and gate.fails(compared.ratio(gate.metric, place), strict=strict)
    ]


def _told(compared: SideBySide, gate: Gate, place: int) -> str:
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
