"""Pictures as data: a plot's panels and what is drawn in each, and the one function that draws them.

A plot is a grid of panels. With `across` and `down` each combination of their values has a column and a
row of panels, which show the rows of the frame that have these values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from laminabench.papers.claims import fill, look_up
from laminabench.render import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Scalar = str | int | float | bool
Style = str | dict[str, str]  # of all groups, or by a value of the columns that groups are made of

_HATCHES = {"hatched": "////"}
_DOTS: style.Looks = {"color": style.PUBLISHED, "lw": 1.6, "ls": (0, (1, 1))}
_NUMBERS: style.Looks = {
    "xytext": (0, 3),
    "textcoords": "offset points",
    "ha": "center",
    "va": "bottom",
    "fontsize": 6,
    "bbox": {**style.OVER_GRID, "pad": 0},
}


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that something shows, in groups that have a look of their own."""

    x: str = ""
    y: str = ""
    of: str = ""  # another frame than the figure's
    where: dict[str, Scalar | list[Scalar]] = {}
    by: tuple[str, ...] = ()  # columns; a group for each combination of their values
    order: tuple[str, ...] = ()  # of the groups of the first of them; as they come by default
    colours: Style = {}  # by default colours take turns
    label: str = ""  # a template over the values of a group

    def rows(self, frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        """Return the rows that are shown."""
        return select(frames[self.of], self.where)

    def groups(self, frame: pd.DataFrame) -> Iterator[tuple[dict[str, Scalar], pd.DataFrame]]:
        """Yield each group's values and rows."""
        if not self.by:
            yield {}, frame
            return
        groups = list(frame.groupby(list(self.by), sort=False))
        if self.order:
            groups.sort(key=lambda group: self.order.index(str(group[0][0])))
        for values, rows in groups:
            yield dict(zip(self.by, values, strict=True)), rows

    def colour(self, group: Mapping[str, Any], place: int) -> str:
        """Return a group's colour."""
        named = looked_up(self.colours, group)
        return colour(named) if named else style.CYCLE[place % len(style.CYCLE)]


class Lines(Data, frozen=True, tag_field="kind", tag="lines"):
    """Lines or marks over numbers: the mean of a group's rows at each x, and their spread."""

    spread: Literal["", "band", "bars"] = ""  # from the lowest to the highest
    low: str = ""  # a column that has the spread's lower end; so has `high` its upper
    high: str = ""
    dashes: Style = "-"
    marks: Style = ""
    size: float = 3.0
    width: float | dict[str, float] = 1.4
    hollow: bool = False
    above: bool = False
    each: bool = False  # every row in its order, not the means

    def draw(self, axes: Axes, frames: Mapping[str, pd.DataFrame], values: Mapping[str, Any]) -> None:
        for place, (group, rows) in enumerate(self.groups(self.rows(frames))):
            width = self.width if isinstance(self.width, float) else float(looked_up(self.width, group))
            look: style.Looks = {"color": self.colour(group, place), "lw": width}
            at = rows.groupby(self.x)
            if self.y:
                means = at[self.y].mean()
                axes.plot(
                    *((rows[self.x], rows[self.y]) if self.each else (means.index, means)),
                    ls=looked_up(self.dashes, group) or "-",
                    marker=looked_up(self.marks, group) or None,
                    markersize=self.size,
                    markeredgewidth=0 if self.spread == "band" else 1,
                    fillstyle="none" if self.hollow else "full",
                    label=fill(self.label, {**values, **group}) or "_",
                    zorder=3 if self.above else 2,
                    **look,
                )
            low, high = at[self.low or self.y].min(), at[self.high or self.y].max()
            if self.spread == "band":
                axes.fill_between(low.index, low, high, color=look["color"], alpha=0.2, lw=0)
            elif self.spread == "bars":
                axes.vlines(low.index, low, high, **look)


class Bars(Data, frozen=True, tag_field="kind", tag="bars"):
    """Bars side by side, a place for each x: the rows' mean, and a line over their range."""

    places: tuple[Scalar, ...] = ()  # of x, in order; as they come by default
    words: str = "{}"  # a template of a place's name
    spread: bool = True
    wide: float = 0.8
    numbers: str = ""  # the format of a number above each

    def draw(self, axes: Axes, frames: Mapping[str, pd.DataFrame], _: Mapping[str, Any]) -> None:
        rows = self.rows(frames)
        places = list(self.places) or list(dict.fromkeys(rows[self.x]))
        groups = list(self.groups(rows))
        dodged = self.by != (self.x,)
        width = self.wide / (len(groups) if dodged else 1)
        for place, (group, some) in enumerate(groups):
            at = some.groupby(self.x)[self.y].agg(["mean", "min", "max"]).reindex(places)
            xs = np.arange(len(places)) + (place - (len(groups) - 1) / 2) * width * dodged
            label = fill(self.label, group) or "_"
            drawn = axes.bar(xs, at["mean"], width, color=self.colour(group, place), label=label, linewidth=0)
            if self.numbers:
                axes.bar_label(drawn, fmt=self.numbers, fontsize=6, padding=1)
            if self.spread:
                axes.vlines(xs, at["min"], at["max"], color=style.INK, lw=1)
        axes.set_xticks(range(len(places)), [self.words.format(place) for place in places])
        axes.grid(visible=False, axis="x")


class Stack(Data, frozen=True, tag_field="kind", tag="stack"):
    """Bars of several columns on each other, and the spread of the whole."""

    parts: dict[str, str] = {}  # the colour of each column
    names: dict[str, str] = {}  # of the columns, in the legend
    hatches: Style = ""
    whole: str = ""
    wide: float = 0.76

    def draw(self, axes: Axes, frames: Mapping[str, pd.DataFrame], _: Mapping[str, Any]) -> None:
        rows = self.rows(frames)
        places = sorted(rows[self.x].unique())
        groups = list(self.groups(rows))
        width = self.wide / len(groups)
        for place, (group, some) in enumerate(groups):
            at = some.groupby(self.x).mean(numeric_only=True)
            xs = np.array([places.index(x) for x in at.index]) + (place - (len(groups) - 1) / 2) * width
            bottom = np.zeros(len(xs))
            hatch = _HATCHES.get(looked_up(self.hatches, group))
            for part, name in self.parts.items():
                label = self.names.get(part, part) if place == len(groups) - 1 else "_"
                look: style.Looks = {"color": colour(name), "hatch": hatch, "edgecolor": style.PAPER}
                axes.bar(xs, at[part], width, bottom, label=label, linewidth=0, **look)
                bottom += at[part].to_numpy()
            if self.whole:
                ends = some.groupby(self.x)[self.whole].agg(["min", "max"])
                axes.vlines(xs, ends["min"], ends["max"], color=style.INK, lw=1)
        axes.set_xticks(range(len(places)), [str(place) for place in places])
        axes.grid(visible=False, axis="x")


class Averages(Data, frozen=True, tag_field="kind", tag="averages"):
    """A group of bars for each point, at the end their averages, and dotted what is published of these."""

    inches: float = style.PAGE  # how wide the axes are, about
    words: str = ""  # a template of a point's name, over its row
    names: dict[str, str] = {}  # of groups, in the legend; the label by default
    published: dict[str, str] = {}  # of groups: the claim's id

    def draw(self, axes: Axes, frames: Mapping[str, pd.DataFrame], values: Mapping[str, Any]) -> None:
        """Draw thin lines too, where the frame has columns `lowest` and `highest`."""
        rows = self.rows(frames)
        names = [fill(self.words, row) for row in rows.to_dict("records")]
        points, groups = list(dict.fromkeys(names)), list(self.groups(rows.assign(name=names)))
        width = 0.8 / len(groups)
        # Averages stand away from the points, and are as wide as their numbers, which take so many inches.
        wide = max(width, 0.24 * (len(points) + 2) / self.inches)
        middle = len(points) - 0.1 + wide * len(groups) / 2
        dotted = "published average"
        for place, (group, some) in enumerate(groups):
            shift, look = place - (len(groups) - 1) / 2, self.colour(group, place)
            xs, at = [points.index(name) + shift * width for name in some["name"]], middle + shift * wide
            label = looked_up(self.names, group) or fill(self.label, group)
            axes.bar(xs, some[self.y], width, color=look, label=label, linewidth=0)
            mean, line = float(some[self.y].mean()), self._published(group, values)
            axes.bar(at, mean, wide, color=look, linewidth=0)
            if {"lowest", "highest"} <= set(some):
                lows, highs = ([*some[end], some[end].mean()] for end in ("lowest", "highest"))
                axes.vlines([*xs, at], lows, highs, color=style.INK, lw=0.8)
            axes.annotate(f"{mean:.2f}", (at, max(mean, line or 0.0)), color=style.INK, **_NUMBERS)
            if line is not None:
                axes.hlines(line, at - wide / 2, at + wide / 2, zorder=3, label=dotted, **_DOTS)
        axes.set_xticks([*range(len(points)), middle], [*points, "average"])
        axes.set_xlim(-0.6, middle + wide * len(groups) / 2 + 0.2)
        axes.grid(visible=False, axis="x")

    def _published(self, group: Mapping[str, Any], values: Mapping[str, Any]) -> float | None:
        claim = looked_up(self.published, group)
        return float(number(claim, values)) if claim else None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="rule"):
    """A line across the axes, or a band between two values; dotted and grey by default."""

    at: float | str  # a number, a claim's id, or a name of a computed value
    label: str = "_"
    axis: Literal["x", "y"] = "y"
    upright_at: float | None = None  # where a line between two values stands
    colour: str = "published"
    dashes: str = ":"
    width: float = 1.0

    def draw(self, axes: Axes, _: Mapping[str, pd.DataFrame], values: Mapping[str, Any]) -> None:
        at = number(self.at, values)
        label = fill(self.label, {**values, "at": at})
        look: style.Looks = {
            "color": colour(self.colour),
            "lw": self.width,
            "ls": self.dashes,
            "label": label,
        }
        if self.upright_at is not None:
            axes.vlines(self.upright_at, *at, **look)
        elif isinstance(at, tuple):
            style.published_band(axes, at[0], at[1], label)
        elif self.axis == "x":
            axes.axvline(at, **look)
        else:
            axes.axhline(at, **look)


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="note"):
    """Words at a place in a panel."""

    words: str
    x: float | str
    y: float | str
    units: tuple[Literal["data", "axes fraction"], ...] = ("data", "axes fraction")
    shift: tuple[float, float] = (3, 3)  # points
    align: tuple[str, str] = ("left", "bottom")
    size: float = 6
    colour: str = "ink"
    boxed: bool = True

    def draw(self, axes: Axes, _: Mapping[str, pd.DataFrame], values: Mapping[str, Any]) -> None:
        look: style.Looks = {"xycoords": self.units, "bbox": style.OVER_GRID if self.boxed else None}
        axes.annotate(
            fill(self.words, values),
            (number(self.x, values), number(self.y, values)),
            xytext=self.shift,
            textcoords="offset points",
            ha=self.align[0],
            va=self.align[1],
            fontsize=self.size,
            color=colour(self.colour),
            **look,
        )


