"""A picture of one slice: the work between two attention operators, when, and what crosses the cut.

Time runs downwards in three bands, as the slice runs: until q is sent, until k and v are sent, and while
attention runs. The attention workers stand in a lane of their own on the right. Lengths are inches from the
upper left corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.render.static.drawn import drawn
from laminabench.render.static.fold import Box, Edge, Folded, fold
from laminabench.render.static.layered import Layout, Node, lay_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laminabench.conversion.report import ConversionReport

_BANDS = {
    "query": ("1", "before q is sent"),
    "keyvalue": ("2", "q is sent: k and v"),
    "rest": ("3", "during attention"),
    "logits": ("1", "up to the logits"),
}
_MARGIN = 2.35  # a band's text, on its left
_LANE = 2.1  # of the attention workers
_HEIGHT = 0.4
# Distinct for colour-blind readers (after Okabe and Ito).
_CUT, _MOVED, _PLAIN = "#d55e00", "#0072b2", "#9a9a9a"
_EDGES = {"cut": _CUT, "moved": _MOVED, "plain": _PLAIN}
_INK = "#222222"
_LOOKS = {
    # fill, border, text
    "product": ("#34495e", "#34495e", "white"),
    "lookup": ("#7d8fa1", "#7d8fa1", "white"),
    "elementwise": ("white", "#8a8a8a", _INK),
    "saved": ("#fdeee3", _CUT, _INK),
    "input": ("#eeeeee", "#8a8a8a", _INK),
    "output": ("#eeeeee", "#8a8a8a", _INK),
    "send": ("#e3f0f8", _MOVED, _INK),
    "receive": ("#e3f0f8", _MOVED, _INK),
    "attention": ("#fbe7b2", "#b8860b", _INK),
}
_TITLE, _DETAIL = 9.0, 7.0
# Widths of DejaVu Sans, with room for a viewer's substitute font.
_EM = 0.64 / 72


def box_width(box: Box) -> float:
    """Return a width that has room for the words."""
    return max(len(box.title) * _TITLE * _EM, len(box.detail) * _DETAIL * _EM, 0.45) + 0.16


def draw_slice(report: ConversionReport, index: int, target: Path) -> None:
    """Draw slice `index` of a conversion's report into `target`, in the format that its suffix names."""
    drawn(lambda: picture(report, index), target)


def picture(report: ConversionReport, index: int) -> Figure:
    """Return the figure, not yet written anywhere."""
    piece = report["slices"][index]
    folded = fold(piece, report["slices"][index - 1]["cut"] if index else [])
    rows = rows_of(folded, [part["name"] for part in piece["parts"]])
    sends = frozenset(name for name, box in folded.boxes.items() if box.kind in {"send", "receive"})
    edges = [(edge.tail, edge.head) for edge in folded.edges]
    layout = lay_out(edges, rows.of, lambda name: box_width(folded.boxes[name]), rightmost=sends)
    return _Drawing(report, index, folded, rows, layout).figure


