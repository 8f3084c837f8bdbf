"""How each operator treats split and partial values: where its result is, and its arguments for one rank.

What no rule names is computed whole. A rule that cannot go on raises ConflictError, and the slice is
tried again with less of it split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any, Protocol

import torch

from lamina.convert.program import Instruction, Name, names_in
from lamina.convert.sharding.places import (
    PARTIAL,
    WHOLE,
    Partial,
    Place,
    Split,
    Whole,
    blocks_between,
    refined,
    reshaped,
    same_split,
    unsplit,
)
from lamina.convert.spec import Spec

Result = tuple[Place | tuple[Place, ...], tuple[Any, ...]]


class Flow(Protocol):
    """What rules ask of the slice that they are applied to."""

    degree: int

    def place(self, name: Name) -> Place: ...
    def spec(self, name: Name) -> Spec: ...
    def is_weight(self, name: Name) -> bool: ...
    def uses(self, name: Name) -> int: ...
    def settle(self, name: Name) -> None: ...
    def split_weight(self, name: Name, dim: int, split: Split, *, rows: bool = False) -> None: ...
    def add_once(self, bias: Name, split: Split) -> None: ...


def pass_on(one: Instruction, flow: Flow) -> Result:
    """Of any operator but a product of values with weights: its result's place, its arguments for a rank."""
    tensors = list(dict.fromkeys(one.uses()))
    if any(isinstance(flow.place(name), Partial) for name in tensors):
        if _keeps_sum(one, flow):
            return PARTIAL, one.args
        for name in tensors:
            flow.settle(name)
    splits = [place for name in tensors if isinstance(place := flow.place(name), Split)]
    if not splits:
        return WHOLE, one.args
    if is_pointwise(one):
        return _pointwise(one, flow), one.args
    rule = _RULES.get(one.op_name)
    source = one.args[0] if one.args else None
    if rule is None or not set(one.kwargs) <= {"dtype"}:
        raise unsplit(splits)
    if isinstance(source, (list, tuple)):
        if len(splits) < len(set(source)):
            raise unsplit(splits)
        ndim = len(flow.spec(source[0]).dims)
        together = same_split([(split, ndim) for split in splits])
        split = replace(together, dim=together.dim + ndim)
        return rule(one, split, flow.spec(source[0]), flow)
    # Whatever else it takes, such as a norm's weights, must be the same for all parts.
    if not isinstance(source, Name) or any(
        isinstance(flow.place(name), Split) for name in names_in((one.args[1:], one.kwargs))
    ):
        raise unsplit(splits)
    return rule(one, splits[0], flow.spec(source), flow)


def is_pointwise(one: Instruction) -> bool:
    """Whether each element of the result needs only the elements at its own place."""
    return torch.Tag.pointwise in getattr(one.op, "tags", ()) or one.op is torch.ops.aten.to.dtype


def _keeps_sum(one: Instruction, flow: Flow) -> bool:
    """Whether the operator on summands gives summands of its result, of no more bytes than before."""
    places = [flow.place(arg) if isinstance(arg, Name) else WHOLE for arg in one.args]
    partial = [arg for arg, place in zip(one.args, places, strict=True) if isinstance(place, Partial)]
    others = [flow.place(name) for name in one.uses() if name not in partial]
    if one.kwargs or one.spec is None or not partial or not all(isinstance(place, Whole) for place in others):
        return False
    if one.spec.bytes > flow.spec(partial[0]).bytes or one.spec.dtype != flow.spec(partial[0]).dtype:
        return False
    name, first = one.op_name, isinstance(places[0], Partial)
    if name in {"add", "sub"}:
        return len(partial) == 2 and flow.spec(partial[0]).dims == flow.spec(partial[1]).dims
    if name == "mul":
        return len(partial) == 1 and len(one.args) == 2
    if name in {"view", "_unsafe_view", "reshape", "unsqueeze"}:
        # Summing may write in place: the value seen another way must have no other use.
        return flow.uses(partial[0]) == 1
    return first and len(partial) == 1 and name in {"neg", "div", "index", "sum"}


def _pointwise(one: Instruction, flow: Flow) -> Split:
    tensors = list(dict.fromkeys(one.uses()))
    splits = [
        (place, len(flow.spec(name).dims)) for name in tensors if isinstance(place := flow.place(name), Split)
    ]
    split = same_split(splits)  # its dimension counts from the end, as broadcasting does
    for name in tensors:
        dims = flow.spec(name).dims
        if isinstance(flow.place(name), Split) or len(dims) < -split.dim or dims[split.dim] == 1:
            continue
        if not flow.is_weight(name):
            raise unsplit([split])
        flow.split_weight(name, len(dims) + split.dim, split)
    if one.spec is None:
        raise unsplit([split])
    return replace(split, dim=split.dim + len(one.spec.dims))


def _reshape(one: Instruction, split: Split, given: Spec, flow: Flow) -> Result:
    assert one.spec is not None
    result = reshaped(split, given, one.spec, flow.degree)
    args = list(one.args)
    if one.op_name != "flatten":
        start = _dim(args[1], len(given.dims)) if one.op_name == "unflatten" else 0
        sizes, place = list(args[-1]), result.dim - start
        if 0 <= place < len(sizes) and sizes[place] != -1:
            sizes[place] = sum(result.blocks) // flow.degree
        args[-1] = sizes
    return result, tuple(args)


