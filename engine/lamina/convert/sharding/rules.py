"""Rules of operators on split and partial values: the result's place and one rank's arguments.

Products of values with weights are split first. Operators without a rule need unsplit arguments. A rule that
cannot be applied raises ConflictError, and the slice is rewritten again with less split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any, Protocol

import torch

from lamina.convert.program import Instruction, Name, Spec, names_in
from lamina.convert.sharding.places import (
    PARTIAL,
    WHOLE,
    ConflictError,
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

# Alignment of the rows of an expert's weight, in bytes.
_GROUPED_ALIGNMENT = 16

Result = tuple[Place | tuple[Place, ...], tuple[Any, ...]]


class Flow(Protocol):
    """The interface of a slice that rules use."""

    degree: int

    def place(self, name: Name) -> Place: ...
    def spec(self, name: Name) -> Spec: ...
    def is_weight(self, name: Name) -> bool: ...
    def uses(self, name: Name) -> int: ...
    def settle(self, name: Name) -> None: ...
    def split_weight(self, name: Name, dim: int, split: Split, *, rows: bool = False) -> None: ...
    def add_once(self, bias: Name, split: Split) -> None: ...


@dataclass
class Choices:
    """Products not to split and block ends of others, learned from conflicts; both only grow."""

    unsplit_products: set[Name] = field(default_factory=set)
    ends: dict[Name, set[int]] = field(default_factory=dict)

    def may_split(self, product: Name) -> bool:
        return product not in self.unsplit_products

    def bounds(self, product: Name) -> Iterable[int]:
        return self.ends.get(product, ())

    def learn(self, conflict: ConflictError, attended: Name | None) -> None:
        assert conflict.bounds
        for product, bounds in conflict.bounds.items():
            known = self.ends.setdefault(product, set())
            new = {int(end) for end in bounds} - known
            if product == attended or not new or any(end.denominator != 1 for end in bounds):
                self.unsplit_products.add(product)
            known |= new


def pass_on(one: Instruction, flow: Flow) -> Result:
    """Return the result's place and a rank's arguments for any operator except products with weights."""
    tensors = list(dict.fromkeys(one.uses()))
    if any(isinstance(flow.place(name), Partial) for name in tensors):
        if _preserves_sum(one, flow):
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
    # Other arguments, such as a norm's weights, must be the same for all parts.
    if not isinstance(source, Name) or any(
        isinstance(flow.place(name), Split) for name in names_in((one.args[1:], one.kwargs))
    ):
        raise unsplit(splits)
    return rule(one, splits[0], flow.spec(source), flow)


def is_pointwise(one: Instruction) -> bool:
    """Return whether an operator is element-wise."""
    return torch.Tag.pointwise in getattr(one.op, "tags", ()) or one.op is torch.ops.aten.to.dtype


def _preserves_sum(one: Instruction, flow: Flow) -> bool:
    """Return whether an operator on summands gives summands of its result, with no more bytes."""
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
        # Summing may write in place: the viewed value must have no other use.
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


def _permuted(one: Instruction, split: Split, given: Spec, _flow: Flow) -> Result:
    """Apply the rule of views that permute, add or remove dimensions."""
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
    """Apply the rule of reductions and norms along dimensions."""
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
    removed = sum(dim < split.dim for dim in along) if len(one.spec.dims) < ndim else 0
    return replace(split, dim=split.dim - removed), one.args


def _slice(one: Instruction, split: Split, given: Spec, flow: Flow) -> Result:
    args: list[Any] = [*one.args, *(0, None, None, 1)[len(one.args) - 1 :]]
    source, dim, start, end, step = args
    if _dim(dim, len(given.dims)) != split.dim:
        return split, one.args
    size = sum(split.blocks)
    if step != 1 or not all(isinstance(place, int) or place is None for place in (start, end)):
        raise unsplit([split])
    start, end, _ = slice(start, end).indices(size)
    part = _range_of(split, start, end)
    return part, (source, dim, start // flow.degree, end // flow.degree)


def _range_of(split: Split, start: int, end: int) -> Split:
    """Return the split of the elements from `start` to `end`, which must be complete blocks."""
    size = sum(split.blocks)
    if end <= start:
        raise unsplit([split])
    if not {start, end} <= {0, size, *split.bounds()}:
        raise refined([split], {start, end, *split.bounds()} - {0, size})
    inside = blocks_between([bound - start for bound in split.bounds() if start < bound < end], end - start)
    return replace(split, blocks=inside)


def _pieces(one: Instruction, split: Split, given: Spec, flow: Flow) -> Result:
    """Apply the rule of chunk and split, which have several results."""
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
        raise unsplit([split])  # a rank's last piece would start elsewhere
    if not set(ends[:-1]) <= set(split.bounds()):
        raise refined([split], {*ends[:-1], *split.bounds()})
    places = tuple(_range_of(split, end - length, end) for end, length in zip(ends, lengths, strict=True))
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


def _complex(one: Instruction, split: Split, given: Spec, _flow: Flow) -> Result:
    """Apply the rule of views as complex numbers, which join the last dimension, and back."""
    if one.op_name == "view_as_complex" and split.dim == len(given.dims) - 1:
        raise unsplit([split])
    return split, one.args


def _dim(dim: int, ndim: int) -> int:
    return dim + ndim if dim < 0 else dim


_RULES: dict[str, Callable[[Instruction, Split, Spec, Flow], Result]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten", "unflatten"), _reshape),
    **dict.fromkeys(("transpose", "t", "permute", "unsqueeze", "squeeze", "expand"), _permuted),
    **dict.fromkeys(("contiguous", "clone"), _permuted),
    **dict.fromkeys(("mean", "sum", "amax", "softmax", "_softmax", "layer_norm", "rms_norm"), _reduced),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _pieces),
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(("view_as_complex", "view_as_real"), _complex),
    "slice": _slice,
    "select": _select,
    "index": _index,
    "sym_size": _size,
}


@dataclass(frozen=True)
class Product:
    """`values` x `weight` + `bias`."""

    values: Name
    weight: Name
    bias: Name | None
    rows: int  # the weight's dimension that is summed over
    columns: int  # the weight's dimension that is the result's last one
    grouped: bool = False


def product_of(one: Instruction, flow: Flow) -> Product | None:
    """Return the instruction as a product with a weight, if it is one."""
    if any(value is not None for value in one.kwargs.values()):
        return None
    args = (*one.args, None, None)
    if one.op_name == "linear":
        product = Product(args[0], args[1], args[2], 1, 0)
    elif one.op_name == "addmm":
        product = Product(args[1], args[2], args[0], 0, 1)
    elif one.op_name in {"mm", "matmul"}:
        product = Product(args[0], args[1], None, 0, 1)
    elif one.op_name in {"bmm", "_grouped_mm"}:
        product = Product(args[0], args[1], None, 1, 2, one.op_name == "_grouped_mm")
    else:
        return None
    plain = flow.is_weight(product.weight) and len(flow.spec(product.weight).dims) == 1 + max(
        product.rows, product.columns
    )
    if not plain or not isinstance(product.values, Name) or flow.is_weight(product.values):
        return None
    if product.bias is not None and not (
        flow.is_weight(product.bias) and len(flow.spec(product.bias).dims) == 1
    ):
        return None
    return product


def multiply(one: Instruction, product: Product, flow: Flow, choices: Choices) -> Place:
    """Return the place of a product's result; splits its weight if possible."""
    for name in one.uses():
        flow.settle(name)
    place = flow.place(product.values)
    others = [flow.place(name) for name in names_in(one.args) if name != product.values]
    if splits := [other for other in others if isinstance(other, Split)]:
        raise unsplit(splits)
    last = len(flow.spec(product.values).dims) - 1
    if isinstance(place, Split):
        if place.dim != last:
            if product.columns == 2:  # one matrix per element of the split dimension
                if product.grouped or place.dim != 0:
                    raise unsplit([place])
                flow.split_weight(product.weight, 0, place)
            return place
        if product.grouped and not _aligned(product, place, flow):
            raise unsplit([place])
        flow.split_weight(product.weight, product.rows, place, rows=True)
        if product.bias is not None:
            flow.add_once(product.bias, place)
        return PARTIAL
    assert isinstance(place, Whole)
    if not choices.may_split(one.result):
        return WHOLE
    assert one.spec is not None
    size = flow.spec(product.weight).dims[product.columns]
    assert isinstance(size, int)
    blocks = blocks_between(choices.bounds(one.result), size)
    split = Split(len(one.spec.dims) - 1, blocks, frozenset({(one.result, Fraction(1))}))
    uneven = any(block % flow.degree for block in blocks)
    if uneven or (product.grouped and not _aligned(product, split, flow)):
        raise unsplit([split])
    flow.split_weight(product.weight, product.columns, split)
    if product.bias is not None:
        flow.split_weight(product.bias, 0, split)
    return split


def _aligned(product: Product, split: Split, flow: Flow) -> bool:
    share = sum(split.blocks) // flow.degree
    return share * flow.spec(product.weight).dtype.itemsize % _GROUPED_ALIGNMENT == 0
