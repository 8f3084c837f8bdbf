"""A layout of layered graphs that places each box near its neighbours, within its row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Node = Hashable

_PASSES = 24
_GAP = 0.22
_BEND_WIDTH = 0.18


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows of boxes from top to bottom, each from left to right, and the bends of long edges."""

    rows: list[list[Node]]
    x: dict[Node, float]
    row_of: dict[Node, int]
    paths: dict[tuple[Node, Node], list[Node]]


def lay_out(
    edges: Sequence[tuple[Node, Node]],
    row_of: Mapping[Node, int],
    width: Callable[[Any], float],
    *,
    rightmost: frozenset[Node] = frozenset(),
) -> Layout:
    """Return order and places of nodes in given rows; edges lead downwards, `rightmost` nodes come last."""
    layout = Layout([[] for _ in range(max(row_of.values()) + 1)], {}, dict(row_of), {})
    for tail, head in edges:
        # Edges of one value share their path until they branch.
        bends: list[Node] = [("bend", tail, row) for row in range(row_of[tail] + 1, row_of[head])]
        layout.row_of.update((bend, row) for row, bend in enumerate(bends, row_of[tail] + 1))
        layout.paths[tail, head] = [tail, *bends, head]
    for node, place in layout.row_of.items():
        layout.x[node] = float(len(layout.rows[place]))
        layout.rows[place].append(node)
    wide = {node: width(node) if node in row_of else _BEND_WIDTH for node in layout.row_of}
    near: dict[Node, list[Node]] = {node: [] for node in layout.row_of}
    links = (pair for path in layout.paths.values() for pair in itertools.pairwise(path))
    for tail, head in dict.fromkeys(links):
        near[tail].append(head)
        near[head].append(tail)
    for sweep in range(_PASSES):
        step = -1 if sweep % 2 else 1
        for row in layout.rows[::step]:
            behind = layout.row_of[row[0]] - step
            _place(layout, row, behind, near, wide, rightmost)
    return layout


def _place(
    layout: Layout,
    row: list[Node],
    behind: int,
    near: Mapping[Node, Sequence[Node]],
    wide: Mapping[Node, float],
    rightmost: frozenset[Node],
) -> None:
    """Order a row by its nodes' preferred places, and separate them around these."""
    targets = {}
    for node in row:
        others = [other for other in near[node] if layout.row_of[other] == behind] or near[node] or [node]
        targets[node] = sum(layout.x[other] for other in others) / len(others)
    row.sort(key=lambda node: (node in rightmost, targets[node]))
    right = float("-inf")
    for node in row:
        layout.x[node] = max(targets[node], right + wide[node] / 2)
        right = layout.x[node] + wide[node] / 2 + _GAP
    shift = sum(targets[node] - layout.x[node] for node in row) / len(row)
    for node in row:
        layout.x[node] += shift
