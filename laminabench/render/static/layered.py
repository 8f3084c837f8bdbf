"""Where the boxes of a layered graph go: their order by barycentre, their places by least squares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

Node = Hashable

_SWEEPS, _PASSES = 12, 80
_GAP = 0.22
_BEND_WIDTH = 0.18
_STIFF = 4.0  # how much a long line resists, counted in edges of a box


@dataclass
class Layout:
    """Rows from top to bottom, each from left to right; bends are the corners of long edges."""

    rows: list[list[Node]]
    x: dict[Node, float] = field(default_factory=dict)
    row_of: dict[Node, int] = field(default_factory=dict)
    paths: dict[tuple[Node, Node], list[Node]] = field(default_factory=dict)


def lay_out(
    edges: Sequence[tuple[Node, Node]],
    row_of: dict[Node, int],
    width: Callable[[Any], float],
    *,
    rightmost: frozenset[Node] = frozenset(),
) -> Layout:
    """Order and places of nodes in given rows; edges lead downwards, `rightmost` nodes end their row."""
    rows: list[list[Node]] = [[] for _ in range(max(row_of.values()) + 1)]
    layout = Layout(rows, row_of=dict(row_of))
    for node, row in row_of.items():
        rows[row].append(node)
    links: list[tuple[Node, Node]] = []
    for tail, head in edges:
        path: list[Node] = [tail]
        for row in range(row_of[tail] + 1, row_of[head]):
            # Lines that leave the same value run together until they part.
            bend: Node = ("bend", tail, row)
            if bend not in layout.row_of:
                rows[row].append(bend)
                layout.row_of[bend] = row
            path.append(bend)
        path.append(head)
        layout.paths[tail, head] = path
        links += itertools.pairwise(path)
    links = list(dict.fromkeys(links))
    wide = {node: width(node) if node in row_of else _BEND_WIDTH for node in layout.row_of}
    _order(layout, links, rightmost)
    _place(layout, links, wide)
    return layout


def _order(layout: Layout, links: list[tuple[Node, Node]], rightmost: frozenset[Node]) -> None:
    up: dict[Node, list[Node]] = {}
    down: dict[Node, list[Node]] = {}
    for tail, head in links:
        up.setdefault(head, []).append(tail)
        down.setdefault(tail, []).append(head)
    best, fewest = [list(row) for row in layout.rows], None
    for sweep in range(_SWEEPS):
        near = up if sweep % 2 == 0 else down
        rows = layout.rows if sweep % 2 == 0 else layout.rows[::-1]
        place = {node: index for row in layout.rows for index, node in enumerate(row)}
        for row in rows:
            wanted = {node: (node in rightmost, _middle(node, near.get(node, []), place)) for node in row}
            row.sort(key=wanted.__getitem__)
            place.update({node: index for index, node in enumerate(row)})
        crossings = _crossings(layout, down)
        if fewest is None or crossings < fewest:
            best, fewest = [list(row) for row in layout.rows], crossings
    layout.rows[:] = best


def _middle(node: Node, others: list[Node], place: dict[Node, int]) -> float:
    return sum(place[other] for other in others) / len(others) if others else place[node]


def _crossings(layout: Layout, down: dict[Node, list[Node]]) -> int:
    place = {node: index for row in layout.rows for index, node in enumerate(row)}
    count = 0
    for row in layout.rows:
        ends = [(place[node], place[head]) for node in row for head in down.get(node, [])]
        count += sum(a < c and b > d for a, b in ends for c, d in ends)
    return count


def _place(layout: Layout, links: list[tuple[Node, Node]], wide: dict[Node, float]) -> None:
    """Near to what a node is connected with, in the row's order, without overlap; long lines straight."""
    near: dict[Node, list[Node]] = {}
    for tail, head in links:
        near.setdefault(head, []).append(tail)
        near.setdefault(tail, []).append(head)
    lines: dict[Node, list[Node]] = {}
    for node in layout.row_of:
        if _is_bend(node):
            lines.setdefault(_line(node), []).append(node)
    for row in layout.rows:
        at = 0.0
        for node in row:
            layout.x[node] = at + wide[node] / 2
            at += wide[node] + _GAP
    for sweep in range(_PASSES):
        # The ends pull at a line, the less the longer it is.
        straight = {line: _mean(layout, _with_ends(bends, near)) for line, bends in lines.items()}
        for row in layout.rows if sweep % 2 == 0 else layout.rows[::-1]:
            wanted = [
                straight[_line(node)] if _is_bend(node) else _mean(layout, near.get(node) or [node])
                for node in row
            ]
            weights = [_STIFF if _is_bend(node) else float(len(near.get(node, [1]))) for node in row]
            apart = [(wide[a] + wide[b]) / 2 + _GAP for a, b in itertools.pairwise(row)]
            layout.x.update(zip(row, spread(wanted, weights, apart), strict=True))
    for bends in lines.values():
        _straighten(layout, bends, wide)


def _with_ends(bends: list[Node], near: dict[Node, list[Node]]) -> set[Node]:
    return {*bends, *(other for bend in bends for other in near[bend])}


def _mean(layout: Layout, nodes: Collection[Node]) -> float:
    return sum(layout.x[node] for node in nodes) / len(nodes)


def _straighten(layout: Layout, bends: list[Node], wide: dict[Node, float]) -> None:
    """Put a long line upright where its neighbours leave room for that, in as few pieces as they allow."""
    run: list[Node] = []
    low, high = float("-inf"), float("inf")
    for bend in sorted(bends, key=layout.row_of.__getitem__):
        row = layout.rows[layout.row_of[bend]]
        at = row.index(bend)
        least = layout.x[row[at - 1]] + (wide[row[at - 1]] + wide[bend]) / 2 + _GAP if at else float("-inf")
        most = float("inf")
        if at + 1 < len(row):
            most = layout.x[row[at + 1]] - (wide[row[at + 1]] + wide[bend]) / 2 - _GAP
        if run and max(low, least) > min(high, most):
            _upright(layout, run, low, high)
            run, low, high = [], float("-inf"), float("inf")
        run.append(bend)
        low, high = max(low, least), min(high, most)
    _upright(layout, run, low, high)


def _upright(layout: Layout, run: list[Node], low: float, high: float) -> None:
    places = sorted(layout.x[bend] for bend in run)
    x = min(max(places[len(places) // 2], low), high)
    for bend in run:
        layout.x[bend] = x


def _is_bend(node: Node) -> bool:
    return isinstance(node, tuple) and node[0] == "bend"


def _line(node: Node) -> Node:
    assert isinstance(node, tuple)
    tail: Node = node[1]
    return tail


def spread(wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float]) -> list[float]:
    """The places nearest to `wanted`, by weighted squares, that keep each pair of neighbours `apart`."""
    offsets = [0.0]
    for distance in apart:
        offsets.append(offsets[-1] + distance)
    # Without the distances it is isotonic regression: pool neighbours that are out of order.
    pools: list[tuple[float, float, int]] = []  # sum of weights, weighted mean, members
    for want, weight, offset in zip(wanted, weights, offsets, strict=False):
        total, mean, count = weight, want - offset, 1
        while pools and pools[-1][1] >= mean:
            other, other_mean, members = pools.pop()
            mean = (mean * total + other_mean * other) / (total + other)
            total, count = total + other, count + members
        pools.append((total, mean, count))
    flat = [mean for _, mean, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=False)]
