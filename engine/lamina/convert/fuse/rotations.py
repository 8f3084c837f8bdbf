"""Pattern matching of rotary embedding with tables of cosines and sines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch

from lamina.convert.fuse.editor import Editor
from lamina.convert.fuse.kernels import HALVES
from lamina.convert.program import BATCH, Instruction, Name, Spec

_aten = torch.ops.aten
_MUL, _ADD, _SUB, _CAT = _aten.mul.Tensor, _aten.add.Tensor, _aten.sub.Tensor, _aten.cat.default


@dataclass(frozen=True)
class _Rotation:
    """A matched rotation: its input, tables, last instruction and variant."""

    x: Name
    cos: Name
    sin: Name
    last: Instruction
    rotated: int
    pairs: bool = False  # rotates neighbours into each other, else halves
    interleaved: bool = False  # the halves alternate in x
    half_tables: bool = False  # tables have one entry for both halves
    wide: bool = False  # computed in float32, rounded at the end


def fuse_rotations(editor: Editor) -> dict[str, int]:
    """Replace each rotation with one instruction; return how many there were."""
    count = 0
    for code in [*editor.code]:
        for root in code:
            match = _turned(editor, root) or _turned_pairs(editor, root) or _by_halves(editor, root)
            if match is not None and _replace(editor, _with_rest(editor, _with_casts(editor, match))):
                count += 1
    return {"rotary embedding": count}


def _replace(editor: Editor, match: _Rotation) -> bool:
    """Replace a rotation; return whether there is native code for its shapes."""
    spec, cos, sin = editor.spec(match.x), editor.spec(match.cos), editor.spec(match.sin)
    if spec is None or cos is None or cos != sin or len(spec.dims) != 4:
        return False
    batch, heads, one, head_dim = spec.dims
    width = match.rotated // 2 if match.half_tables else match.rotated
    if (batch, one) != (BATCH, 1) or cos.dims != (BATCH, 1, 1, width) or match.last.spec != spec:
        return False
    if spec.dtype not in (torch.float32, *HALVES):
        return False
    wide_tables = match.wide and cos.dtype == torch.float32 != spec.dtype
    if cos.dtype != spec.dtype and not wide_tables:
        return False
    assert isinstance(heads, int)
    assert isinstance(head_dim, int)
    op = editor.kernels.rotary(
        spec.dtype,
        heads,
        head_dim,
        match.rotated,
        pairs=match.pairs,
        interleaved=match.interleaved,
        half_tables=match.half_tables,
        wide=match.wide,
        wide_tables=wide_tables,
    )
    new = Instruction(match.last.result, op, (match.x, match.cos, match.sin), {}, spec)
    editor.replace(match.last, [new])
    return True


def _turned(editor: Editor, cat: Instruction) -> _Rotation | None:
    """Match x cos + cat(-second half, first half) sin."""
    if cat.op is not _CAT or len(cat.args[0]) != 2:
        return None
    low, high = cat.args[0]
    negated = editor.maker(low, _aten.neg.default)
    if negated is None or not _last_dim(cat):
        return None
    x = _source(editor, high)
    spec = editor.spec(x)
    if x is None or spec is None or not isinstance(spec.dims[-1], int):
        return None
    half = spec.dims[-1] // 2
    if _part(editor, high) != (x, 0, half) or _part(editor, negated.args[0]) != (x, half, half):
        return None
    return _sum(editor, x, cat, spec.dims[-1], pairs=False)


def _turned_pairs(editor: Editor, flat: Instruction) -> _Rotation | None:
    """Match x cos + (-odd and even elements alternating) sin."""
    stack = editor.maker(flat.args[0], _aten.stack.default) if flat.op is _aten.flatten.using_ints else None
    if stack is None or list(flat.args[1:]) != [-2] or len(stack.args[0]) != 2 or stack.args[1:] != (-1,):
        return None
    low, even = stack.args[0]
    negated = editor.maker(low, _aten.neg.default)
    x = _every_second(editor, even, 0)
    spec = editor.spec(x)
    if negated is None or x is None or _every_second(editor, negated.args[0], 1) != x:
        return None
    if spec is None or not isinstance(spec.dims[-1], int):
        return None
    return _sum(editor, x, flat, spec.dims[-1], pairs=True)


def _sum(editor: Editor, x: Name, turned: Instruction, rotated: int, *, pairs: bool) -> _Rotation | None:
    right = editor.only_user(turned.result, _MUL)
    last = editor.only_user(right.result, _ADD) if right and not right.kwargs else None
    if right is None or last is None or last.kwargs or len(last.args) != 2:
        return None
    left = editor.maker(_other(last, right.result), _MUL)
    if left is None or left.kwargs or x not in left.args:
        return None
    cos, sin = _other(left, x), _other(right, turned.result)
    if not isinstance(cos, Name) or not isinstance(sin, Name):
        return None
    return _Rotation(x, cos, sin, last, rotated, pairs=pairs)


def _by_halves(editor: Editor, cat: Instruction) -> _Rotation | None:
    """Match cat(a cos - b sin, b cos + a sin), where a and b are the halves of x."""
    if cat.op is not _CAT or len(cat.args[0]) != 2 or not _last_dim(cat):
        return None
    low, high = editor.maker(cat.args[0][0], _SUB), editor.maker(cat.args[0][1], _ADD)
    if low is None or high is None or low.kwargs or high.kwargs:
        return None
    factors = [editor.maker(one, _MUL) for one in (*low.args, *high.args)]
    if any(one is None or one.kwargs for one in factors):
        return None
    (a, cos), (b, sin), (b_too, cos_too), (a_too, sin_too) = (one.args for one in factors if one is not None)
    if (a, b, cos, sin) != (a_too, b_too, cos_too, sin_too):
        return None
    in_turn = _every_second(editor, a, 0)
    x = in_turn or _source(editor, a)
    spec = editor.spec(x)
    if x is None or spec is None or not isinstance(spec.dims[-1], int):
        return None
    half = spec.dims[-1] // 2
    behind = _part(editor, a) == (x, 0, half) and _part(editor, b) == (x, half, half)
    if not behind and _every_second(editor, b, 1) != in_turn:
        return None
    if not isinstance(cos, Name) or not isinstance(sin, Name):
        return None
    return _Rotation(x, cos, sin, cat, spec.dims[-1], interleaved=in_turn is not None, half_tables=True)


def _with_casts(editor: Editor, match: _Rotation) -> _Rotation:
    """Extend a match over the casts around it, if it computes in float32 and rounds at the end."""
    cast = editor.maker(match.x, _aten.to.dtype)
    rounded = editor.only_user(match.last.result, _aten.to.dtype)
    spec = editor.spec(match.x)
    if cast is None or rounded is None or spec is None or spec.dtype != torch.float32 or match.half_tables:
        return match
    source = editor.spec(cast.args[0])
    if source is None or rounded.spec is None or source.dtype != rounded.spec.dtype:
        return match
    return replace(match, x=cast.args[0], last=rounded, wide=True)


def _with_rest(editor: Editor, match: _Rotation) -> _Rotation:
    """Extend a match to complete heads, if only their first elements are rotated."""
    cat = editor.only_user(match.last.result, _CAT)
    if cat is None or len(cat.args[0]) != 2 or not _last_dim(cat):
        return match
    first, second = cat.args[0]
    beyond, part = _slice(editor, second), _part(editor, match.x)
    if first != match.last.result or beyond is None:
        return match
    source = beyond[0]
    whole = source == match.x or part == (source, 0, match.rotated)
    spec = editor.spec(source)
    if not whole or beyond[1] != match.rotated or spec is None or cat.spec != spec:
        return match
    return replace(match, x=source, last=cat)


def _last_dim(cat: Instruction) -> bool:
    return cat.spec is not None and cat.args[1:] in ((-1,), (len(cat.spec.dims) - 1,))


def _other(one: Instruction, name: object) -> Any:
    """Return the other argument of a product or sum."""
    return one.args[1] if one.args[0] == name else one.args[0]


def _source(editor: Editor, name: object) -> Name | None:
    part = _part(editor, name)
    return None if part is None else part[0]


def _part(editor: Editor, name: object) -> tuple[Name, int, int] | None:
    """Return source, start and length if a value is a slice or half of the source's last dimension."""
    member = editor.maker(name, getitem)
    chunks = editor.maker(member.args[0], _aten.chunk.default) if member is not None else None
    if member is None:
        return _slice(editor, name)
    spec = editor.spec(name)
    if chunks is None or spec is None or chunks.args[1] != 2 or chunks.args[2:] != (-1,):
        return None
    length = spec.dims[-1]
    source = editor.spec(chunks.args[0])
    if source is None or not isinstance(length, int) or source.dims[-1] != 2 * length:
        return None
    return chunks.args[0], member.args[1] * length, length


def _slice(editor: Editor, name: object) -> tuple[Name, int, int] | None:
    one, spec = editor.maker(name, _aten.slice.Tensor), editor.spec(name)
    if one is None or spec is None or not _of_last(spec, one.args[1]):
        return None
    source, _, start, _, step = (*one.args, None, 1)[:5]
    length = spec.dims[-1]
    if not isinstance(start, int) or start < 0 or step not in (None, 1) or not isinstance(length, int):
        return None
    return source, start, length


def _every_second(editor: Editor, name: object, start: int) -> Name | None:
    """Return the source of which a value is every second element of the last dimension, from `start`."""
    one, spec = editor.maker(name, _aten.slice.Tensor), editor.spec(name)
    if one is None or spec is None or not _of_last(spec, one.args[1]) or len(one.args) != 5:
        return None
    whole = editor.spec(one.args[0])
    if (one.args[2], one.args[4]) != (start, 2) or whole is None or not isinstance(spec.dims[-1], int):
        return None
    source = one.args[0]
    return source if isinstance(source, Name) and whole.dims[-1] == 2 * spec.dims[-1] else None


def _of_last(spec: Spec, dim: object) -> bool:
    return dim in (-1, len(spec.dims) - 1)
