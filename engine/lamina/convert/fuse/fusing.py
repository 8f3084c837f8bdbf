"""Rewrite of a slice's program for one device: native operators and, on a CPU, merged products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.convert.codegen import Code, slice_source
from lamina.convert.fuse import gpu_kernels, kernels
from lamina.convert.fuse.editor import Editor
from lamina.convert.fuse.norms import fuse_norms
from lamina.convert.fuse.products import Merged, merge_products
from lamina.convert.fuse.rotations import fuse_rotations
from lamina.convert.packing import packed
from lamina.convert.program import Instruction, Name, Program


class Fusing(NamedTuple):
    """Options of fusing: merge products of one value, join q with k and v, use GPU kernels."""

    merge: bool = True
    join: bool = False
    on_gpu: bool = False


@dataclass(frozen=True)
class Fused:
    """A rewritten program with the same results, on a CPU bitwise, and how its weights are made."""

    program: Program
    merged: Merged
    counts: dict[str, int]
    weights_before: tuple[Name, ...] = field(repr=False)

    @cached_property
    def code(self) -> Code:
        return slice_source(self.program)

    @cached_property
    def bind(self) -> Any:
        """Compiled source, as `SliceClass.bind`."""
        return self.code.function("bind", "<fused slice>")

    def made_of(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each weight, the numbers of the original program's weights that it contains."""
        at = {name: number for number, name in enumerate(self.weights_before)}
        parts = (self.merged.get(value.name, (value.name,)) for value in self.program.weights)
        return tuple(tuple(at[name] for name in names) for names in parts)

    def ready(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return this program's weights, made of the original program's."""
        made: list[Tensor] = []
        for value, numbers in zip(self.program.weights, self.made_of(), strict=True):
            parts = [weights[number] for number in numbers]
            weight = parts[0] if len(parts) == 1 else torch.cat(parts)
            weight = weight.contiguous() if weight.dim() == 1 else weight
            made.append(packed(self.program, value.name, weight, native=True))
        return made


def fuse(program: Program, how: Fusing) -> Fused:
    """Replace patterns in a program with native operators."""
    editor = Editor(program, gpu_kernels if how.on_gpu else kernels)
    if how.join and len(program.pieces) > 1:
        editor.join_first()
    counts: dict[str, int] = {}
    for step in (fuse_norms, fuse_rotations, fuse_gates):
        counts |= step(editor)
        editor.drop_unused()
    merged: Merged = {}
    weights = list(program.weights)
    if how.merge:
        weights, merged = merge_products(editor)
        counts["merged products"] = sum(len(parts) for name, parts in merged.items() if _matrix(editor, name))
    before = tuple(value.name for value in program.weights)
    return Fused(editor.written(weights), merged, counts, before)


def _matrix(editor: Editor, name: Name) -> bool:
    return len(editor.specs[name].dims) > 1


_aten = torch.ops.aten
_ACTIVATIONS: dict[Any, Any] = {
    _aten.silu.default: nn.functional.silu,
    _aten.gelu.default: nn.functional.gelu,
    _aten.relu.default: nn.functional.relu,
}


def fuse_gates(editor: Editor) -> dict[str, int]:
    """Replace each gated activation with one instruction; return how many there were."""
    count = 0
    for code in [*editor.code]:
        for product in code:
            if product.op is not _aten.mul.Tensor or product.kwargs:
                continue
            for gate, up in (product.args, product.args[::-1]):
                active = editor.maker(gate, *_ACTIVATIONS)
                if active is not None and _fits(editor, product, active, up):
                    op = _op(editor, active)
                    new = Instruction(product.result, op, (active.args[0], up), {}, product.spec)
                    editor.replace(product, [new])
                    count += 1
                    break
    return {"gated activation": count}


def _fits(editor: Editor, product: Instruction, active: Instruction, up: object) -> bool:
    specs = [editor.spec(active.args[0]), active.spec, editor.spec(up), product.spec]
    identical = all(one is not None and one == specs[0] for one in specs)
    if not identical or product.spec is None or not isinstance(up, Name):
        return False
    return bool(editor.kernels.has_gate(product.spec.dtype, product.spec.dims[-1], _activation_of(active)))


def _op(editor: Editor, active: Instruction) -> Any:
    spec = editor.spec(active.args[0])
    assert spec is not None
    return editor.kernels.gated(spec.dtype, active.op_name, _activation_of(active))


def _activation_of(active: Instruction) -> Any:
    return _activation(active.op, tuple(active.kwargs.items()))


@cache
def _activation(op: Any, options: tuple[tuple[str, Any], ...]) -> Any:
    """Return one object for all uses, since the table of an activation is cached by it."""
    return partial(_ACTIVATIONS[op], **dict(options))
