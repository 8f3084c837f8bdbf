"""A chart of a page: plotly's description, and the same in words."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.render.html import Markup, tag
from laminabench.render.shown import Shown
from laminabench.traces.formats.wording import printable

# Traces, layouts and parts of them, as plotly's reference defines.
PlotlyJson = dict[str, Any]
Values = Iterable[float] | NDArray[Any]
# More digits than a screen can resolve only add bytes.
_DIGITS = 6
# From this ratio of largest to least on, only a logarithmic axis shows both.
_DIP = 20
# Characters that fit a legend on a phone.
_LINE = 36
_LEGEND_PX = 20
# The tags of charts: what plotly interprets besides comes from a Run, a plan or a sweep of others.
_FOREIGN_TAG = re.compile("<(?!(?:br|/?b|/?extra)>)")


@dataclass(frozen=True, slots=True)
class Chart:
    """A plotly figure without colours of text and paper, which the script sets for light or dark."""

    key: str
    title: str
    alt: str  # for screen readers
    note: str  # below the chart: what is drawn, and how much was left out
    traces: list[PlotlyJson]
    layout: PlotlyJson = field(default_factory=dict)
    height_px: int = 300

    def html(self) -> Markup:
        """Return the element that the script draws into; without the script its text remains."""
        box = tag("div", class_="chart", id=self.key, role="group", aria_label=self.alt, style=self._style())
        missing = tag("noscript", tag("p", "The chart needs JavaScript. ", self.alt, class_="missing"))
        return tag("figure", tag("h3", self.title), box, missing, tag("figcaption", self.note))

    def _style(self) -> str:
        """Return the element's style: higher by the height of a legend with one name a line."""
        names = sum(trace.get("showlegend", True) for trace in self.traces)
        return f"height:{self.height_px + _LEGEND_PX * names}px"

    def figure(self) -> PlotlyJson:
        return {"id": self.key, **only_our_tags({"data": self.traces, "layout": self.layout})}


def only_our_tags(value: Any) -> Any:
    """Escape all tags in the texts of a chart but those that charts are written with."""
    if isinstance(value, str):
        return _FOREIGN_TAG.sub("&lt;", value) if "<" in value else value
    if isinstance(value, dict):
        return {only_our_tags(name): only_our_tags(each) for name, each in value.items()}
    return [only_our_tags(each) for each in value] if isinstance(value, list | tuple) else value


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
    """Return a Run's line; `hover` is shown when the pointer is on it."""
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
    """Return a Run's horizontal bars; other traces bring their legend entries."""
    kind = {"type": "bar", "orientation": "h", "name": name, "showlegend": False}
    return {**kind, "y": y, "x": rounded(x), "meta": {"run": each.number}, **more}


def marks(name: str, x: Values | Sequence[str], y: Values | Sequence[str], **marker: Any) -> PlotlyJson:
    """Return marks; `marker` is passed to plotly."""
    places = {"x": _places(x), "y": _places(y)}
    return {"type": "scatter", "mode": "markers", "name": name, **places, "marker": marker}


def _places(values: Values | Sequence[str]) -> Sequence[object]:
    """Return numbers, or names along an axis of categories."""
    some = list(values)
    return some if any(isinstance(each, str) for each in some) else rounded(some)


def label(name: str) -> str:
    """Escape a name for plotly, which interprets some tags and entities; wrap it if it is long."""
    escaped = html.escape(printable(name), quote=False)
    return escaped.replace(", ", ",<br>") if len(name) > _LINE else escaped


def rounded(values: Values) -> list[float | None]:
    """Round numbers to what a page needs; unknown values become null."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in map(float, values)]


def dotted_line(at: float, words: str, *, vertical: bool = True) -> dict[str, list[PlotlyJson]]:
    """Return the layout of a named limit across the chart."""
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
