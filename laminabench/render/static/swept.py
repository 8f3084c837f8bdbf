"""A picture of a sweep: throughput, TBT and cost over one flag, a line for each other value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from laminabench.render.charts.chart import Chart, PlotlyJson, axis, label, rounded
from laminabench.render.static.plotted import legend_of, plot
from laminabench.render.style import CYCLE, PAGE, look, sheet
from laminabench.traces.formats.wording import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "throughput_tokens_per_s": "tokens/s",
    "tbt_ms.p99": "TBT p99 in ms",
    "cost.usd_per_million_tokens": "$ a million tokens",
}
# More lines are not distinguishable, nor their names readable.
MOST_NAMED = 14
_DASHES = ("solid", "dash", "dot", "dashdot")
Row = Mapping[str, Any]


def picture(rows: Sequence[Row], varied: Sequence[str]) -> Figure:
    """Return the figure. Along x goes the first flag whose values are numbers."""
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
