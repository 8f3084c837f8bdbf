"""Weights of bfloat16 products in the order in which a CPU's kernels read them.

Left as they are, they are brought into that order at every product, which costs as much as the product itself
at small batches. What comes out is the same to the last bit.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lamina.convert.program import Name, Program

_plain = torch._C._nn.linear
_product = torch.ops.mkldnn._linear_pointwise.default
_linear = torch.ops.aten.linear.default
# What the order is chosen for; any batch can be multiplied.
_ROWS = 64


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's, with a weight that may have been packed."""
    if weight.is_mkldnn:
        product: Tensor = _product(x, weight, bias, "none", [], "")
        return product
    return _plain(x, weight, bias)


def packed(program: Program, name: Name, weight: Tensor) -> Tensor:
    """The weight as the program's products read it fastest; itself where something else uses it too."""
    ready = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.dim() == 2
    if not ready or not _supported() or not _only_multiplied(program, name):
        return weight
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return ordered


@cache
def _supported() -> bool:
    """Whether torch's own products of bfloat16 use these kernels here."""
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _only_multiplied(program: Program, name: Name) -> bool:
    uses = [
        instruction.op is _linear and instruction.args[1] == name and [*instruction.uses()].count(name) == 1
        for piece in program.pieces
        for instruction in piece.instructions
        if name in instruction.uses()
    ]
    return bool(uses) and all(uses) and not any(name in piece.gives for piece in program.pieces)
