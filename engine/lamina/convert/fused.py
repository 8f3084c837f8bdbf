"""Splitting of a fused QKV projection, so that Q can be computed and sent before K and V.

Element indices are propagated through the views between the projection and its users; a view with only
elements that Q needs, or only elements that it does not need, becomes a projection of its own on those rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from lamina.convert.normalise import op_name
from lamina.convert.partition import levels_of
from lamina.convert.program import BATCH, Rows, known_spec, make_spec, reachable, spec_of, take_rows
from lamina.convert.trace import ATTENTION

_aten = torch.ops.aten

# Operators that move elements without changing them.
_MOVES = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "transpose", "permute", "movedim", "t"),
        *("slice", "narrow", "select", "chunk", "split", "split_with_sizes", "unbind", "getitem"),
        *("squeeze", "unsqueeze", "contiguous", "clone"),
    }
)


@dataclass(frozen=True)
class _Projection:
    node: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    source: fx.Node
    rows_dim: int  # the weight's dimension that becomes the output's last one


def split_fused(graph: fx.Graph) -> None:
    """Split every projection that computes q together with values q does not need."""
    levels = levels_of(graph)
    for attention in [node for node in graph.nodes if node.target is ATTENTION]:
        query = attention.args[0]
        needed = [query, *reachable(query, partial(_own_arguments, levels, levels[query]))]
        for node in needed:
            projection = _projection(node)
            if projection is not None:
                _split(graph, projection, set(needed))


def _own_arguments(levels: dict[fx.Node, int], level: int, node: fx.Node) -> Iterator[fx.Node]:
    """Yield the node's arguments in its own slice."""
    for argument in node.all_input_nodes:
        if levels.get(argument) == level and argument.op == "call_function":
            yield argument


def _projection(node: fx.Node) -> _Projection | None:
    if node.target is _aten.linear.default:
        source, weight, *rest = node.args
        bias, dim = (rest[0] if rest else None), 0
    elif node.target is _aten.addmm.default and not node.kwargs:
        (bias, source, weight), dim = node.args, 1
    else:
        return None
    if not isinstance(weight, fx.Node) or weight.op != "placeholder" or not isinstance(source, fx.Node):
        return None
    if bias is not None and not (isinstance(bias, fx.Node) and bias.op == "placeholder"):
        return None
    return _Projection(node, weight, bias, source, dim)


def _split(graph: fx.Graph, projection: _Projection, needed: set[fx.Node]) -> None:
    row = known_spec(projection.node).row_shape
    elements = torch.arange(row[-1]).view(row)
    roots = _roots(projection.node, elements, needed)
    if roots is None or len(roots) < 2 or all(_purposes(root, needed) == {True} for root, _ in roots):
        return  # q would not be ready earlier
    for root, index in roots:
        root.replace_all_uses_with(_part(graph, projection, root, Rows(index.flatten())))
    # The fused projection is unused now; nodes are erased from the last user up.
    for node in reversed([projection.node, *_moved_nodes(projection.node)]):
        if not node.users:
            graph.erase_node(node)


def _moved_nodes(node: fx.Node) -> list[fx.Node]:
    return sorted(reachable(node, lambda one: [user for user in one.users if op_name(user) in _MOVES]))


def _roots(node: fx.Node, value: Any, needed: set[fx.Node]) -> list[tuple[fx.Node, Tensor]] | None:
    """Return the topmost views below `node` used by q only or by others only, with their elements."""
    roots: list[tuple[fx.Node, Tensor]] = []
    for user in node.users:
        if op_name(user) not in _MOVES or len(user.all_input_nodes) != 1:
            return None  # one user needs Q's rows and others together
        index = _move(user, value)
        if isinstance(index, Tensor) and len(_purposes(user, needed)) == 1:
            if (spec := spec_of(user)) is None or spec.dims[0] != BATCH:
                return None
            roots.append((user, index))
            continue
        below = _roots(user, index, needed)
        if below is None:
            return None
        roots += below
    return roots


def _move(node: fx.Node, value: Any) -> Any:
    function: Any = node.target
    return function(value, *node.args[1:], **node.kwargs)


def _purposes(node: fx.Node, needed: set[fx.Node]) -> set[bool]:
    """Return whether q (True) and others (False) use this view."""
    purposes: set[bool] = set()
    for user in node.users:
        if op_name(user) in _MOVES and user.target is not ATTENTION:
            purposes |= _purposes(user, needed)
        else:
            purposes.add(user in needed or (user.target is ATTENTION and user.args[0] is node))
    return purposes


def _part(graph: fx.Graph, projection: _Projection, root: fx.Node, rows: Rows) -> fx.Node:
    """Write the projection on `rows` alone, in the shape of `root`."""
    full, root_spec = known_spec(projection.node), known_spec(root)
    with graph.inserting_before(projection.node):
        weight = _take_rows(graph, projection.weight, projection.rows_dim, rows)
        bias = None if projection.bias is None else _take_rows(graph, projection.bias, 0, rows)
        old = projection.node.args
        args = (bias, old[1], weight) if projection.rows_dim == 1 else (old[0], weight, bias)
        part = graph.call_function(projection.node.target, args)  # type: ignore[arg-type]
        part.meta["spec"] = make_spec((*full.dims[:-1], len(rows)), full.dtype)
        shaped = graph.call_function(_aten.view.default, (part, [-1, *root_spec.dims[1:]]))
        shaped.meta["spec"] = root_spec
    return shaped


def _take_rows(graph: fx.Graph, weight: fx.Node, dim: int, rows: Rows) -> fx.Node:
    node = graph.call_function(take_rows, (weight, dim, rows))  # type: ignore[arg-type]  # fx keeps any object
    spec = known_spec(weight)
    dims = (*spec.dims[:dim], len(rows), *spec.dims[dim + 1 :])
    node.meta["spec"] = make_spec(dims, spec.dtype)
    return node
