"""Pattern matching of RMSNorm and LayerNorm, with the sum before them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lamina.convert.fuse.editor import Editor
from lamina.convert.fuse.kernels import HALVES
from lamina.convert.program import Instruction, Name

_aten = torch.ops.aten
_MUL, _ADD, _TO, _MEAN = _aten.mul.Tensor, _aten.add.Tensor, _aten.to.dtype, _aten.mean.dim


@dataclass(frozen=True)
class _Norm:
    """A matched norm: its input, last instruction, weight and variant."""

    x: Name
    last: Instruction
    weight: Name | None
    dtype: torch.dtype
    width: int
    eps: float
    centred: bool
    rounds_first: bool
    wide_weight: bool

    def arguments(self, *values: Name) -> tuple[Name, ...]:
        return (*values, *(() if self.weight is None else (self.weight,)))


def fuse_norms(editor: Editor) -> dict[str, int]:
    """Replace each norm with one instruction; return how many there were."""
    counts = {"RMSNorm": 0, "sum and RMSNorm": 0, "LayerNorm": 0}
    for code in [*editor.code]:
        for root in code:
            match = _matched(editor, root) if root.op is _aten.rsqrt.default else None
            if match is not None:
                added = _replace(editor, match)
                counts["LayerNorm" if match.centred else "sum and RMSNorm" if added else "RMSNorm"] += 1
    return counts


def _replace(editor: Editor, match: _Norm) -> bool:
    """Replace a norm; return whether the sum before it was included."""
    alone, of_sum = editor.kernels.norm(
        match.dtype,
        match.width,
        match.eps,
        centred=match.centred,
        rounds_first=match.rounds_first,
        wide_weight=match.wide_weight,
    )
    total = _sum(editor, match)
    if total is None:
        new = Instruction(match.last.result, alone, match.arguments(match.x), {}, match.last.spec)
        editor.replace(match.last, [new])
        return False
    pair = Instruction(editor.fresh("pair"), of_sum, match.arguments(*total.args), {}, None)
    taken = editor.members(pair.result, [total, match.last])
    editor.replace(total, [pair, *taken], drop=[match.last])
    return True


def _sum(editor: Editor, match: _Norm) -> Instruction | None:
    """Return the addition of two equal-shaped tensors in the same piece whose result is normed, if any."""
    total = editor.maker(match.x, _ADD)
    if total is None or len(total.args) != 2 or total.kwargs:
        return None
    if editor.piece_of[total.result] != editor.piece_of[match.last.result]:
        return None
    same = all(editor.spec(one) == total.spec for one in total.args)
    return total if same and total.spec is not None and total.spec.dtype == match.dtype else None


def _matched(editor: Editor, rsqrt: Instruction) -> _Norm | None:
    """Match a norm from its reciprocal square root: x, mean(x^2) and what follows."""
    shifted = editor.maker(rsqrt.args[0], _ADD)
    mean = editor.maker(shifted.args[0], _MEAN) if shifted and not shifted.kwargs else None
    power = editor.maker(mean.args[0], _aten.pow.Tensor_Scalar) if mean and _over_rows(editor, mean) else None
    if shifted is None or power is None or power.args[1] != 2 or not isinstance(shifted.args[1], float):
        return None
    value = power.args[0]
    scaled = editor.only_user(rsqrt.result, _MUL)
    if scaled is None or set(scaled.args) != {value, rsqrt.result}:
        return None
    wide, centred = value, False
    difference = editor.maker(value, _aten.sub.Tensor)
    if difference is not None and not difference.kwargs:
        middle = editor.maker(difference.args[1], _MEAN)
        if middle is None or middle.args[0] != difference.args[0] or not _over_rows(editor, middle):
            return None
        wide, centred = difference.args[0], True
    cast = editor.maker(wide, _TO)
    source = cast.args[0] if cast is not None else wide
    spec, row = editor.spec(source), editor.spec(wide)
    if spec is None or row is None or row.dtype != torch.float32:
        return None
    if not editor.kernels.has_norm(spec.dtype, spec.dims[-1]):
        return None
    if spec.dtype != torch.float32 and spec.dtype not in HALVES:
        return None
    width = spec.dims[-1]
    assert isinstance(width, int)
    last, weight, rounds_first = _end(editor, scaled, spec.dtype, width)
    if last.spec is None or (last.spec.dims, last.spec.dtype) != (spec.dims, spec.dtype):
        return None
    wide_weight = weight is not None and editor.weights[weight].dtype == torch.float32
    return _Norm(source, last, weight, spec.dtype, width, shifted.args[1], centred, rounds_first, wide_weight)


def _over_rows(editor: Editor, mean: Instruction) -> bool:
    spec = editor.spec(mean.args[0])
    last = spec is not None and list(mean.args[1]) in ([-1], [len(spec.dims) - 1])
    return last and list(mean.args[2:]) == [True] and not mean.kwargs


def _end(
    editor: Editor, scaled: Instruction, dtype: torch.dtype, width: int
) -> tuple[Instruction, Name | None, bool]:
    """Return a norm's last instruction, its weight, and whether it is rounded to dtype before weighting."""
    if dtype != torch.float32 and (rounded := editor.only_user(scaled.result, _TO)):
        weighted = editor.only_user(rounded.result, _MUL)
        weight = _weight(editor, weighted, rounded.result, width)
        if weighted is not None and weight is not None and editor.weights[weight].dtype == dtype:
            return weighted, weight, True
        return rounded, None, True
    weighted = editor.only_user(scaled.result, _MUL)
    weight = _weight(editor, weighted, scaled.result, width)
    if weighted is None or weight is None:
        return scaled, None, False
    if dtype == torch.float32:
        return weighted, weight, False
    rounded = editor.only_user(weighted.result, _TO)
    return rounded or weighted, weight, False


def _weight(editor: Editor, weighted: Instruction | None, value: Name, width: int) -> Name | None:
    """Return the weight that a row is multiplied by, element by element."""
    if weighted is None or weighted.kwargs:
        return None
    other = [one for one in weighted.args if one != value]
    spec = editor.weights.get(other[0]) if len(other) == 1 and isinstance(other[0], Name) else None
    fits = spec is not None and spec.dims == (width,) and spec.dtype in (torch.float32, *HALVES)
    return other[0] if fits else None
