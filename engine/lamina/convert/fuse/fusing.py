"""A slice's program as one device runs it: native operators, and a CPU's products of one value together."""

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
    """What is done beside operators: products of one value become one, q waits for k and v."""

    merge: bool = True
    join: bool = False
    on_gpu: bool = False


@dataclass(frozen=True)
class Fused:
    """A program that computes the same, on a CPU to the last bit, and the weights that it is given."""

    program: Program
    merged: Merged
    found: dict[str, int]
    weights_before: tuple[Name, ...] = field(repr=False)

    @cached_property
    def code(self) -> Code:
        return slice_source(self.program)

    @cached_property
    def bind(self) -> Any:
        """As of a slice's class."""
        return self.code.function("bind", "<fused slice>")

    def made_of(self) -> tuple[tuple[int, ...], ...]:
        """For each of its weights, the numbers of those of the original program that are in it."""
        at = {name: number for number, name in enumerate(self.weights_before)}
        parts = (self.merged.get(value.name, (value.name,)) for value in self.program.weights)
        return tuple(tuple(at[name] for name in names) for names in parts)

    def ready(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Its weights, of those of the original program."""
        made: list[Tensor] = []
        for value, numbers in zip(self.program.weights, self.made_of(), strict=True):
            parts = [weights[number] for number in numbers]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            whole = whole.contiguous() if whole.dim() == 1 else whole
            made.append(packed(self.program, value.name, whole, native=True))
        return made


def fuse(program: Program, how: Fusing) -> Fused:
    """Put native operators where their patterns are."""
    editor = Editor(program, gpu_kernels if how.on_gpu else kernels)
    if how.join and len(program.pieces) > 1:
        editor.join_first()
    found: dict[str, int] = {}
    for step in (fuse_norms, fuse_rotations, fuse_gates):
        found |= step(editor)
        editor.drop_unused()
    merged: Merged = {}
    weights = list(program.weights)
    if how.merge:
        weights, merged = merge_products(editor)
        found["merged products"] = sum(len(parts) for name, parts in merged.items() if _matrix(editor, name))
    before = tuple(value.name for value in program.weights)
    return Fused(editor.written(weights), merged, found, before)


def _matrix(editor: Editor, name: Name) -> bool:
    return len(editor.specs[name].dims) > 1


_aten = torch.ops.aten
_ACTIVATIONS: dict[Any, Any] = {
    _aten.silu.default: nn.functional.silu,
    _aten.gelu.default: nn.functional.gelu,
    _aten.relu.default: nn.functional.relu,
}


def fuse_gates(editor: Editor) -> dict[str, int]:
    """Put one instruction in the place of each; how many there were."""
    found = 0
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
                    found += 1
                    break
    return {"gated activation": found}


def _fits(editor: Editor, product: Instruction, active: Instruction, up: object) -> bool:
    specs = [editor.spec(active.args[0]), active.spec, editor.spec(up), product.spec]
    alike = all(one is not None and one == specs[0] for one in specs)
    if not alike or product.spec is None or not isinstance(up, Name):
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
    """One object for all of its uses, by which the table is found again."""
    return partial(_ACTIVATIONS[op], **dict(options))
