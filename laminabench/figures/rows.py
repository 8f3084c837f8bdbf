"""Which row each box of a slice's picture stands in, and where rows and bands are on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laminabench.figures.fold import Folded
from laminabench.figures.layered import Node

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
