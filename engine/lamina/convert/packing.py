"""Weights in the order in which products read them fastest on this CPU, and products with such weights.

Left as it is, a weight of bfloat16 is brought into that order at every product, which costs as much as the
product itself at small batches.
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
# What the library's order is chosen for; any batch can be multiplied.
_ROWS = 64
_PANEL, _TILE = Product.PANEL, Product.PANEL // 2
_PANEL_DIMS = 5


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's, with a weight that may have been packed."""
    if weight.is_mkldnn:
        product: Tensor = _product(x, weight, bias, "none", [], "")
        return product
    if weight.dim() == _PANEL_DIMS:
        outputs, inputs = sizes(weight)
        x, stride = by_rows(x, inputs)
        out = x.new_empty((*x.shape[:-1], outputs))
        run = by_panels()
        assert run
        added = 0 if bias is None else bias.data_ptr()
        rows = x.numel() // inputs
        run(x.data_ptr(), stride, weight.data_ptr(), added, out.data_ptr(), rows, inputs, outputs)
        return out
    return _plain(x, weight, bias)


def packed(program: Program, name: Name, weight: Tensor, *, native: bool = False) -> Tensor:
    """The weight as the program's products read it fastest; itself where something else uses it too.

    `native` operators multiply by panels where that is faster here and the weight is whole ones: each row's
    result is then the same whatever other rows there are. What torch's library makes of a weight in its order
    is the same to the last bit as of one that is not.
    """
    ready = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.dim() == 2
    if not ready or not packs() or not _only_multiplied(program, name):
        return weight
    if native and by_panels() and not any(size % _PANEL for size in weight.shape):
        return in_panels(weight)
    return in_library_order(weight) if library_packs() else weight


def packs() -> bool:
    """Whether products of bfloat16 use packed weights here, our own or torch's."""
    return library_packs() or by_panels() is not None


@cache
def library_packs() -> bool:
    """Whether torch's do."""
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def by_panels() -> Callable[..., None] | None:
    """What multiplies by weights in panels, where torch is slower: with tiles, or AVX2 and no more."""
    try:
        return Product().run
    except ValueError:
        return None


def in_library_order(weight: Tensor) -> Tensor:
    """oneDNN's."""
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return ordered


def in_panels(weight: Tensor) -> Tensor:
    """[outputs / 32, inputs / 32, 2, 16, 32]: see lamina._native.Product."""
    outputs, inputs = weight.shape
    pairs = weight.contiguous().view(torch.int32)
    apart = pairs.view(outputs // _PANEL, 2, _TILE, inputs // _PANEL, _TILE)
    return apart.permute(0, 3, 1, 4, 2).contiguous().view(torch.bfloat16)


def sizes(weight: Tensor) -> tuple[int, int]:
    """Outputs and inputs of a product's weight, packed or not."""
    outputs, inputs, *_ = weight.shape
    return (outputs * _PANEL, inputs * _PANEL) if weight.dim() == _PANEL_DIMS else (outputs, inputs)


def is_matrix(weight: Tensor) -> bool:
    """Whether it has such sizes."""
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
    """The tensor as dense rows of this width, or a copy where it has none, and how far they are apart."""
    if x.is_contiguous():
        return x, width
    return by_batch_rows(x) if x.numel() == len(x) * width else (x.contiguous(), width)


def by_batch_rows(x: Tensor) -> tuple[Tensor, int]:
    """The same of whole rows of a batch, whatever their shape."""
    stride = _row_stride(x)
    return (x, stride) if stride else (x.contiguous(), prod(x.shape[1:]))


def _row_stride(x: Tensor) -> int:
    """How far the rows of a batch are apart, each being dense; 0 if it is not so."""
    wanted = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if size != 1 and stride != wanted:
            return 0
        wanted *= size
    return x.stride(0)