class _Drawing:
    def __init__(
        self, report: ConversionReport, index: int, folded: Folded, rows: Rows, layout: Layout
    ) -> None:
        from matplotlib.figure import Figure

        self.report, self.index, self.folded, self.rows, self.layout = report, index, folded, rows, layout
        self.piece = report["slices"][index]
        half = {name: box_width(box) / 2 for name, box in folded.boxes.items()}
        left = min(x - half.get(str(node), 0.0) for node, x in layout.x.items())
        right = max(x + half.get(str(node), 0.0) for node, x in layout.x.items())
        # Room for the legend, however small the graph is.
        self.model_width = max(right - left + 0.5, 5.2)
        shift = _MARGIN + (self.model_width - (right - left)) / 2 - left
        for node in layout.x:
            layout.x[node] += shift
        self.lane = _MARGIN + self.model_width + 1.0
        width = self.lane + _LANE + 0.25
        self.figure = Figure(figsize=(width, rows.height), facecolor="white")
        self.axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set(xlim=(0, width), ylim=(rows.height, 0))
        self.axes.set_axis_off()
        self._title()
        self._bands()
        self._attention()
        for edge in folded.edges:
            self._edge(edge)
        for name, box in folded.boxes.items():
            self._box(box, layout.x[name], rows.heights[rows.of[name]])
        self._cuts()
        self._legend(rows.heights[-1] + 0.55)

    def _title(self) -> None:
        report, piece, last = self.report, self.piece, self.report["layers"]
        members = next(kind["slices"] for kind in report["classes"] if kind["index"] == piece["class"])
        also = f"one of {len(members)} equal ones (class {piece['class']}); " if len(members) > 1 else ""
        where = f"between the attention of layers {self.index - 1} and {self.index}"
        if self.index in {0, last}:
            where = "before the first attention" if self.index == 0 else "after the last attention"
        self._text(0.25, 0.36, f"{report['model']}: slice {self.index}, {where}", 15, weight="bold")
        facts = [report["dtype"]]
        if self.index < last:
            moved = report["transfer"][self.index]["bytes"]
            facts.insert(0, f"moved between workers: {moved:,} bytes a token and layer")
        if piece["cut"]:
            facts.insert(0, f"context saved around attention: {piece['cut_bytes']:,} bytes a request")
        self._text(0.25, 0.68, also + "; ".join(facts), 10)

    def _bands(self) -> None:
        from matplotlib.patches import Rectangle

        for x, words in ((0.25, "MODEL WORKER"), (self.lane, "ATTENTION WORKERS")):
            self._text(x, _TOP - 0.33, words, 8, color="#666666", weight="bold")
        work = {part["part"]: part for part in self.piece["products"]}
        for name, (top, bottom) in self.rows.bands.items():
            number, label = _BANDS[name]
            width = _MARGIN - 0.15 + self.model_width
            colour = "#eef1f4" if name == "keyvalue" else "#f7f8fa"
            self.axes.add_patch(Rectangle((0.15, top), width, bottom - top, color=colour, lw=0, zorder=0))
            count = len(work[name]["products"])
            products = f"{count} matrix product{'s' if count != 1 else ''},"
            weights = f"{work[name]['weight_bytes'] / 1e6:,.1f} MB of weights"
            caption = f"{products}\n{weights}" if work[name]["operators"] else "nothing to run"
            self._text(0.25, top + 0.26, f"{number}  {label}", 9.5, weight="bold")
            self._text(0.25, top + 0.42, caption, 8, color="#444444", va="top")

    def _attention(self) -> None:
        """Draw the operators before and after the slice, with what moves between them and it."""
        rows, report = self.rows, self.report
        if self.index:
            y, op = rows.heights[rows.of["attended"]], report["attentions"][self.index - 1]
            self._operator(y - 0.3, y + 0.3, [(y, f"attention of layer {op['layer']}")])
            moved = report["transfer"][self.index - 1]["attended_bytes"]
            self._across("attended", f"output {moved:,} B", back=True)
        if self.index < report["layers"]:
            op, row = report["attentions"][self.index], report["transfer"][self.index]
            first, second = (rows.heights[rows.of[f"send {name}"]] for name in ("query", "keyvalue"))
            window = f", window {op['window']:,}" if op["window"] else ""
            heads = f"{op['heads']} heads, {op['kv_heads']} KV heads{window}"
            labels = [
                (first, f"attention of layer {op['layer']}\n{heads}"),
                ((first + second) / 2 + 0.2, "earlier tokens:\nfrom when q is here"),
                (second, "new token: added\nonce k and v are here"),
            ]
            self._operator(first - 0.35, rows.bands["rest"][1], labels)
            self._across("send query", f"q {row['q_bytes']:,} B")
            kv = [
                f"{name} {size:,} B" for name, size in (("k", row["k_bytes"]), ("v", row["v_bytes"])) if size
            ]
            self._across("send keyvalue", ", ".join(kv))

    def _operator(self, top: float, bottom: float, labels: Sequence[tuple[float, str]]) -> None:
        """Draw an operator on the attention workers, as long as it runs."""
        self._rounded(self.lane, top, _LANE, bottom - top, "attention")
        for y, words in labels:
            first = y == labels[0][0]
            weight = "bold" if first else "normal"
            self._text(self.lane + _LANE / 2, y, words, 9 if first else 8, weight=weight, ha="center")

    def _across(self, name: str, words: str, *, back: bool = False) -> None:
        """Draw what moves between a box and the other lane."""
        y = self.rows.heights[self.rows.of[name]]
        edge = self.layout.x[name] + box_width(self.folded.boxes[name]) / 2
        ends = (self.lane, edge) if back else (edge, self.lane)
        self._arrow([(ends[0], y), (ends[1], y)], _MOVED, 2.4)
        self._label(sum(ends) / 2, y - 0.14, words, _MOVED)

    def _edge(self, edge: Edge) -> None:
        """Draw a line from box to box, through its bends; lines into one box end side by side."""
        path = self.layout.paths[edge.tail, edge.head]
        points = [(self.layout.x[node], self.rows.heights[self.layout.row_of[node]]) for node in path]
        others = sorted(
            (other for other in self.folded.edges if other.head == edge.head),
            key=lambda other: self.layout.x[self.layout.paths[other.tail, other.head][-2]],
        )
        place = (others.index(edge) + 1) / (len(others) + 1) - 0.5
        into = points[-1][0] + place * 0.6 * box_width(self.folded.boxes[edge.head])
        start = (points[0][0], points[0][1] + _HEIGHT / 2)
        self._arrow(
            [start, *points[1:-1], (into, points[-1][1] - _HEIGHT / 2)],
            _EDGES[edge.kind],
            0.9 if edge.kind == "plain" else 1.8,
        )

    def _cuts(self) -> None:
        """Draw the two cuts, and the bytes of every saved value on its line."""
        for name, box in self.folded.boxes.items():
            if box.kind == "saved":
                offset = 0.4 if box.part == "before" else -0.42
                y = self.rows.heights[self.rows.of[name]] + offset
                self._label(self.layout.x[name], y, box.saved_bytes, _CUT)
        first = max(self.index - 1, 0)
        for place, piece in enumerate(self.report["slices"][first : self.index + 1], first):
            above = place < self.index
            if piece["cut"]:
                y = self.rows.cut_y[0 if above else 1]
                ends = [0.15, _MARGIN + self.model_width]
                self.axes.plot(ends, [y, y], color=_CUT, lw=1.2, linestyle=(0, (5, 3)), zorder=1)
                words = f"cut: {piece['cut_bytes']:,} B saved"
                self._text(0.25, y + (-0.15 if above else 0.16), words, 9, color=_CUT, weight="bold")

    def _legend(self, y: float) -> None:
        """Say what the looks mean, in two lines."""
        kinds = {box.kind for box in self.folded.boxes.values()}
        x = 0.25
        for kind, words in (
            ("product", "matrix product, weight's shape"),
            ("elementwise", "elementwise operators; those that continue one value are one box"),
            ("attention", "attention"),
            *((("lookup", "table look-up"),) if "lookup" in kinds else ()),
        ):
            self._rounded(x, y - 0.08, 0.28, 0.16, kind)
            x = self._key(x, y, words)
        x, y = 0.25, y + 0.3
        for colour, words in (
            (_CUT, "cut: saved from slice to slice, bytes of one request"),
            (_MOVED, "moved between workers, bytes of one token"),
            (_PLAIN, "within the slice"),
        ):
            self.axes.plot([x, x + 0.28], [y, y], color=colour, lw=1.0 if colour == _PLAIN else 2.2)
            x = self._key(x, y, words)
        views = f"{self.folded.views} views (reshape, transpose, slice, ...) are folded into the lines"
        words = f"Time runs downwards. {views}: they move no data."
        self._text(0.25, y + 0.3, words, 8, color="#444444")

    def _key(self, x: float, y: float, words: str) -> float:
        """Write what a look means, and return where the next one goes."""
        self._text(x + 0.36, y, words, 8)
        return x + 0.66 + len(words) * 8 * 0.56 / 72

    def _box(self, box: Box, x: float, y: float) -> None:
        ink = _LOOKS[box.kind][2]
        self._rounded(x - box_width(box) / 2, y - _HEIGHT / 2, box_width(box), _HEIGHT, box.kind)
        self._text(x, y - (0.075 if box.detail else 0.0), box.title, _TITLE, color=ink, ha="center")
        if box.detail:
            self._text(x, y + 0.1, box.detail, _DETAIL, color=ink, ha="center")

    def _rounded(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        from matplotlib.patches import FancyBboxPatch

        fill, border, _ = _LOOKS[kind]
        style = "round,pad=0,rounding_size=0.07"
        self.axes.add_patch(
            FancyBboxPatch((x, y), width, height, boxstyle=style, fc=fill, ec=border, lw=1.1, zorder=5)
        )

    def _arrow(self, points: Sequence[tuple[float, float]], colour: str, width: float) -> None:
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path

        head = f"-|>,head_length={2.5 * width + 1.5},head_width={1.2 * width + 0.8}"
        zorder = 2 if colour == _PLAIN else 3
        self.axes.add_patch(
            FancyArrowPatch(path=Path(points), arrowstyle=head, color=colour, lw=width, zorder=zorder)
        )

    def _text(self, x: float, y: float, words: str, size: float, **looks: Any) -> None:
        looks = {"color": _INK, "va": "center", "zorder": 6, "linespacing": 1.35, **looks}
        self.axes.text(x, y, words, fontsize=size, parse_math=False, **looks)

    def _label(self, x: float, y: float, words: str, colour: str) -> None:
        """Write a number on a line."""
        behind = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.85}
        self._text(x, y, words, 8, color=colour, weight="bold", ha="center", zorder=7, bbox=behind)


