"""Multi-head latent attention (MLA): one vector is stored per token, and keys and values are products of it.

Such a model stores a latent vector and a key's rotated part, and expands both before it attends: a head's
key is a product of the latent with a weight, plus the rotated part, and its value another product.
Attention over expanded keys is rewritten into attention over what is stored, one KV head of latent and
rotated part: the weight that would expand keys is multiplied into q, and the one that would expand values
into the result (absorption). The slices multiply, or attention does, with constants that it is given.

How keys and values are made does not depend on names: indices are propagated through the operators between
the stored tensors and attention, and the result must be such a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from lamina.convert.errors import ConversionError
from lamina.convert.program import BATCH, Rows, known_spec, make_spec, reachable, spec_of, take_rows
from lamina.convert.trace import ATTENTION, STORED
from lamina.operators import Absorb

_aten = torch.ops.aten

# Operators that move elements without changing them, including those that write into another tensor.
_MOVES = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "transpose", "permute", "slice", "narrow", "split", "getitem"),
        *("split_with_sizes", "expand", "squeeze", "unsqueeze", "contiguous", "clone", "cat", "copy_"),
    }
)
_UNWRITTEN = -(1 << 40)  # index of uninitialised elements


def absorb(graph: fx.Graph, by: Absorb = "model") -> None:
    """Rewrite every attention operator over expanded keys to attend to the stored latent, in place."""
    for attention in [node for node in graph.nodes if node.target is ATTENTION]:
        stored = [node for node in graph.nodes if node.target is STORED and node.args[1] == attention.args[3]]
        if stored:
            _rewrite(graph, attention, _expansion(attention, *stored), stored, by)


@dataclass(frozen=True)
class _Expansion:
    """The computation of keys and values from the stored latent."""

    weight: fx.Node
    latent: fx.Node  # input of the weight's product
    rotated: fx.Node  # part of every key, unchanged
    keys: Tensor  # rows of the weight for each head's key: [heads, elements]
    values: Tensor  # rows for each head's value
    expanded: slice  # position of the product in a key
    rotated_part: slice


def _expansion(attention: fx.Node, first: fx.Node, second: fx.Node) -> _Expansion:
    """Propagate indices of the weight's rows, and of rotated elements as -1, -2 and so on, to attention."""
    where = f"attention {attention.args[3]}"
    key, value = attention.args[1:3]
    assert isinstance(key, fx.Node)
    assert isinstance(value, fx.Node)
    products = [node for node in first.graph.nodes if _expands(node, (first, second))]
    weights = {node.args[1] for node in products}
    if len(products) != 1:
        raise _changed(where)
    latent = products[0].args[0]
    rotated = second if latent is first else first
    weight = weights.pop()
    assert isinstance(weight, fx.Node)
    assert isinstance(latent, fx.Node)
    rows = torch.arange(known_spec(weight).row_shape[0])
    known: dict[fx.Node, Any] = {products[0]: rows.view(1, 1, 1, -1)}
    width = known_spec(rotated).row_shape[-1]
    known[rotated] = -1 - torch.arange(width).view(1, 1, 1, -1)
    for node in _between([first, second], attention):
        if node not in known and node.op == "call_function":
            known[node] = _apply(node, known, where)
    if not all(isinstance(known.get(node), Tensor) for node in (key, value)):
        raise _changed(where)
    keys, values = (known[node][0, :, 0] for node in (key, value))
    is_rotated = keys[0] < 0
    places = torch.nonzero(is_rotated).flatten()
    if (
        len(places) != width
        or not torch.equal(keys[:, is_rotated], known[rotated].view(1, -1).expand(len(keys), -1))
        or bool((keys[:, ~is_rotated] < 0).any())
        or bool((values < 0).any())
        or len(keys) != len(values)
    ):
        raise _changed(where)
    start, end, whole = int(places[0]), int(places[-1]) + 1, keys.shape[1]
    if end - start != width or (start and end != whole):
        raise _changed(where)
    expanded = slice(0, start) if start else slice(end, whole)
    return _Expansion(weight, latent, rotated, keys[:, expanded], values, expanded, slice(start, end))


def _expands(node: fx.Node, stored: Sequence[fx.Node]) -> bool:
    """Return whether a node is a product of a stored tensor with a weight."""
    if node.target is not _aten.linear.default or node.args[0] not in stored:
        return False
    weight, *bias = node.args[1:]
    return isinstance(weight, fx.Node) and weight.op == "placeholder" and not any(bias)


def _between(stored: list[fx.Node], attention: fx.Node) -> list[fx.Node]:
    """Return the nodes between stored tensors and attention, in order."""
    after: set[fx.Node] = set()
    for node in stored:
        after.update(reachable(node, lambda one: [] if one is attention else list(one.users)))
    after.discard(attention)
    return [node for node in attention.graph.nodes if node in after and node < attention]


