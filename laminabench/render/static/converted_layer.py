"""A picture of one slice: what runs between two attention operators, when, and what crosses the cut.

Time runs downwards in three bands, as the slice runs: until q is sent, until k and v are sent, and while
attention runs. The attention workers stand in a lane of their own on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.render.static.drawn import drawn
from laminabench.render.static.fold import Edge, Folded, fold
from laminabench.render.static.layered import Layout, Node, lay_out
from laminabench.render.static.pen import CUT, LANE, MARGIN, MOVED, PLAIN, Pen, box_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from laminabench.conversion.report import ConversionReport

_BANDS = {
    "query": ("1", "before q is sent"),
    "keyvalue": ("2", "q is sent: k and v"),
    "rest": ("3", "during attention"),
    "logits": ("1", "up to the logits"),
}


def draw_slice(report: ConversionReport, index: int, target: Path) -> None:
    """Draw slice `index` of a conversion's report into `target`, in the format that its suffix names."""
    drawn(lambda: picture(report, index), target)


def picture(report: ConversionReport, index: int) -> Figure:
    """The figure, not yet written anywhere."""
    piece = report["slices"][index]
    folded = fold(piece, report["slices"][index - 1]["cut"] if index else [])
    rows = rows_of(folded, [part["name"] for part in piece["parts"]])
    sends = frozenset(name for name, box in folded.boxes.items() if box.kind in {"send", "receive"})
    layout = lay_out(
        [(edge.tail, edge.head) for edge in folded.edges],
        rows.of,
        lambda name: box_width(folded.boxes[name]),
        rightmost=sends,
    )
    return _Drawing(report, index, folded, rows, layout).figure


class _Drawing:
    def __init__(
        self, report: ConversionReport, index: int, folded: Folded, rows: Rows, layout: Layout
    ) -> None:
        self.report, self.index, self.folded, self.rows, self.layout = report, index, folded, rows, layout
        self.piece = report["slices"][index]
        ends = [
            (layout.x[name] - box_width(box) / 2, layout.x[name] + box_width(box) / 2)
            for name, box in folded.boxes.items()
        ]
        bends = [x for node, x in layout.x.items() if node not in folded.boxes]
        left = min([start for start, _ in ends] + bends)
        right = max([end for _, end in ends] + bends)
        # Room for the legend, however small the graph is.
        self.model_width = max(right - left + 0.5, 5.2)
        shift = MARGIN + (self.model_width - (right - left)) / 2 - left
        for node in layout.x:
            layout.x[node] += shift
        self.lane = MARGIN + self.model_width + 1.0
        self.pen = Pen(self.lane + LANE + 0.25, rows.height)
        self.figure = self.pen.figure
        self._title()
        self._bands()
        self._attention()
        for edge in folded.edges:
            self._edge(edge)
        for name, box in folded.boxes.items():
            self.pen.box(box, layout.x[name], rows.y(name))
        self._cut_bytes()
        self.pen.legend(rows.legend_y, folded)

    def _title(self) -> None:
        report, piece = self.report, self.piece
        members = next(kind["slices"] for kind in report["classes"] if kind["index"] == piece["class"])
        also = f"one of {len(members)} alike (class {piece['class']}); " if len(members) > 1 else ""
        last = report["layers"]
        where = f"between the attention of layers {self.index - 1} and {self.index}"
        if self.index in {0, last}:
            where = "before the first attention" if self.index == 0 else "after the last attention"
        self.pen.text(0.25, 0.36, f"{report['model']}: slice {self.index}, {where}", size=15, bold=True)
        saved = (
            f"context saved around attention: {piece['cut_bytes']:,} bytes a request" if piece["cut"] else ""
        )
        moved = ""
        if self.index < report["layers"]:
            row = report["transfer"][self.index]
            moved = f"moved between workers: {row['bytes']:,} bytes a token and layer"
        second = "; ".join(part for part in (saved, moved, report["dtype"]) if part)
        self.pen.text(0.25, 0.68, also + second, size=10)

    def _bands(self) -> None:
        pen, rows = self.pen, self.rows
        pen.text(0.25, rows.lanes_y, "MODEL WORKER", size=8, colour="#666666", bold=True)
        pen.text(self.lane, rows.lanes_y, "ATTENTION WORKERS", size=8, colour="#666666", bold=True)
        work = {part["part"]: part for part in self.piece["products"]}
        for name, (top, bottom) in rows.bands.items():
            number, label = _BANDS[name]
            pen.band(MARGIN, self.model_width, top, bottom, shaded=name == "keyvalue")
            count = len(work[name]["products"])
            lines = [label, ""]
            if work[name]["operators"]:
                lines.append(f"{count} matrix product{'s' if count != 1 else ''},")
                lines.append(f"{work[name]['weight_bytes'] / 1e6:,.1f} MB of weights")
            else:
                lines.append("nothing to run")
            pen.text(0.25, top + 0.26, f"{number}  {lines[0]}", size=9.5, bold=True)
            pen.text(0.25, top + 0.42, "\n".join(lines[2:]), size=8, colour="#444444", top=True)

    def _attention(self) -> None:
        """The operators before and after the slice, with what moves between them and it."""
        pen, rows, report = self.pen, self.rows, self.report
        if self.index:
            y, op = rows.y("attended"), report["attentions"][self.index - 1]
            pen.attention(self.lane, y - 0.3, y + 0.3, [(y, f"attention of layer {op['layer']}")])
            edge = self.layout.x["attended"] + box_width(self.folded.boxes["attended"]) / 2
            moved = report["transfer"][self.index - 1]["attended_bytes"]
            pen.across(self.lane, edge, y, f"output {moved:,} B")
        if self.index < report["layers"]:
            op, row = report["attentions"][self.index], report["transfer"][self.index]
            first, second = rows.y("send query"), rows.y("send keyvalue")
            window = f", window {op['window']:,}" if op["window"] else ""
            labels = [
                (
                    first,
                    f"attention of layer {op['layer']}\n"
                    f"{op['heads']} heads, {op['kv_heads']} KV heads{window}",
                ),
                ((first + second) / 2 + 0.2, "earlier tokens:\nfrom when q is here"),
                (second, "new token: added\nonce k and v are here"),
            ]
            pen.attention(self.lane, first - 0.35, rows.bands["rest"][1], labels)
            kv = ("k", row["k_bytes"]), ("v", row["v_bytes"])
            for name, label in (
                ("query", [f"q {row['q_bytes']:,} B"]),
                ("keyvalue", [f"{one} {count:,} B" for one, count in kv if count]),
            ):
                box = f"send {name}"
                edge = self.layout.x[box] + box_width(self.folded.boxes[box]) / 2
                pen.across(edge, self.lane, rows.y(box), ", ".join(label))

    def _edge(self, edge: Edge) -> None:
        path = self.layout.paths[edge.tail, edge.head]
        x = [self.layout.x[node] for node in path]
        y = [self.rows.row_y(self.layout.row_of[node]) for node in path]
        colour = {"cut": CUT, "moved": MOVED, "plain": PLAIN}[edge.kind]
        self.pen.line(x, y, colour, into=self._port(edge))

    def _port(self, edge: Edge) -> float:
        """Where on its head's upper side an edge ends: side by side with the others, in their order."""
        others = [other for other in self.folded.edges if other.head == edge.head]
        others.sort(key=lambda other: self.layout.x[self.layout.paths[other.tail, other.head][-2]])
        space = box_width(self.folded.boxes[edge.head]) * 0.6
        place = (others.index(edge) + 1) / (len(others) + 1) - 0.5
        return self.layout.x[edge.head] + (place * space if len(others) > 1 else 0.0)

    def _cut_bytes(self) -> None:
        """The two cuts, and the bytes of every saved value on its line."""
        for name, box in self.folded.boxes.items():
            if box.kind == "saved":
                beside = 0.4 if box.part == "before" else -0.42
                self.pen.label(self.layout.x[name], self.rows.y(name) + beside, box.saved_bytes, CUT)
        for place, piece in enumerate(self.report["slices"][max(self.index - 1, 0) : self.index + 1]):
            above = self.index > 0 and place == 0
            if piece["cut"]:
                words = f"cut: {piece['cut_bytes']:,} B saved"
                self.pen.cut_line(
                    MARGIN, self.model_width, self.rows.cut_y[0 if above else 1], words, above=above
                )


