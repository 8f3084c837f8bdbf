"""A chart of the page: what plotly draws, and what is said about it in words."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.render.html import Markup, tag
from laminabench.render.shown import Shown
from laminabench.traces.formats.wording import printable

# What plotly takes: traces, layouts and parts of them, as its own reference defines.
PlotlyJson = dict[str, Any]
Values = Iterable[float] | NDArray[Any]
# More digits than a screen has pixels are only bytes.
_DIGITS = 6
# So many times the least, and both can be seen on a logarithmic axis only.
_DIP = 20
# Characters that a legend has room for on a telephone.
_LINE = 36
_LEGEND_PX = 20


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of plotly's, without the colours of text and paper: the script knows light from dark."""

    key: str
    title: str
    alt: str  # what a person sees who cannot see it
    note: str  # below it: what is drawn, and how much was left out
    traces: list[PlotlyJson]
    layout: PlotlyJson = field(default_factory=dict)
    height_px: int = 300

    def html(self) -> Markup:
        """Where the script puts it; without the script its words remain."""
        box = tag("div", class_="chart", id=self.key, role="group", aria_label=self.alt, style=self._style())
        missing = tag("noscript", tag("p", "The chart needs JavaScript. ", self.alt, class_="missing"))
        return tag("figure", tag("h3", self.title), box, missing, tag("figcaption", self.note))

    def _style(self) -> str:
        """Higher by what the legend takes where there is room for one name a line."""
        names = sum(trace.get("showlegend", True) for trace in self.traces)
        return f"height:{self.height_px + _LEGEND_PX * names}px"

    def figure(self) -> PlotlyJson:
        return {"id": self.key, "data": self.traces, "layout": self.layout}


def axis(title: str, **more: Any) -> PlotlyJson:
    return {"title": {"text": title}, "automargin": True, "zeroline": False, **more}


def line(
    each: Shown,
    x: Values,
    y: Values,
    hover: str,
    name: str = "",
    *,
    width: float = 2,
    shape: str = "linear",
    **more: Any,
) -> PlotlyJson:
    """A Run's line; `hover` is what pointing at it shows."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(name or each.name),
        "x": rounded(x),
        "y": rounded(y),
        "line": {"color": each.colour, "dash": each.dash, "width": width, "shape": shape},
        "hovertemplate": hover,
        "meta": {"run": each.number},
        **more,
    }


def bar(each: Shown, name: str, y: Sequence[str], x: Values, **more: Any) -> PlotlyJson:
    """Horizontal ones of a Run; the legend has their names from elsewhere."""
    kind = {"type": "bar", "orientation": "h", "name": name, "showlegend": False}
    return {**kind, "y": y, "x": rounded(x), "meta": {"run": each.number}, **more}


def marks(name: str, x: Values | Sequence[str], y: Values | Sequence[str], **marker: Any) -> PlotlyJson:
    """Return marks; `marker` is their looks, of what plotly calls so."""
    places = {"x": _places(x), "y": _places(y)}
    return {"type": "scatter", "mode": "markers", "name": name, **places, "marker": marker}


def _places(values: Values | Sequence[str]) -> Sequence[object]:
    """Return numbers, or names along an axis of categories."""
    some = list(values)
    return some if any(isinstance(each, str) for each in some) else rounded(some)


def label(name: str) -> str:
    """A name as plotly shows it as it is (it knows some tags, and entities), in lines if it is long."""
    escaped = html.escape(printable(name), quote=False)
    return escaped.replace(", ", ",<br>") if len(name) > _LINE else escaped


def rounded(values: Values) -> list[float | None]:
    """Numbers short enough for a page; null where nothing is known."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in map(float, values)]


def dotted_line(at: float, words: str, *, vertical: bool = True) -> dict[str, list[PlotlyJson]]:
    """A limit across the chart, with its name: parts of a layout."""
    along, across = ("x", "y") if vertical else ("y", "x")
    ends = {f"{along}0": at, f"{along}1": at, f"{across}0": 0, f"{across}1": 1}
    line = {"dash": "dot", "width": 1.5}
    shape = {"type": "line", "name": words, f"{across}ref": "paper", "line": line, **ends}
    place = {along: at, across: 1, f"{across}ref": "paper"}
    sign = {"text": words, "showarrow": False, "xanchor": "left", "yanchor": "bottom", "xshift": 2, **place}
    return {"shapes": [shape], "annotations": [sign]}


def times_axis(title: str, *values: Values) -> PlotlyJson:
    """Return an axis of times, logarithmic where a dip is many times what is normal."""
    known = np.concatenate([np.asarray(each, np.float64) for each in values])
    known = known[np.isfinite(known) & (known > 0)]
    if len(known) and known.max() > _DIP * known.min():
        return axis(title, type="log", tickformat="~g")
    return axis(title, rangemode="tozero")