class Names(Data, frozen=True, tag_field="kind", tag="names"):
    """Words next to each point; bold where a column is true."""

    bold: str = ""
    shifts: dict[str, tuple[float, float]] = {}  # points, by a value of `by`
    size: float = 7
    centred: bool = False

    def draw(self, axes: Axes, frames: Mapping[str, pd.DataFrame], _: Mapping[str, Any]) -> None:
        for group, rows in self.groups(self.rows(frames)):
            for row in rows.to_dict("records"):
                axes.annotate(
                    fill(self.label, row),
                    (row[self.x], row[self.y]),
                    xytext=looked_up(self.shifts, group) or (0, 4),
                    textcoords="offset points",
                    ha="center" if self.centred else "left",
                    fontsize=self.size,
                    color=style.INK,
                    weight="bold" if self.bold and row[self.bold] else "normal",
                    bbox={**style.OVER_GRID, "pad": 0} if self.centred else None,
                )


Layer = Lines | Bars | Stack | Averages | Rule | Note | Names


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pair of axes; titles and labels are templates over the values that the panel stands for."""

    layers: tuple[Layer, ...]
    only: dict[str, Scalar] = {}  # panels of the grid that have it all; the first that fits is drawn
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    everywhere: bool = False  # labels not at the grid's edges only
    xlim: tuple[float | str, ...] = ()  # the lower, or both ends
    ylim: tuple[float | str, ...] = ()
    xscale: str = "linear"  # or log, or log2
    yscale: str = "linear"
    xticks: tuple[float, ...] | str = ()  # or, as the next three, the name of a computed value
    yticks: tuple[float, ...] | str = ()
    xnames: tuple[str, ...] | str = ()
    ynames: tuple[str, ...] | str = ()
    margins: dict[str, float] = {}
    upright: bool = True  # whether the grid has upright lines, which bars hide by themselves
    small: bool = False  # title and names of places
    turned: bool = False  # names of places
    whole: bool = False  # ticks at whole numbers only
    legend: Any = ""  # where its own is

    def draw(
        self,
        axes: Axes,
        frames: Mapping[str, pd.DataFrame],
        values: Mapping[str, Any],
        edges: tuple[bool, bool],
    ) -> None:
        """Draw the layers; `edges` are whether the panel is in the last row and in the first column."""
        for layer in self.layers:
            layer.draw(axes, frames, values)
        last, first = (each or self.everywhere for each in edges)
        axes.set_xlabel(fill(self.xlabel, values) if last else "")
        axes.set_ylabel(fill(self.ylabel, values) if first else "")
        small: style.Looks = {"fontsize": 7} if self.small else {}
        axes.set_title(fill(self.title, values), **small)
        axes.margins(x=self.margins.get("x"), y=self.margins.get("y"))
        if not self.upright:
            axes.grid(visible=False, axis="x")
        self._scales(axes, values)
        if self.whole:
            axes.locator_params(axis="x", integer=True)
        if self.turned or self.small:
            axes.tick_params(axis="x", rotation=30 if self.turned else 0, labelsize=6 if self.small else 7)
        if self.legend:
            axes.legend(loc=self.legend)

    def limit(self, axes: Axes, values: Mapping[str, Any]) -> None:
        """Set the limits, once all panels that share axes are drawn."""
        for limits, set_limits in ((self.xlim, axes.set_xlim), (self.ylim, axes.set_ylim)):
            if limits:
                set_limits(*(number(end, values) for end in limits))

    def _scales(self, axes: Axes, values: Mapping[str, Any]) -> None:
        for axis, scale, set_scale in (
            (axes.xaxis, fill(self.xscale, values), axes.set_xscale),
            (axes.yaxis, fill(self.yscale, values), axes.set_yscale),
        ):
            if scale != "linear":
                set_scale("log", base=2 if scale == "log2" else 10)
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
        for ticks, names, axis in (
            (self.xticks, self.xnames, axes.xaxis),
            (self.yticks, self.ynames, axes.yaxis),
        ):
            chosen: Any = (number(each, values) if isinstance(each, str) else each for each in (ticks, names))
            at, words = chosen
            if ticks or names:
                axis.set_ticks(at if ticks else range(len(words)), list(words) if names else None)
                axis.minorticks_off()


class Proxy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a legend that nothing drawn has."""

    label: str
    colour: str = "ink"
    dashes: str = "-"
    hatched: bool = False

    def handle(self) -> Any:
        """Return the mark next to the words."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        if self.hatched:
            return Patch(facecolor="none", edgecolor=style.INK, hatch=_HATCHES["hatched"])
        return Line2D([], [], color=colour(self.colour), ls=self.dashes)


class Legend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One for all panels that have none of their own: each label once."""

    loc: str = "outside upper left"
    ncols: int = 1
    title: str | None = None
    also: tuple[Proxy, ...] = ()


