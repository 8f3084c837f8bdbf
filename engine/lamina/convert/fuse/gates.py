"""Find gated activations in a program: an activation of one product, times another one."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import nn

from lamina.convert.fuse.editor import Editor
from lamina.convert.program import Instruction, Name

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
