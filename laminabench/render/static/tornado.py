"""A sensitivity as a tornado: a bar per input from its lowest to its highest gain, longest on top."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laminabench.render.static.drawn import check_target, drawn
from laminabench.render.style import (
    BLUE,
    INK,
    ORANGE,
    OVER_GRID,
    PAGE,
    PUBLISHED,
    foot,
    look,
    save,
    sheet,
)
from laminabench.util.atomic import replacing
from laminabench.workflows.sensitivity.answer import Bar, Point, Sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_THICK = 0.62


def draw(result: Sensitivity, where: str, target: Path) -> None:
    """Draw into `target`, in the format of its suffix; an .svg follows the reader's light or dark."""
    with look():
        if target.suffix.lower() != ".svg":
            drawn(lambda: picture(result, where), target)
            return
        check_target(target)
        with replacing(target) as temporary:
            save(picture(result, where), temporary)


def picture(result: Sensitivity, where: str) -> Figure:
    """Return the unsaved figure; call it inside `look`."""
    first, second = result.systems
    figure, axes = sheet(width=PAGE, height=0.9 + 0.27 * len(result.bars))
    axes.axvline(0, color=INK, lw=1)
    here = f"as given: {100 * result.base.gain:+.1f} %"
    axes.axvline(100 * result.base.gain, color=PUBLISHED, lw=1, ls=":", label=here)
    for row, bar in enumerate(result.bars):
        _bar(axes, row, bar, result.base.gain)
    axes.set_yticks(range(len(result.bars)), [_title(bar) for bar in result.bars])
    axes.set_ylim(len(result.bars) - 0.4, -0.6)
    low, high = axes.get_xlim()
    room = 0.2 * (high - low)  # for the values at the ends of bars
    axes.set_xlim(low - room, high + room)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"more tokens a dollar from {first} than from {second}, %")
    transform = axes.get_yaxis_transform()
    axes.text(1.01, -0.9, "flips", transform=transform, fontsize=7, weight="bold", va="center")
    for row, bar in enumerate(result.bars):
        axes.text(1.01, row, _literal(bar.flips), transform=transform, fontsize=7, va="center")
    on = " against ".join(f"{name} {result.deployments[name]}" for name in result.systems)
    for colour, words in ((BLUE, "low end of the range"), (ORANGE, "high end, or another choice")):
        axes.barh(0, 0, color=colour, label=words)
    axes.legend(ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    foot(figure, f"modelled; {where}; {on}; one input at a time; *: an assumed range; outside: of the range")
    return figure


def _title(bar: Bar) -> str:
    title = f"{bar.input.title}: {bar.input.text(bar.input.here)}" + (
        "*" if bar.input.kind == "assumed" else ""
    )
    return _literal(title)


def _bar(axes: Axes, row: int, bar: Bar, base: float) -> None:
    for end in sorted(bar.ends, key=lambda end: -abs(end.gain - base)):
        low = bar.break_even is not None and end.value == bar.input.values[0]
        axes.barh(row, 100 * (end.gain - base), _THICK, left=100 * base, color=BLUE if low else ORANGE)
    # One label on each side, for its farthest end.
    below = min(bar.ends, key=lambda end: end.gain, default=None)
    above = max(bar.ends, key=lambda end: end.gain, default=None)
    if below and below.gain < base:
        _label(axes, row, bar, below, "right")
    if above and above.gain > base:
        _label(axes, row, bar, above, "left")


def _label(axes: Axes, row: int, bar: Bar, end: Point, side: Literal["left", "right"]) -> None:
    gap = 3 if side == "left" else -3
    axes.annotate(
        _literal(bar.input.text(end.value)),
        (100 * end.gain, row),
        (gap, 0),
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=6,
        bbox=OVER_GRID,
    )


def _literal(text: str) -> str:
    """Escape dollars, which matplotlib takes for formulas."""
    return text.replace("$", r"\$")
