"""Pictures of the charts that pages show, and bars of systems or Runs side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laminabench.analysis.estimate import Estimate
from laminabench.render.charts.chart import Chart, PlotlyJson, axis, label, rounded
from laminabench.render.charts.cost import cost_chart
from laminabench.render.charts.memory import memory_charts
from laminabench.render.charts.over_time import rate_chart, tbt_chart, ttft_charts
from laminabench.render.charts.plan import front_chart
from laminabench.render.shown import shown
from laminabench.render.static.plotted import legend_of, plot
from laminabench.render.style import CYCLE, INK, PAGE, foot, look, sheet
from laminabench.runs.manifest import NUMBERS
from laminabench.runs.read import Run
from laminabench.systems.registry import system
from laminabench.traces.formats.wording import printable
from laminabench.workflows.compare.cells import Cell
from laminabench.workflows.compare.curves import Curve
from laminabench.workflows.compare.sides import SideBySide
from laminabench.workflows.plan.reprice import front_at
from laminabench.workflows.plan.stored import StoredPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLOWEST = 3  # times the limit: slower candidates would squeeze the rest


def replay_picture(run: Run, title: str) -> Figure:
    """Return a replay over time: tokens a second, times, faults, and the memories of boards."""
    runs = shown([run])
    charts = [rate_chart(runs), tbt_chart(runs), *ttft_charts(runs), *memory_charts(runs)]
    return column(charts, title)


def column(charts: Sequence[Chart], title: str) -> Figure:
    """Return charts over the same axis, one below the other."""
    with look():
        height = 1.2 + 2.1 * len(charts)
        figure, panels = sheet(len(charts), 1, width=10.5, height=height, sharex=True, squeeze=False)
        # Users' names are not formulas.
        figure.suptitle(printable(title), parse_math=False)
        for axes, chart in zip(panels.flat, charts, strict=True):
            plot(axes, chart)
            axes.label_outer()
        legend_of(figure, panels.flat, loc="outside lower center", ncols=5)
    return figure


def plan_picture(plan: StoredPlan) -> Figure:
    """Return a plan's candidates by cost and time between tokens, a panel a cost set."""
    with look():
        figure, panels = sheet(1, len(plan.answers), width=PAGE, height=3.4, squeeze=False, sharey=True)
        for axes, answer in zip(panels.flat, plan.answers, strict=True):
            front = front_at(answer.replayed, plan.prices, plan.slo_tbt_p99_ms)
            plot(axes, front_chart(plan, front, "usd_per_million_tokens", "tbt_p99_ms"))
            axes.set_title(printable(answer.costs), parse_math=False)
            axes.set_xlim(0.0, min(axes.get_xlim()[1], SLOWEST * plan.slo_tbt_p99_ms))
            axes.label_outer()
        legend_of(figure, panels.flat, loc="outside upper center", ncols=6)
        names = printable(f"{plan.trace.name}, {plan.model}, {plan.mode}")
        foot(figure, f"modelled; {names}; replayed candidates, up to {SLOWEST} times the limit")
    return figure


def cost_picture(named: Sequence[tuple[str, Curve]], slo_tbt_ms: float, title: str) -> Figure:
    """Return cost against time between tokens of a comparison."""
    chart = cost_chart(named, slo_tbt_ms)
    with look():
        entries = len(named) + 2  # the ring and the limit
        columns = 4 if len(named) <= 2 else 3
        figure, axes = sheet(width=PAGE, height=3.6 + 0.6 * math.ceil(entries / columns))
        plot(axes, chart)
        axes.set_title(printable(title), parse_math=False)
        legend_of(figure, [axes], loc="outside upper center", ncols=columns)
        foot(figure, f"Modelled. {chart.note}")
    return figure


def errors_picture(charts: Sequence[Chart]) -> Figure:
    """Return charts of errors side by side."""
    with look():
        rows = max(len(trace["y"]) for chart in charts for trace in chart.traces)
        width, height = 4.0 * len(charts), 0.3 * rows + 1.2
        figure, panels = sheet(1, len(charts), width=width, height=height, squeeze=False, sharey=True)
        for axes, chart in zip(panels.flat, charts, strict=True):
            plot(axes, chart)
            axes.set_title(printable(chart.title), parse_math=False)
        legend_of(figure, panels.flat, loc="outside lower center", ncols=5)
    return figure


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


PANELS = {
    "throughput_tokens_per_s": "tokens/s",
    "tbt_ms.p99": "TBT p99 in ms",
    "cost.usd_per_million_tokens": "$ a million tokens",
}
# More lines are not distinguishable, nor their names readable.
MOST_NAMED = 14
_DASHES = ("solid", "dash", "dot", "dashdot")
Row = Mapping[str, Any]


def sweep_picture(rows: Sequence[Row], varied: Sequence[str]) -> Figure:
    """Return a sweep over one flag, the first whose values are numbers, with a line for each other value."""
    along = next((name for name in varied if _numeric(rows, name)), varied[0])
    lines: dict[str, list[Row]] = {}
    for row in rows:
        named = ", ".join(f"{name} {row[name]}" for name in varied if name != along)
        lines.setdefault(named, []).append(row)
    with look():
        figure, panels = sheet(1, len(PANELS), width=1.5 * PAGE, height=4.2)
        for axes, (key, title) in zip(panels, PANELS.items(), strict=True):
            plot(axes, _chart(lines, along, key, title))
        if 1 < len(lines) <= MOST_NAMED:
            legend_of(figure, panels, loc="outside lower center", ncols=4)
        backends = sorted({str(row["backend"]) for row in rows})
        traces = sorted({str(row["trace.name"]) for row in rows if row.get("trace.name")})
        title = f"{', '.join(traces)}: {len(rows):,} points, {' and '.join(backends)}"
        # A user's name is not a formula.
        figure.suptitle(printable(title), parse_math=False)
    return figure


def _chart(lines: Mapping[str, Sequence[Row]], along: str, key: str, title: str) -> Chart:
    numeric = all(_numeric(rows, along) for rows in lines.values())
    traces: list[PlotlyJson] = []
    for place, (name, rows) in enumerate(lines.items()):
        # Points that failed or have no price are left out.
        known = [row for row in rows if row.get(key) is not None]
        if numeric:
            known.sort(key=lambda row: float(row[along]))
        dash = _DASHES[place // len(CYCLE) % len(_DASHES)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label(name),
                "x": [row[along] if numeric else label(str(row[along])) for row in known],
                "y": rounded(row[key] for row in known),
                "line": {"color": CYCLE[place % len(CYCLE)], "dash": dash},
            }
        )
    integral = numeric and all(isinstance(row[along], int) for rows in lines.values() for row in rows)
    x = axis(label(along), tickformat="d" if integral else "")
    # The usual margin is of the values' range, which may be far from zero.
    most = max((max(trace["y"], default=0) for trace in traces), default=0)
    y = axis(title, rangemode="tozero", **({"range": [0, 1.05 * most]} if most > 0 else {}))
    return Chart(key, title, "", "", traces, {"xaxis": x, "yaxis": y})


def _numeric(rows: Sequence[Row], name: str) -> bool:
    return all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows)