def _apply(node: fx.Node, known: dict[fx.Node, Any], where: str) -> Any:
    """Apply an operator to indices; sizes are those of a batch of one."""
    if "size" in node.meta:
        return 1 if node.meta["size"] == BATCH else node.meta["size"]
    target: Any = node.target
    name = target._schema.name.partition("::")[2] if hasattr(target, "_schema") else target.__name__
    if name == "new_empty":
        return torch.full(known_spec(node).row_shape, _UNWRITTEN)
    if name not in _MOVES:
        raise _changed(where)
    args: Any = fx.map_arg(node.args, lambda used: known[used] if used in known else _size(used, where))
    return target(*args, **node.kwargs)


def _size(node: fx.Node, where: str) -> int:
    if "size" not in node.meta:
        raise _changed(where)
    return 1 if node.meta["size"] == BATCH else int(node.meta["size"])


def _changed(where: str) -> ConversionError:
    return ConversionError(
        "convert-changes-stored-keys",
        f"{where} changes keys or values after they are stored, otherwise than by one product with a weight",
    )


def _rewrite(graph: fx.Graph, attention: fx.Node, how: _Expansion, stored: list[fx.Node], by: Absorb) -> None:
    query = attention.args[0]
    assert isinstance(query, fx.Node)
    dead = [*stored, *_between(stored, attention)]
    (heads, _), (_, width) = how.keys.shape, how.values.shape
    rank = known_spec(how.latent).row_shape[-1]
    write = _Writing(graph)
    with graph.inserting_before(attention):
        # A product for each head: [heads, B, numbers] x [heads, numbers, rank].
        to_keys = write.rows(how.weight, how.keys, (heads, -1, rank))
        to_values = write(_aten.transpose.int, write.rows(how.weight, how.values, (heads, width, rank)), 1, 2)
        parts = [node.args[0] for node in (how.latent, how.rotated)]
        latent_kv = write(_aten.cat.default, parts, -1)
        part = write(_aten.slice.Tensor, query, 3, how.expanded.start, how.expanded.stop)
        rotated_part = write(_aten.slice.Tensor, query, 3, how.rotated_part.start, how.rotated_part.stop)
        # One tensor for both: a value is the first part of the key.
        if by == "attention":
            q = write(_aten.cat.default, [part, rotated_part], -1) if how.expanded.start else query
            scoring = (*attention.args[3:], to_keys, to_values)
            out = write(ATTENTION, q, latent_kv, latent_kv, *scoring, dims=(BATCH, 1, heads, width))
        else:
            part = write(_aten.transpose.int, write(_aten.squeeze.dim, part, 2), 0, 1)
            part = write(_aten.transpose.int, write(_aten.bmm.default, part, to_keys), 0, 1)
            q = write(_aten.cat.default, [write(_aten.unsqueeze.default, part, 2), rotated_part], -1)
            over = write(
                ATTENTION, q, latent_kv, latent_kv, *attention.args[3:], dims=(BATCH, 1, heads, rank)
            )
            out = write(_aten.reshape.default, over, [-1, heads, rank])
            out = write(_aten.bmm.default, write(_aten.transpose.int, out, 0, 1), to_values)
            out = write(_aten.unsqueeze.default, write(_aten.transpose.int, out, 0, 1), 1)
    attention.replace_all_uses_with(out)
    for node in (attention, *reversed(dead)):
        if node.users:
            raise _changed(f"attention {attention.args[3]}")
        graph.erase_node(node)


class _Writing:
    """A builder of nodes with specs, which come from running operators on a batch of a unique size."""

    _EXAMPLE = 7_919

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def rows(self, weight: fx.Node, rows: Tensor, shape: tuple[int, ...]) -> fx.Node:
        taken = self(take_rows, weight, 0, Rows(rows.flatten()))
        return self(_aten.view.default, taken, list(shape))

    def __call__(self, op: Any, *args: Any, dims: tuple[int | str, ...] | None = None) -> fx.Node:
        node = self._graph.call_function(op, args)
        examples: Any = fx.map_arg(args, self._example)
        if dims is None:
            made = op(*examples)
            named = tuple(BATCH if size == self._EXAMPLE else size for size in made.shape)
            node.meta["spec"] = make_spec(named, made.dtype)
        else:
            node.meta["spec"] = make_spec(dims, known_spec(args[0]).dtype)
        return node

    def _example(self, node: fx.Node) -> Tensor:
        spec = spec_of(node)
        assert spec is not None
        sizes = [size if isinstance(size, int) else self._EXAMPLE for size in spec.dims]
        return torch.empty(sizes, dtype=spec.dtype, device="meta")
