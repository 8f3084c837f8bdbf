"""Bars of systems or Runs side by side, with throughput above and TBT below."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laminabench.analysis.estimate import Estimate
from laminabench.render.style import CYCLE, INK, foot, look, sheet
from laminabench.runs.manifest import NUMBERS
from laminabench.systems.registry import system
from laminabench.workflows.compare.cells import Cell
from laminabench.workflows.compare.sides import SideBySide

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROWS = (("throughput", "tokens/s"), ("tbt_p50", "TBT p50, ms"), ("tbt_p99", "TBT p99, ms"))


@dataclass(frozen=True, slots=True)
class _Bars:
    """Bars of one colour, one in each group."""

    label: str
    colour: str
    estimates: list[dict[str, Estimate]]


def comparison_picture(compared: SideBySide) -> Figure:
    """Return a bar for each side, with its interval if it was measured."""
    groups = [side.label for side in compared.sides]
    bars = [_Bars("", CYCLE[0], [dict(side.estimates) for side in compared.sides])]
    how = ", ".join(dict.fromkeys(NUMBERS[side.backend] for side in compared.sides))
    if "measured" in how:
        how += "; lines are 95 % intervals of what was measured"
    return _picture(groups, bars, how)


def picture_of_cells(cells: Sequence[Cell]) -> Figure:
    """Return a group of bars for each model, trace and cost set, with a bar for each system."""
    groups = [f"{cell.model}\n{cell.trace}\n{cell.label}" for cell in cells]
    compared = [cell.sides(next(iter(cell.summaries))).sides for cell in cells]
    bars = [
        _Bars(name, system(name).COLOUR, [dict(each[place].estimates) for each in compared])
        for place, name in enumerate(cells[0].summaries)
    ]
    return _picture(groups, bars, "modelled")


def _picture(groups: list[str], bars: list[_Bars], words: str) -> Figure:
    with look():
        width = max(3.5, 0.9 + 0.55 * len(groups) * max(1.0, 0.6 * len(bars)))
        figure, rows = sheet(len(_ROWS), 1, width=width, height=5.4, sharex=True)
        for axes, (metric, title) in zip(rows, _ROWS, strict=True):
            _row(axes, metric, bars)
            axes.set_ylabel(title)
            axes.grid(visible=False, axis="x")
        rows[-1].set_xticks(range(len(groups)), groups, rotation=90 if len(groups) > 4 else 0)
        if len(bars) > 1:
            rows[0].legend(ncols=len(bars), loc="lower left", bbox_to_anchor=(0, 1))
        foot(figure, words)
    picture: Figure = figure
    return picture


def _row(axes: Axes, metric: str, bars: list[_Bars]) -> None:
    thick = 0.8 / len(bars)
    for place, bar in enumerate(bars):
        at = [group + (place - (len(bars) - 1) / 2) * thick for group in range(len(bar.estimates))]
        values = [each[metric] for each in bar.estimates]
        axes.margins(x=0.02)
        axes.bar(at, [each.value or 0.0 for each in values], thick * 0.92, color=bar.colour, label=bar.label)
        for x, each in itertools.compress(zip(at, values, strict=True), [each.interval for each in values]):
            assert each.interval is not None
            axes.vlines(x, *each.interval, color=INK, lw=1)
