"""Where the boxes of a layered graph go: their order by barycentre, their places by least squares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Node = Hashable

_SWEEPS, _PASSES = 12, 40
_GAP = 0.22
_BEND_WIDTH = 0.18


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows from top to bottom, each from left to right; bends are the corners of long edges."""

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
        # Lines that leave the same value run together until they part.
        bends: list[Node] = [("bend", tail, row) for row in range(row_of[tail] + 1, row_of[head])]
        layout.row_of.update((bend, row) for row, bend in enumerate(bends, row_of[tail] + 1))
        layout.paths[tail, head] = [tail, *bends, head]
    for node, row in layout.row_of.items():
        layout.rows[row].append(node)
    near: dict[Node, dict[Node, None]] = {node: {} for node in layout.row_of}
    for path in layout.paths.values():
        for tail, head in itertools.pairwise(path):
            near[tail][head] = near[head][tail] = None
    _order(layout, near, rightmost)
    _place(layout, near, {node: width(node) if node in row_of else _BEND_WIDTH for node in layout.row_of})
    return layout


def _order(layout: Layout, near: Mapping[Node, Mapping[Node, None]], rightmost: frozenset[Node]) -> None:
    """Sort each row by the middle of its neighbours above, then below, again and again."""
    place = {node: index for row in layout.rows for index, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        step = -1 if sweep % 2 else 1
        for row in layout.rows[::step]:
            behind = layout.row_of[row[0]] - step
            middle = {}
            for node in row:
                others = [place[other] for other in near[node] if layout.row_of[other] == behind]
                middle[node] = sum(others) / len(others) if others else place[node]
            row.sort(key=lambda node: (node in rightmost, middle[node]))
            place.update({node: index for index, node in enumerate(row)})


def _place(layout: Layout, near: Mapping[Node, Mapping[Node, None]], wide: Mapping[Node, float]) -> None:
    """Move each node near to what it is connected with, in its row's order and without overlap."""
    for row in layout.rows:
        layout.x.update(zip(row, itertools.count(0.0, 1.0), strict=False))
    for sweep in range(_PASSES):
        for row in layout.rows[:: -1 if sweep % 2 else 1]:
            others = [near[node] or [node] for node in row]
            wanted = [sum(layout.x[other] for other in each) / len(each) for each in others]
            apart = [(wide[a] + wide[b]) / 2 + _GAP for a, b in itertools.pairwise(row)]
            layout.x.update(
                zip(row, spread(wanted, [float(len(each)) for each in others], apart), strict=True)
            )


def spread(wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float]) -> list[float]:
    """Return the places nearest to `wanted`, by weighted squares, with neighbours at least `apart`."""
    offsets = [0.0, *itertools.accumulate(apart)]
    # Without the distances it is isotonic regression: pool neighbours that are out of order.
    pools: list[tuple[float, float, int]] = []  # sum of weights, weighted mean, members
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        total, mean, count = weight, want - offset, 1
        while pools and pools[-1][1] >= mean:
            other, other_mean, members = pools.pop()
            mean = (mean * total + other_mean * other) / (total + other)
            total, count = total + other, count + members
        pools.append((total, mean, count))
    flat = [mean for _, mean, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]
