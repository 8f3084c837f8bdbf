"""A sweep: throughput, time between tokens and cost over one flag, a line for each value of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.render.static.drawn import drawn
from laminabench.traces.formats.wording import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "throughput_tokens_per_s": "tokens/s",
    "tbt_ms.p99": "TBT p99 in ms",
    "cost.usd_per_million_tokens": "$ a million tokens",
}
# More lines cannot be told apart, nor their names be read.
MOST_NAMED = 14
_MARKERS = "osD^vP*X"
Row = Mapping[str, Any]


def draw(rows: Sequence[Row], varied: Sequence[str], target: Path) -> None:
    """Draw it into `target`, as its suffix names."""
    drawn(lambda: picture(rows, varied), target)


def picture(rows: Sequence[Row], varied: Sequence[str]) -> Figure:
    """The figure, not yet written anywhere. Along x goes the first flag whose values are numbers."""
    import seaborn
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    along = next((name for name in varied if _numeric(rows, name)), varied[0])
    lines = _lines(rows, [name for name in varied if name != along])
    colours = seaborn.color_palette("viridis", len(lines))
    with seaborn.axes_style("whitegrid"):
        figure = Figure(figsize=(11.0, 4.2), facecolor="white", layout="constrained")
        panels = figure.subplots(1, len(PANELS))
    for axes, (key, title) in zip(panels, PANELS.items(), strict=True):
        for number, (label, own) in enumerate(lines.items()):
            marker = _MARKERS[number % len(_MARKERS)]
            _line(axes, own, along, key, label=label, color=colours[number], marker=marker)
        axes.set(xlabel=along, ylabel=title)
        axes.set_ylim(bottom=0)
        if _numeric(rows, along) and all(isinstance(row[along], int) for row in rows):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if 1 < len(lines) <= MOST_NAMED:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    backends = sorted({str(row["backend"]) for row in rows})
    traces = sorted({str(row["trace.name"]) for row in rows if row.get("trace.name")})
    title = f"{', '.join(traces)}: {len(rows):,} points, {' and '.join(backends)}"
    # A name is the user's: nothing in it is mathematics.
    figure.suptitle(printable(title), parse_math=False)
    return figure


def _numeric(rows: Sequence[Row], name: str) -> bool:
    return all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows)


def _lines(rows: Sequence[Row], others: Sequence[str]) -> dict[str, list[Row]]:
    """The rows of each combination of the other flags' values."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        label = printable(", ".join(f"{name} {row[name]}" for name in others))
        lines.setdefault(label, []).append(row)
    return lines


def _line(axes: Axes, rows: Sequence[Row], along: str, key: str, **look: Any) -> None:
    """Without the points that failed or have no price."""
    known = [row for row in rows if row.get(key) is not None]
    if _numeric(known, along):
        known.sort(key=lambda row: float(row[along]))
    x = [row[along] if _numeric(rows, along) else printable(str(row[along])) for row in known]
    axes.plot(x, [row[key] for row in known], lw=1.4, markersize=4, **look)
