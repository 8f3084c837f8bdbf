"""Merging of products of one value with several weights into one product.

Weights of bfloat16 are copied anyway, into the order in which products read them fastest: the copy contains
all merged weights, so that no weight is stored twice. Each row's result is bitwise the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from lamina.convert.fuse.editor import Editor
from lamina.convert.program import BATCH, Collective, Instruction, Name, Value, make_spec

_aten = torch.ops.aten
_LINEAR, _SLICE = _aten.linear.default, _aten.slice.Tensor
# Operators that return views.
_VIEWS = (
    *(_aten.view.default, _aten._unsafe_view.default, _aten.transpose.int, _aten.permute.default),
    *(_aten.squeeze.dim, _aten.unsqueeze.default, _SLICE, _aten.select.int, _aten.chunk.default),
    *(_aten.split_with_sizes.default, _aten.split.Tensor, _aten.expand.default),
)

# Alignment of the parts of a merged result, in elements.
_ALIGNED = 16

# The weights that each merged one replaces.
Merged = dict[Name, tuple[Name, ...]]


def merge_products(editor: Editor) -> tuple[list[Value], Merged]:
    """Merge all products that can be; return the program's new weights and what they replace."""
    merged: Merged = {}
    for code in [*editor.code]:
        groups: dict[tuple[object, bool], list[Instruction]] = {}
        for one in code:
            if one.op is _LINEAR and _ready(editor, one):
                groups.setdefault((one.args[0], len(_weight_and_bias(one)) > 1), []).append(one)
        for group in groups.values():
            if len(group) > 1:
                merged |= _merge(editor, group)
    made_of = {old: new for new, olds in merged.items() for old in olds}
    names = dict.fromkeys(made_of.get(value.name, value.name) for value in editor.program.weights)
    return [Value(name, editor.specs[name]) for name in names], merged


def _ready(editor: Editor, one: Instruction) -> bool:
    """Return whether a product can be merged: its weight would be packed, its result may be strided."""
    weight, *bias = _weight_and_bias(one)
    spec = editor.weights.get(weight)
    if spec is None or spec.dtype != torch.bfloat16 or one.spec is None or one.spec.dims[0] != BATCH:
        return False
    if _size(spec.dims[0]) % _ALIGNED:
        return False
    own = all(name in editor.weights and len(editor.users(name)) == 1 for name in (weight, *bias))
    return own and not one.kwargs and _may_be_strided(editor, one.result)


def _weight_and_bias(one: Instruction) -> list[Name]:
    """Return the weight and the bias, if there is one."""
    return [name for name in one.args[1:] if name is not None]


def _may_be_strided(editor: Editor, name: Name) -> bool:
    """Return whether no user of a value, or of a view of it, needs contiguous rows."""
    if name in editor.gives:
        return False
    for user in editor.users(name):
        if user.op in (Collective.all_reduce, Collective.all_gather):
            return False
        if getattr(user.op, "__name__", "") != "getitem" and user.op not in _VIEWS:
            continue
        flattens = user.op in _VIEWS[:2] and (user.spec is None or user.spec.dims[0] != BATCH)
        if flattens or not _may_be_strided(editor, user.result):
            return False
    return True


def _merge(editor: Editor, group: list[Instruction]) -> Merged:
    first = group[0]
    assert first.spec is not None
    merged: Merged = {}
    names: list[Name] = []
    for parts in zip(*map(_weight_and_bias, group), strict=True):
        specs = [editor.weights[name] for name in parts]
        name = Name(f"{parts[0]}_and_{len(parts) - 1}_more")
        rows = sum(_size(spec.dims[0]) for spec in specs)
        editor.specs[name] = make_spec((rows, *specs[0].dims[1:]), specs[0].dtype)
        names.append(name)
        merged[name] = parts
    width = _size(editor.specs[names[0]].dims[0])
    spec = make_spec((*first.spec.dims[:-1], width), first.spec.dtype)
    product = replace(first, result=editor.fresh("linear"), args=(first.args[0], *names), spec=spec)
    parts_of = [product, *_parts(product.result, group)]
    editor.replace(first, parts_of, drop=group)
    return merged


def _parts(whole: Name, group: Iterable[Instruction]) -> Iterable[Instruction]:
    start = 0
    for one in group:
        assert one.spec is not None
        dim, length = len(one.spec.dims) - 1, _size(one.spec.dims[-1])
        yield Instruction(one.result, _SLICE, (whole, dim, start, start + length), {}, one.spec)
        start += length


def _size(dim: int | str) -> int:
    assert isinstance(dim, int)
    return dim
