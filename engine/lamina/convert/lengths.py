"""Numbers that a model computes from how long the cache is: of each request from its own position."""

from __future__ import annotations

import torch
from torch import fx

from lamina.convert.errors import ConversionError
from lamina.convert.program import BATCH, known_spec, make_spec, spec_of
from lamina.convert.trace import CACHED, Traced

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten.reshape.default)


def take_positions(traced: Traced) -> None:
    """Let each request's position stand for `arange(1) + length`, and what is made of that for itself.

    As it is traced all requests have one length: it is a tensor of one element, which only ever meets numbers
    and is at last expanded over the batch. Anything else is refused.
    """
    own: dict[fx.Node, fx.Node] = {}
    expanded: dict[fx.Node, fx.Node] = {}
    for node in list(traced.graph.nodes):
        if _is_position(node):
            own[node] = traced.positions
        elif any(used in own for used in node.all_input_nodes):
            given = own.get(node.all_input_nodes[0])
            if given and node.target is _aten.expand.default and spec_of(node) == known_spec(given):
                expanded[node] = given
            else:
                _widen(node, own)
                own[node] = node
    for node, given in expanded.items():
        node.replace_all_uses_with(given)


def _is_position(node: fx.Node) -> bool:
    if node.target is not _aten.add.Tensor or CACHED not in node.args or node.kwargs:
        return False
    start = next(one for one in node.args if one != CACHED)
    return isinstance(start, fx.Node) and start.target is _aten.arange.default and start.args == (1,)


def _widen(node: fx.Node, own: dict[fx.Node, fx.Node]) -> None:
    """Give it an element for each request."""
    spec, target = spec_of(node), node.target
    pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    known = pointwise or target is _aten.to.dtype or target in _RESHAPES
    if spec is None or not known or {*spec.dims} != {1} or not own.keys() >= {*node.all_input_nodes}:
        raise ConversionError(
            "convert-depends-on-length", "what it computes depends on how long the cache is, beyond attention"
        )
    if target in _RESHAPES:
        node.args = (node.args[0], [-1, *spec.dims[1:]])
    node.args = fx.map_arg(node.args, own.__getitem__)
    node.meta["spec"] = make_spec((BATCH, *spec.dims[1:]), spec.dtype)