_TOP = 1.4
_PITCH = 0.66
_SAVED = 0.95  # from a saved value to the band beside it: its bytes stand between
_PADDING = 0.38  # from a band's edge to the middle of its first row
_FEWEST = 1.05  # a band is at least high enough for what is written beside it


@dataclass(frozen=True)
class Rows:
    """Rows by box, heights by row, and the edges of bands, in inches from the top."""

    of: dict[Node, int]
    heights: tuple[float, ...]
    bands: dict[str, tuple[float, float]]
    cut_y: tuple[float, float]
    height: float

    def y(self, name: str) -> float:
        return self.heights[self.of[name]]

    def row_y(self, row: int) -> float:
        return self.heights[row]

    @property
    def lanes_y(self) -> float:
        return _TOP - 0.33

    @property
    def legend_y(self) -> float:
        return self.heights[-1] + 0.55


def rows_of(folded: Folded, parts: Sequence[str]) -> Rows:
    """Values from before on top, then a band for each part of the slice, then what it leaves behind."""
    of: dict[Node, int] = {name: 0 for name, box in folded.boxes.items() if box.part == "before"}
    heights = [_TOP]
    bands: dict[str, tuple[float, float]] = {}
    top = _TOP + (_SAVED - _PADDING if of else 0.0)
    first_top = top
    for part in parts:
        depth = _depths(folded, part)
        count = max(max(depth.values(), default=0) + 1, 1)
        for name, row in depth.items():
            # What is sent is sent at the end of its part.
            last = folded.boxes[name].kind == "send"
            of[name] = len(heights) + (count - 1 if last else row)
        tall = max(2 * _PADDING + (count - 1) * _PITCH, _FEWEST)
        spare = (tall - 2 * _PADDING) / (count - 1) if count > 1 else 0.0
        start = top + (_PADDING if count > 1 else tall / 2)
        heights += [start + row * spare for row in range(count)]
        bands[part] = (top, top + tall)
        top += tall
    ends = [name for name, box in folded.boxes.items() if box.part == "after"]
    of |= {name: len(heights) for name in ends}
    heights.append(top + _SAVED - _PADDING)
    return Rows(of, tuple(heights), bands, (first_top, top), heights[-1] + 1.5)


def _depths(folded: Folded, part: str) -> dict[str, int]:
    """Rows within one part: below everything of the part that a box needs."""
    members = {name for name, box in folded.boxes.items() if box.part == part}
    before: dict[str, list[str]] = {name: [] for name in members}
    for edge in folded.edges:
        if edge.tail in members and edge.head in members:
            before[edge.head].append(edge.tail)
    depth: dict[str, int] = {}

    def settle(name: str) -> int:
        if name not in depth:
            depth[name] = max((settle(other) + 1 for other in before[name]), default=0)
        return depth[name]

    for name in folded.boxes:
        if name in members:
            settle(name)
    return depth
