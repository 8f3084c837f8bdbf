"""Boxes, lines and words of a slice's picture, in inches from its upper left corner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laminabench.render.static.fold import Box, Folded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 2.35  # what is said of each band stands left of it
LANE = 2.1  # of the attention workers
HEIGHT = 0.4

# Told apart by people who see no red or green (after Okabe and Ito).
CUT, MOVED, PLAIN = "#d55e00", "#0072b2", "#9a9a9a"
_LOOKS = {
    # fill, border, text
    "product": ("#34495e", "#34495e", "white"),
    "lookup": ("#7d8fa1", "#7d8fa1", "white"),
    "elementwise": ("white", "#8a8a8a", "#222222"),
    "saved": ("#fdeee3", CUT, "#222222"),
    "input": ("#eeeeee", "#8a8a8a", "#222222"),
    "output": ("#eeeeee", "#8a8a8a", "#222222"),
    "send": ("#e3f0f8", MOVED, "#222222"),
    "receive": ("#e3f0f8", MOVED, "#222222"),
    "attention": ("#fbe7b2", "#b8860b", "#222222"),
}
_TITLE, _DETAIL = 9.0, 7.0
# Of DejaVu Sans, with something to spare for a viewer that has another font.
_EM = 0.64 / 72


def box_width(box: Box) -> float:
    """Wide enough for its words."""
    return max(len(box.title) * _TITLE * _EM, len(box.detail) * _DETAIL * _EM, 0.45) + 0.16


class Pen:
    """Draws on one page."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure: Figure = Figure(figsize=(width, height), facecolor="white")
        self.axes: Axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.set_axis_off()

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float,
        bold: bool = False,
        colour: str = "#222222",
        middle: bool = False,
        top: bool = False,
    ) -> None:
        self.axes.text(
            x, y, words, fontsize=size, weight="bold" if bold else "normal", color=colour, zorder=6,
            ha="center" if middle else "left", va="top" if top else "center", parse_math=False,
            linespacing=1.35,
        )  # fmt: skip

    def box(self, box: Box, x: float, y: float) -> None:
        fill, border, ink = _LOOKS[box.kind]
        self._rounded(x - box_width(box) / 2, y - HEIGHT / 2, box_width(box), HEIGHT, fill, border)
        if box.detail:
            self.text(x, y - 0.075, box.title, size=_TITLE, colour=ink, middle=True)
            self.text(x, y + 0.1, box.detail, size=_DETAIL, colour=ink, middle=True)
        else:
            self.text(x, y, box.title, size=_TITLE, colour=ink, middle=True)

    def attention(self, x: float, top: float, bottom: float, says: Sequence[tuple[float, str]]) -> None:
        """An operator on the attention workers, as long as it runs."""
        fill, border, ink = _LOOKS["attention"]
        self._rounded(x, top, LANE, bottom - top, fill, border)
        for place, (y, words) in enumerate(says):
            bold = place == 0
            self.text(x + LANE / 2, y, words, size=9 if bold else 8, bold=bold, colour=ink, middle=True)

    def band(self, x: float, width: float, top: float, bottom: float, *, shaded: bool) -> None:
        from matplotlib.patches import Rectangle

        colour = "#eef1f4" if shaded else "#f7f8fa"
        self.axes.add_patch(
            Rectangle((0.15, top), x - 0.15 + width, bottom - top, color=colour, lw=0, zorder=0)
        )

    def cut_line(self, x: float, width: float, y: float, words: str, *, above: bool) -> None:
        self.axes.plot([0.15, x + width], [y, y], color=CUT, lw=1.2, linestyle=(0, (5, 3)), zorder=1)
        self.text(0.25, y + (-0.15 if above else 0.16), words, size=9, bold=True, colour=CUT)

    def line(self, x: Sequence[float], y: Sequence[float], colour: str, into: float) -> None:
        """From the lower side of the first place to the upper side of the last, upright at each bend."""
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path

        xs, ys = [*x[:-1], into], list(y)
        ys[0] += HEIGHT / 2
        ys[-1] -= HEIGHT / 2
        points, codes = [(xs[0], ys[0])], [Path.MOVETO]
        for place in range(1, len(xs)):
            # A bend is passed upright from the height of a box's upper side to its lower.
            last = place == len(xs) - 1
            end = ys[place] if last else ys[place] - HEIGHT / 2
            start = points[-1]
            half = (start[1] + end) / 2
            points += [(start[0], half), (xs[place], half), (xs[place], end)]
            codes += [Path.CURVE4] * 3
            if not last:
                points.append((xs[place], ys[place] + HEIGHT / 2))
                codes.append(Path.LINETO)
        strong = colour != PLAIN
        self.axes.add_patch(
            FancyArrowPatch(
                path=Path(points, codes), arrowstyle="-|>,head_length=4,head_width=2",
                color=colour, lw=1.8 if strong else 0.9, zorder=3 if strong else 2, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip

    def across(self, start: float, end: float, y: float, words: str) -> None:
        """What moves between the two lanes."""
        from matplotlib.patches import FancyArrowPatch

        style = "-|>,head_length=6,head_width=3"
        self.axes.add_patch(
            FancyArrowPatch(
                (start, y), (end, y), arrowstyle=style, color=MOVED, lw=2.4, zorder=4, shrinkA=0, shrinkB=0
            )
        )
        self.label((start + end) / 2, y - 0.14, words, MOVED)

    def label(self, x: float, y: float, words: str, colour: str) -> None:
        """A number on a line."""
        self.axes.text(
            x, y, words, fontsize=8, weight="bold", color=colour, ha="center", va="center", zorder=7,
            parse_math=False, bbox={"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.85},
        )  # fmt: skip

    def legend(self, y: float, folded: Folded) -> None:
        """What the looks mean, in two lines."""
        x = 0.25
        for kind, words in (
            ("product", "matrix product, weight's shape"),
            ("elementwise", "elementwise operators; those that continue one value are one box"),
            ("attention", "attention"),
            ("lookup", "table look-up"),
        ):
            if kind == "lookup" and all(box.kind != kind for box in folded.boxes.values()):
                continue
            fill, border, _ = _LOOKS[kind]
            self._rounded(x, y - 0.08, 0.28, 0.16, fill, border)
            self.text(x + 0.36, y, words, size=8)
            x += 0.36 + len(words) * 8 * 0.56 / 72 + 0.3
        x, y = 0.25, y + 0.3
        for colour, words in (
            (CUT, "cut: saved from slice to slice, bytes of one request"),
            (MOVED, "moved between workers, bytes of one token"),
            (PLAIN, "within the slice"),
        ):
            self.axes.plot([x, x + 0.28], [y, y], color=colour, lw=1.0 if colour == PLAIN else 2.2)
            self.text(x + 0.36, y, words, size=8)
            x += 0.36 + len(words) * 8 * 0.56 / 72 + 0.3
        views = f"{folded.views} views (reshape, transpose, slice, ...) are folded into the lines"
        self.text(
            0.25, y + 0.3, f"Time runs downwards. {views}: they move no data.", size=8, colour="#444444"
        )

    def _rounded(self, x: float, y: float, width: float, height: float, fill: str, border: str) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = "round,pad=0,rounding_size=0.07"
        self.axes.add_patch(
            FancyBboxPatch((x, y), width, height, boxstyle=style, fc=fill, ec=border, lw=1.1, zorder=5)
        )
