"""How the rows of a batch lie: what is left of a wider product has them at a distance from each other."""

from __future__ import annotations

from math import prod

from torch import Tensor


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