class Plot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture; or with `parts` several, below each other."""

    height: float
    panels: tuple[Panel, ...] = ()
    width: Literal["column", "page"] = "page"
    across: dict[str, list[Scalar] | str] = {}  # or the name of a computed value
    down: dict[str, list[Scalar] | str] = {}
    sharex: bool | str = False
    sharey: bool | str = False
    widths: tuple[float, ...] | None = None
    heights: tuple[float, ...] | None = None
    legend: Legend | None = None
    heading: str = ""
    parts: tuple[Plot, ...] = ()

    def picture(self, frames: Mapping[str, pd.DataFrame], values: Mapping[str, Any]) -> Any:
        """Return the figure; called inside `style.look`."""
        from matplotlib.figure import Figure

        wide = style.PAGE if self.width == "page" else style.COLUMN
        figure = Figure(figsize=(wide, self.height), layout="constrained")
        if not self.parts:
            self._draw(figure, frames, values)
            return figure
        below: Any = figure.subfigures(len(self.parts), 1, height_ratios=[part.height for part in self.parts])
        for where, part in zip(below, self.parts, strict=True):
            part._draw(where, frames, values)
        return figure

    def _draw(self, figure: Any, frames: Mapping[str, pd.DataFrame], values: Mapping[str, Any]) -> None:
        grid = self._grid(values)
        axes = figure.subplots(
            len(grid),
            len(grid[0]),
            squeeze=False,
            sharex=self.sharex,
            sharey=self.sharey,
            width_ratios=self.widths,
            height_ratios=self.heights,
        )
        drawn = []
        for down, row in enumerate(grid):
            for right, (panel, only) in enumerate(row):
                some = {
                    name: select(frame, {key: value for key, value in only.items() if key in frame})
                    for name, frame in frames.items()
                }
                first = some[""].iloc[0].to_dict() if len(some[""]) else {}
                here, known = axes[down][right], {**values, **first, **only}
                panel.draw(here, some, known, (down == len(grid) - 1, right == 0))
                drawn.append((panel, here, known))
        for panel, here, known in drawn:
            panel.limit(here, known)
        self._legend(figure, [here for panel, here, _ in drawn if not panel.legend])
        if self.heading:
            words = fill(self.heading, values)
            figure.suptitle(words, fontsize=7, color=style.PUBLISHED, x=0.01, ha="left")

    def _legend(self, figure: Any, axes: list[Axes]) -> None:
        """Add a legend with each label once, bars first."""
        from matplotlib.container import BarContainer

        if self.legend is None:
            return
        handles: dict[str, object] = {}
        for here in axes:
            for handle, label in zip(*here.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        handles |= {proxy.label: proxy.handle() for proxy in self.legend.also}
        labels = sorted(handles, key=lambda label: not isinstance(handles[label], BarContainer))
        look = {"loc": self.legend.loc, "ncols": self.legend.ncols, "title": self.legend.title}
        figure.legend([handles[label] for label in labels], labels, **look)

    def _grid(self, values: Mapping[str, Any]) -> list[list[tuple[Panel, dict[str, Scalar]]]]:
        """Return rows of panels, each with the values that it stands for."""
        columns, rows = (_combinations(each, values) for each in (self.across, self.down))
        if not self.across:
            return [[(panel, down) for panel in self.panels] for down in rows]
        choices = (
            [self.panels] if any(panel.only for panel in self.panels) else [(each,) for each in self.panels]
        )
        return [
            [(_fitting(some, down | right), down | right) for right in columns]
            for down in rows
            for some in choices
        ]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frame as the picture of a table."""

    width: Literal["column", "page"] = "page"
    columns: dict[str, str] = {}  # those shown, and what they are called; all by default
    floats: str = ""  # a format
    ints: str = ""
    formats: dict[str, str] = {}  # by column

    def picture(self, frames: Mapping[str, pd.DataFrame], _: Mapping[str, Any]) -> Any:
        """Return the figure; called inside `style.look`."""
        import pandas as pd

        frame = frames[""]
        shown = {
            name: frame[name].map(lambda value, name=name: self._text(name, value)).astype(object)
            for name in self.columns or frame.columns
        }
        table = pd.DataFrame(shown)
        table.columns = pd.Index([self.columns.get(name, name) for name in table.columns])
        return style.table_picture(table, width=style.PAGE if self.width == "page" else style.COLUMN)

    def _text(self, name: str, value: Any) -> Any:
        form = self.formats.get(name) or (
            self.floats if isinstance(value, float) else self.ints if isinstance(value, int) else ""
        )
        return form.format(value) if form else value


