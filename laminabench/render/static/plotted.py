"""Charts as pictures: matplotlib draws the same description that plotly draws on a page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from laminabench.render.charts.chart import Chart, PlotlyJson
from laminabench.render.style import INK, Looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}
_STEPS = {"hv": "steps-post", "hvh": "steps-mid", "vh": "steps-pre"}
_SYMBOLS = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "cross": "P", "x": "X", "star": "*",
}  # fmt: skip
# Points per pixel of a page's marks.
_POINTS = 0.55
# Lines with at most this many points mark each of them.
_FEW = 30


def plot(axes: Axes, chart: Chart) -> None:
    """Draw a chart of lines, marks, areas and bars."""
    stacked: dict[str, NDArray[np.float64]] = {}
    for trace in chart.traces:
        x, y = _values(trace["x"]), _values(trace["y"])
        if trace["type"] == "bar":
            _bars(axes, trace, x, y)
        elif trace.get("fill") == "toself":
            axes.fill(x, y, color=trace["fillcolor"], alpha=trace.get("opacity"), lw=0)
        elif group := trace.get("stackgroup"):
            base = stacked.get(group, np.zeros(len(y)))
            stacked[group] = base + np.asarray(y, float)
            axes.fill_between(x, base, stacked[group], color=trace["fillcolor"], lw=0, label=_name(trace))
        else:
            _scatter(axes, trace, x, y)
    _limits(axes, chart.layout)
    for name in ("x", "y"):
        _axis(axes, name, chart.layout.get(f"{name}axis", {}))


def legend_of(figure: Figure, panels: Sequence[Axes], **how: Any) -> None:
    """Give a figure one legend of what any of its panels has."""
    named = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(named.values()), list(named), **how)


def plain(text: str) -> str:
    """Return a page's text as it reads; its dollars are no formulas."""
    return html.unescape(text.replace("<br>", "\n")).replace("$", r"\$")


def _values(values: Sequence[Any]) -> list[Any]:
    return [np.nan if each is None else plain(each) if isinstance(each, str) else each for each in values]


def _name(trace: PlotlyJson) -> str | None:
    return plain(trace["name"]) if trace.get("showlegend", True) and "name" in trace else None


def _scatter(axes: Axes, trace: PlotlyJson, x: Sequence[Any], y: Sequence[Any]) -> None:
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace["mode"]
    symbol = marker.get("symbol", "circle")
    looks: Looks = {"alpha": trace.get("opacity", marker.get("opacity")), "label": _name(trace)}
    if "lines" in mode:
        looks |= {"ls": _DASHES[line.get("dash", "solid")], "lw": 0.7 * line.get("width", 2)}
        looks |= {"color": line["color"], "marker": "." if len(x) < _FEW else ""}
        looks |= {"drawstyle": _STEPS.get(line.get("shape", "linear"), "default")}
    else:
        hollow = symbol.endswith("-open")
        looks |= {"ls": "", "marker": _SYMBOLS[symbol.removesuffix("-open")], "color": marker["color"]}
        looks |= {"markersize": _POINTS * marker.get("size", 8), "mfc": "none" if hollow else marker["color"]}
        looks |= {"mew": 0.6 * marker.get("line", {}).get("width", 1)}
    axes.plot(x, y, **looks)
    if error := trace.get("error_x"):
        ends = [error["arrayminus"], error["array"]]
        axes.errorbar(x, y, xerr=ends, fmt="none", ecolor=error["color"], elinewidth=1)


def _bars(axes: Axes, trace: PlotlyJson, x: Sequence[Any], y: Sequence[Any]) -> None:
    looks = {"color": trace["marker"]["color"], "alpha": trace.get("opacity"), "label": _name(trace)}
    axes.barh(y, x, trace.get("width", 0.8), left=trace.get("base", 0), lw=0, zorder=0.5, **looks)


def _limits(axes: Axes, layout: PlotlyJson) -> None:
    """Draw lines and spans that are no data: limits, faults; each name is once in the legend."""
    names = set()
    for shape in layout.get("shapes", ()):
        label = None if shape["name"] in names else shape["name"]
        names.add(shape["name"])
        if shape["type"] == "rect":
            looks = {"alpha": shape["opacity"], "lw": 0, "color": shape["fillcolor"], "label": label}
            axes.axvspan(shape["x0"], shape["x1"], **looks)
            continue
        line = shape["line"]
        looks = {"ls": _DASHES[line["dash"]], "color": line.get("color", INK), "lw": 0.8, "label": label}
        if shape.get("yref") == "paper":
            axes.axvline(shape["x0"], **looks)
        else:
            axes.axhline(shape["y0"], **looks)


def _axis(axes: Axes, name: str, layout: Mapping[str, Any]) -> None:
    own = getattr(axes, f"{name}axis")
    if title := layout.get("title", {}).get("text"):
        axes.set(**{f"{name}label": plain(title)})
    if layout.get("type") == "log":
        axes.set(**{f"{name}scale": "log"})
        own.set_major_formatter("{x:g}")
        own.set_minor_formatter("{x:g}")
    if layout.get("tickformat", "").endswith("%"):
        own.set_major_formatter(lambda value, _: f"{value:.0%}")
    if layout.get("tickformat") == "d":
        own.get_major_locator().set_params(integer=True)
    if layout.get("rangemode") == "tozero":
        axes.set(**{f"{name}lim": (0, None)})
    if low_high := layout.get("range"):
        axes.set(**{f"{name}lim": tuple(low_high)})
    if layout.get("autorange") == "reversed":
        own.set_inverted(True)
