"""Pictures of the charts that pages show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from laminabench.render.charts.chart import Chart
from laminabench.render.charts.cost import cost_chart
from laminabench.render.charts.memory import memory_charts
from laminabench.render.charts.over_time import rate_chart, tbt_chart, ttft_charts
from laminabench.render.charts.plan import front_chart
from laminabench.render.shown import shown
from laminabench.render.static.plotted import legend_of, plot
from laminabench.render.style import PAGE, foot, look, sheet
from laminabench.runs.read import Run
from laminabench.traces.formats.wording import printable
from laminabench.workflows.compare.curves import Curve
from laminabench.workflows.plan.reprice import front_at
from laminabench.workflows.plan.stored import StoredPlan

if TYPE_CHECKING:
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
