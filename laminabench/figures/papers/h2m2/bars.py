"""Speed-ups as H2M2's figures show them: a group of bars for each point, and their averages at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from laminabench.figures.papers.h2m2.ground import COLOURS
from laminabench.render.style import INK, OVER_GRID, PAGE, PUBLISHED, Looks, sheet

_GROUP = 0.8  # of the distance between two groups
# Averages have a number above each bar: these are as wide as that, in inches.
_NUMBER = 0.24
_NUMBERS: Looks = {
    "xytext": (0, 3),
    "textcoords": "offset points",
    "ha": "center",
    "va": "bottom",
    "fontsize": 6,
    "color": INK,
    "bbox": {**OVER_GRID, "pad": 0},
}
DOTS: Looks = {"color": PUBLISHED, "lw": 1.6, "ls": (0, (1, 1))}


def picture_of_points(
    frame: pd.DataFrame,
    published: Mapping[str, float],
    *,
    ncols: int,
    height: float = 2.6,
    words: Mapping[str, str] | None = None,
    colours: Mapping[str, str] = COLOURS,
) -> Figure:
    """Speed-ups over LPDDR alone at each batch and length, and their averages beside the published ones."""
    figure, axes = sheet(width=PAGE, height=height)
    # As the paper writes them.
    names = "B" + frame["batch"].astype(str) + "\nS" + frame["length"].astype(str)
    bars(axes, frame, names, inches=PAGE, published=published, colours=colours)
    axes.set_ylabel("speed-up over LPDDR-only")
    handles, labels = legend_entries(axes)
    labels = [(words or {}).get(label, label) for label in labels]
    figure.legend(handles, labels, loc="outside upper left", ncols=ncols)
    return figure


def bars_of_lengths(
    axes: Axes,
    frame: pd.DataFrame,
    *,
    inches: float,
    published: Mapping[str, float],
    column: str = "speed_up",
) -> None:
    """Bars where the batch is always the same."""
    names = frame["length"].astype(str)
    bars(axes, frame, names, inches=inches, column=column, published=published)
    axes.set(xlabel="length of the requests, tokens", ylabel="speed-up over LPDDR-only")


def bars(
    axes: Axes,
    frame: pd.DataFrame,
    names: pd.Series[str],
    *,
    inches: float,
    column: str = "speed_up",
    published: Mapping[str, float],
    colours: Mapping[str, str] = COLOURS,
) -> None:
    """Every point of the frame, then the averages; what is published of these is a dotted grey line.

    `inches` is how wide the axes are, about. Where the frame has columns `lowest` and `highest`, thin lines
    go from one to the other.
    """
    ways = list(dict.fromkeys(frame["way"]))
    points = list(dict.fromkeys(names))
    width = _GROUP / len(ways)
    # Averages are apart from the points, and wide enough for their numbers.
    wide = max(width, _NUMBER * (len(points) + 2) / inches)
    middle = len(points) - 0.5 + 0.4 + wide * len(ways) / 2
    for place, way in enumerate(ways):
        mine = frame[frame["way"] == way]
        shift = place - (len(ways) - 1) / 2
        places = [points.index(name) + shift * width for name in names[mine.index]]
        axes.bar(places, mine[column], width, color=colours[way], label=way, linewidth=0)
        mean, line = float(mine[column].mean()), published.get(way)
        axes.bar(middle + shift * wide, mean, wide, color=colours[way], linewidth=0)
        if {"lowest", "highest"} <= set(mine.columns):
            lows, highs = ([*mine[end], mine[end].mean()] for end in ("lowest", "highest"))
            axes.vlines([*places, middle + shift * wide], lows, highs, color=INK, lw=0.8)
        above = (middle + shift * wide, max(mean, line or 0.0))
        axes.annotate(f"{mean:.2f}", above, **_NUMBERS)
        if line is not None:
            left = middle + (shift - 0.5) * wide
            axes.hlines(line, left, left + wide, zorder=3, **DOTS)
    axes.set_xticks([*range(len(points)), middle], [*points, "average"])
    axes.set_xlim(-0.6, middle + wide * len(ways) / 2 + 0.2)
    axes.grid(visible=False, axis="x")


def legend_entries(axes: Axes) -> tuple[list[Any], list[str]]:
    """The bars', and the dotted line's."""
    handles, labels = axes.get_legend_handles_labels()
    return [*handles, Line2D([], [], **DOTS)], [*labels, "published average"]
