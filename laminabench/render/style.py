"""The style of figures: colours for colour-blind readers, in light and dark.

The text of a picture is one ink on one paper. In an SVG the two change places where the reader's system is
dark; a PNG is always light, for print.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches: a column of a two-column paper, and both.
COLUMN, PAGE = 3.45, 7.1
# After Okabe and Ito.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442"),
)
# Keyword arguments for drawing functions.
Looks = dict[str, Any]

CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
INK, PAPER, RULE, PUBLISHED = "#1f2328", "#ffffff", "#d0d4d9", "#6e7781"
# Background of text in a picture, which hides grid lines.
OVER_GRID: dict[str, object] = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
_DARK = {INK: "#e6e8eb", PAPER: "#14171c", RULE: "#3a4048", PUBLISHED: "#9aa4af"}

# At 6 points; a line of mostly capitals would still fit.
_FOOT_CHARACTERS_PER_INCH = 22.5

_THEME: dict[str, object] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 8,
    "figure.facecolor": PAPER,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "laminabench",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 7,
    "ytick.color": INK,
    "ytick.labelsize": 7,
}


@contextmanager
def look() -> Iterator[None]:
    """Apply this style to everything drawn and saved in the block."""
    import matplotlib as mpl
    from cycler import cycler

    theme: Any = {**_THEME, "axes.prop_cycle": cycler(color=CYCLE)}
    with mpl.rc_context(theme):
        yield


def sheet(
    rows: int = 1, columns: int = 1, *, width: float = COLUMN, height: float = 2.2, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure and its axes of this size in inches; call it inside `look`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def published_band(axes: Axes, low: float, high: float, words: str) -> None:
    """Draw a paper's range as a grey band."""
    axes.axhspan(low, high, facecolor=PUBLISHED, alpha=0.18, lw=0, label=words)


def foot(figure: Figure, words: str) -> None:
    """Write how a picture was obtained below it, in as many lines as needed."""
    lines = textwrap.fill(words, int(_FOOT_CHARACTERS_PER_INCH * figure.get_figwidth()))
    figure.supxlabel(lines, fontsize=6, color=PUBLISHED, x=0.01, ha="left", linespacing=1.2, parse_math=False)


def sentence(words: str) -> str:
    """Capitalise the first letter only, so that names keep theirs."""
    return words[:1].upper() + words[1:]


def table_picture(frame: pd.DataFrame, *, width: float = PAGE) -> Figure:
    """Draw a data frame as a table with a foot."""
    lines = 1 + max(str(name).count("\n") for name in frame.columns)
    figure, axes = sheet(width=width, height=0.22 * (len(frame) + lines) + 0.35)
    axes.set_axis_off()
    cells = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    table = axes.table(cells, colLabels=[*map(str, frame.columns)], loc="center", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(7)
    table.scale(1, 1.2)
    table.auto_set_column_width(range(len(frame.columns)))
    for (row, _), cell in table.get_celld().items():
        cell.set_edgecolor(RULE)
        cell.set_text_props(color=INK, weight="bold" if row == 0 else "normal")
        cell.set_facecolor("none")
        if row == 0:
            cell.set_height(cell.get_height() * lines)
    return figure


def _cell(value: object) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return "-"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "-" if value is None else str(value)


def save(picture: Figure, target: Path) -> None:
    """Save a .png, or an .svg that follows the reader's light or dark; call it inside `look`."""
    if target.suffix == ".png":
        picture.savefig(target, dpi=200)
        return
    picture.savefig(target, metadata={"Date": None})
    target.write_text(_follows_the_reader(target.read_text(encoding="utf-8")), encoding="utf-8")


def _follows_the_reader(svg: str) -> str:
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in _DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    styled, matches = re.subn(r"(<svg\b[^>]*>)", lambda tag: tag[1] + style, svg, count=1)
    assert matches
    return styled
