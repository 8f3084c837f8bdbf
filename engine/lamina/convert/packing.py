"""Weights packed in the order in which products read them fastest on this CPU, and products with them.

An unpacked weight of bfloat16 is reordered at every product, which costs as much as the product itself at
small batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import torch
from torch import Tensor

from lamina._native import Product
from lamina.convert.program import Name, Program

_aten = torch.ops.aten
_plain = torch._C._nn.linear
_product = torch.ops.mkldnn._linear_pointwise.default
# Batch for which the library chooses its order; any batch can be multiplied.
_ROWS = 64
_PANEL, _TILE = Product.PANEL, Product.PANEL // 2
_PANEL_DIMS = 5


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute torch's linear with a weight that may be packed."""
    if weight.is_mkldnn:
        product: Tensor = _product(x, weight, bias, "none", [], "")
        return product
    if weight.dim() == _PANEL_DIMS:
        outputs, inputs = sizes(weight)
        x, stride = by_rows(x, inputs)
        out = x.new_empty((*x.shape[:-1], outputs))
        run = panel_product()
        assert run
        added = 0 if bias is None else bias.data_ptr()
        rows = x.numel() // inputs
        run(x.data_ptr(), stride, weight.data_ptr(), added, out.data_ptr(), rows, inputs, outputs)
        return out
    return _plain(x, weight, bias)


def packed(program: Program, name: Name, weight: Tensor, *, native: bool = False) -> Tensor:
    """Return the weight packed for the program's products, or unchanged if anything else uses it.

    With `native`, panels are used where they are faster and the weight divides into them: each row's result
    then does not depend on other rows. Products with torch's packed weights are bitwise the same.
    """
    ready = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.dim() == 2
    if not ready or not packs() or not _only_multiplied(program, name):
        return weight
    if native and panel_product() and not any(size % _PANEL for size in weight.shape):
        return in_panels(weight)
    return in_library_order(weight) if library_packs() else weight


def packs() -> bool:
    """Return whether products of bfloat16 use packed weights on this machine, Lamina's or torch's."""
    return library_packs() or panel_product() is not None


@cache
def library_packs() -> bool:
    """Return whether torch's products use packed weights on this machine."""
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def panel_product() -> Callable[..., None] | None:
    """Return the product with panels where it is faster than torch: with AMX, or AVX2 without AVX-512."""
    try:
        return Product().run
    except ValueError:
        return None


def in_library_order(weight: Tensor) -> Tensor:
    """Return the weight in oneDNN's order."""
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return ordered


def in_panels(weight: Tensor) -> Tensor:
    """Return the weight as [outputs / 32, inputs / 32, 2, 16, 32], as lamina._native.Product reads it."""
    outputs, inputs = weight.shape
    pairs = weight.contiguous().view(torch.int32)
    tiled = pairs.view(outputs // _PANEL, 2, _TILE, inputs // _PANEL, _TILE)
    return tiled.permute(0, 3, 1, 4, 2).contiguous().view(torch.bfloat16)


def sizes(weight: Tensor) -> tuple[int, int]:
    """Return outputs and inputs of a product's weight, packed or not."""
    outputs, inputs, *_ = weight.shape
    return (outputs * _PANEL, inputs * _PANEL) if weight.dim() == _PANEL_DIMS else (outputs, inputs)


def is_matrix(weight: Tensor) -> bool:
    """Return whether a weight is a matrix, packed or not."""
    return weight.dim() in (2, _PANEL_DIMS)


def _only_multiplied(program: Program, name: Name) -> bool:
    uses = [
        instruction.op is _aten.linear.default
        and instruction.args[1] == name
        and [*instruction.uses()].count(name) == 1
        for piece in program.pieces
        for instruction in piece.instructions
        if name in instruction.uses()
    ]
    return bool(uses) and all(uses) and not any(name in piece.gives for piece in program.pieces)


def by_rows(x: Tensor, width: int) -> tuple[Tensor, int]:
    """Return the tensor, or a copy, as dense rows of this width, and the stride between rows."""
    if x.is_contiguous():
        return x, width
    return by_batch_rows(x) if x.numel() == len(x) * width else (x.contiguous(), width)


def by_batch_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return the tensor, or a copy, with one dense row per request, and the stride between rows."""
    stride = _row_stride(x)
    return (x, stride) if stride else (x.contiguous(), prod(x.shape[1:]))


def _row_stride(x: Tensor) -> int:
    """Return the stride between the rows of a batch, or 0 if rows are not dense."""
    expected = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if size != 1 and stride != expected:
            return 0
        expected *= size
    return x.stride(0)