def _moved(one: Instruction, split: Split, given: Spec, _flow: Flow) -> Result:
    """Views that put dimensions elsewhere, and what leaves them where they are."""
    ndim, dim = len(given.dims), split.dim
    if one.op_name == "transpose":
        a, b = (_dim(arg, ndim) for arg in one.args[1:3])
        dim = {a: b, b: a}.get(dim, dim)
    elif one.op_name == "t":
        dim = ndim - 1 - dim
    elif one.op_name == "permute":
        dim = [_dim(arg, ndim) for arg in one.args[1]].index(dim)
    elif one.op_name == "unsqueeze":
        dim += _dim(one.args[1], ndim + 1) <= dim
    elif one.op_name == "squeeze":
        if len(one.args) < 2 or not isinstance(one.args[1], int) or _dim(one.args[1], ndim) == dim:
            raise unsplit([split])
        dim -= _dim(one.args[1], ndim) < dim
    elif one.op_name == "expand":
        assert one.spec is not None
        dim += len(one.spec.dims) - ndim
        if one.args[1][dim] != -1:
            raise unsplit([split])
    return replace(split, dim=dim), one.args


def _reduced(one: Instruction, split: Split, given: Spec, _flow: Flow) -> Result:
    """What is computed along some dimensions, each row for itself."""
    assert one.spec is not None
    ndim = len(given.dims)
    if one.op_name in {"layer_norm", "rms_norm"}:
        along = set(range(ndim - len(one.args[1]), ndim))
    else:
        listed = one.args[1] if len(one.args) > 1 else None
        listed = [listed] if isinstance(listed, int) else listed
        along = {_dim(dim, ndim) for dim in listed or range(ndim)}
    if split.dim in along:
        raise unsplit([split])
    gone = sum(dim < split.dim for dim in along) if len(one.spec.dims) < ndim else 0
    return replace(split, dim=split.dim - gone), one.args


def _slice(one: Instruction, split: Split, given: Spec, flow: Flow) -> Result:
    args: list[Any] = [*one.args, *(0, None, None, 1)[len(one.args) - 1 :]]
    source, dim, start, end, step = args
    if _dim(dim, len(given.dims)) != split.dim:
        return split, one.args
    size = sum(split.blocks)
    if step != 1 or not all(isinstance(place, int) or place is None for place in (start, end)):
        raise unsplit([split])
    start, end, _ = slice(start, end).indices(size)
    part = _taken(split, start, end)
    return part, (source, dim, start // flow.degree, end // flow.degree)


def _taken(split: Split, start: int, end: int) -> Split:
    """Of a split dimension the elements from `start` to `end`, which must be whole blocks."""
    size = sum(split.blocks)
    if end <= start:
        raise unsplit([split])
    if not {start, end} <= {0, size, *split.bounds()}:
        raise refined([split], {start, end, *split.bounds()} - {0, size})
    inside = blocks_between([bound - start for bound in split.bounds() if start < bound < end], end - start)
    return replace(split, blocks=inside)


def _pieces(one: Instruction, split: Split, given: Spec, flow: Flow) -> Result:
    """chunk and split: several results."""
    dim = _dim(one.args[2] if len(one.args) > 2 else 0, len(given.dims))
    size, by = given.dims[dim], one.args[1]
    if not isinstance(size, int):
        raise unsplit([split])
    if one.op_name == "chunk":
        by = -(-size // by)
    lengths = list(by) if isinstance(by, (list, tuple)) else [min(by, size - at) for at in range(0, size, by)]
    if dim != split.dim:
        return (split,) * len(lengths), one.args
    ends = list(accumulate(lengths))
    if len(set(lengths)) > 1 and not isinstance(by, (list, tuple)):
        raise unsplit([split])  # a rank's last piece would begin elsewhere
    if not set(ends[:-1]) <= set(split.bounds()):
        raise refined([split], {*ends[:-1], *split.bounds()})
    places = tuple(_taken(split, end - length, end) for end, length in zip(ends, lengths, strict=True))
    args = list(one.args)
    if one.op_name != "chunk":
        shares = [length // flow.degree for length in lengths]
        args[1] = shares if isinstance(by, (list, tuple)) else shares[0]
    return places, tuple(args)


def _select(one: Instruction, split: Split, given: Spec, _flow: Flow) -> Result:
    dim = _dim(one.args[1], len(given.dims))
    if dim == split.dim:
        raise unsplit([split])
    return replace(split, dim=split.dim - (dim < split.dim)), one.args


def _index(one: Instruction, split: Split, _given: Spec, flow: Flow) -> Result:
    indices = one.args[1]
    if len(indices) != 1 or split.dim == 0 or not isinstance(indices[0], Name):
        raise unsplit([split])
    return replace(split, dim=split.dim - 1 + len(flow.spec(indices[0]).dims)), one.args


def _joined(one: Instruction, split: Split, given: Spec, _flow: Flow) -> Result:
    stacked = one.op_name == "stack"
    dim = _dim(one.args[1] if len(one.args) > 1 else 0, len(given.dims) + stacked)
    if dim == split.dim and not stacked:
        raise unsplit([split])
    return replace(split, dim=split.dim + (stacked and dim <= split.dim)), one.args


def _size(one: Instruction, split: Split, given: Spec, _flow: Flow) -> Result:
    if _dim(one.args[1], len(given.dims)) == split.dim:
        raise unsplit([split])
    return WHOLE, one.args


def _dim(dim: int, ndim: int) -> int:
    return dim + ndim if dim < 0 else dim


_RULES: dict[str, Callable[[Instruction, Split, Spec, Flow], Result]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten", "unflatten"), _reshape),
    **dict.fromkeys(("transpose", "t", "permute", "unsqueeze", "squeeze", "expand"), _moved),
    **dict.fromkeys(("contiguous", "clone"), _moved),
    **dict.fromkeys(("mean", "sum", "amax", "softmax", "_softmax", "layer_norm", "rms_norm"), _reduced),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _pieces),
    **dict.fromkeys(("cat", "stack"), _joined),
    "slice": _slice,
    "select": _select,
    "index": _index,
    "sym_size": _size,
}