def select(frame: pd.DataFrame, only: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows that have these values, of a list any, of "!value" any other."""
    for column, allowed in only.items():
        values = [str(value) for value in (allowed if isinstance(allowed, list) else [allowed])]
        texts = frame[column].astype(str)
        frame = frame[texts != values[0][1:] if values[0].startswith("!") else texts.isin(values)]
    return frame


def colour(name: str) -> str:
    """Return the colour that `figures.style` has by this name, or the name as matplotlib knows it."""
    return str(getattr(style, name.upper(), name))


def looked_up(look: Any, group: Mapping[str, Any]) -> Any:
    """Return a look of all groups, or the one of the first of the group's values that has one."""
    if not isinstance(look, dict):
        return look
    return next((look[str(value)] for value in group.values() if str(value) in look), "")


def number(value: float | str, values: Mapping[str, Any]) -> Any:
    """Return a number, a claim's published value by the claim's id, or a computed value."""
    if not isinstance(value, str):
        return value
    name = fill(value, values)
    return values["stated"][name] if name in values["stated"] else look_up(name, values)


def _combinations(
    axes: Mapping[str, list[Scalar] | str], values: Mapping[str, Any]
) -> list[dict[str, Scalar]]:
    each = (values[named] if isinstance(named, str) else named for named in axes.values())
    return [dict(zip(axes, some, strict=True)) for some in itertools.product(*each)]


def _fitting(panels: tuple[Panel, ...], values: Mapping[str, Scalar]) -> Panel:
    return next(panel for panel in panels if panel.only.items() <= values.items())