_TOP = 1.4
_PITCH = 0.66
_SAVED = 0.95  # from a saved value to the next band, with its bytes between
_PADDING = 0.38  # from a band's edge to the middle of its first row
_FEWEST = 1.05  # minimum height of a band, for its text


@dataclass(frozen=True)
class Rows:
    """Rows by box, heights by row, and the edges of bands."""

    of: dict[Node, int]
    heights: tuple[float, ...]
    bands: dict[str, tuple[float, float]]
    cut_y: tuple[float, float]
    height: float


def rows_of(folded: Folded, parts: Sequence[str]) -> Rows:
    """Return values from before on top, a band for each part of the slice, then what it leaves behind."""
    of: dict[Node, int] = {name: 0 for name, box in folded.boxes.items() if box.part == "before"}
    heights = [_TOP]
    bands: dict[str, tuple[float, float]] = {}
    top = first_top = _TOP + (_SAVED - _PADDING if of else 0.0)
    for part in parts:
        depth = _depths(folded, part)
        count = max(depth.values(), default=0) + 1
        for name, row in depth.items():
            # Values are sent at the end of their part.
            of[name] = len(heights) + (count - 1 if folded.boxes[name].kind == "send" else row)
        tall = max(2 * _PADDING + (count - 1) * _PITCH, _FEWEST)
        step = (tall - 2 * _PADDING) / (count - 1) if count > 1 else 0.0
        start = top + (_PADDING if count > 1 else tall / 2)
        heights += [start + row * step for row in range(count)]
        bands[part] = (top, top + tall)
        top += tall
    of |= {name: len(heights) for name, box in folded.boxes.items() if box.part == "after"}
    heights.append(top + _SAVED - _PADDING)
    return Rows(of, tuple(heights), bands, (first_top, top), heights[-1] + 1.5)


def _depths(folded: Folded, part: str) -> dict[str, int]:
    """Return rows within one part: each box below everything of the part that it needs."""
    depth = dict.fromkeys((name for name, box in folded.boxes.items() if box.part == part), 0)
    edges = [(edge.tail, edge.head) for edge in folded.edges if edge.tail in depth and edge.head in depth]
    for _ in depth:
        for tail, head in edges:
            depth[head] = max(depth[head], depth[tail] + 1)
    return depth
