"""Base of attention workers on all devices: the shape of heads, and a layer's K and V."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionLayer:
    """A layer's keys and values, and how queries attend to them.

    `k` and `v` are views [slots, kv_heads, head_dim] with the same strides. `sinks` [heads], float32: a score
    without a value for each head, which counts in the softmax. `space`: whose plan() it goes by. `scales`
    [slots, kv_heads], float32: K's and V's of an int8 arena.
    """

    k: Tensor
    v: Tensor
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    chunk: int = 0
    space: int = 0
    scales: tuple[Tensor, ...] = ()


class Heads:
    """Heads of one shape and dtype, whose tensors are on one device."""

    device: torch.device
    dtypes: ClassVar[Mapping[torch.dtype, object]]  # native dtype by torch's

    def __init__(self, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, latent: int = 0) -> None:
        if dtype not in self.dtypes:
            raise ValueError(f"dtype is {dtype} but must be one of {', '.join(map(str, self.dtypes))}")
        self.dtype = self.stored = dtype  # of tensors, and of the arena
        self.heads, self.kv_heads, self.head_dim, self.latent = heads, kv_heads, head_dim, latent
        self.value_dim = latent or head_dim
        self.requests = 0

    def require_views(self, k: Tensor, v: Tensor) -> None:
        """Assert that a layer's K and V have this shape, the same strides, and adjacent dimensions of a head.

        With `latent` values are views of the first so many numbers of their keys.
        """
        assert k.dtype == v.dtype == self.stored
        assert k.shape[1:] == (self.kv_heads, self.head_dim)
        assert v.shape[1:] == (self.kv_heads, self.value_dim)
        assert (k.data_ptr() == v.data_ptr()) == bool(self.latent)
        assert k.stride() == v.stride()
        assert k.stride(2) == 1

    def check(self, rows: int, q: Tensor | None = None, *kv: Tensor) -> None:
        """Assert that tensors are contiguous and of this shape and dtype.

        q is [rows, heads, head_dim], and k and v (with `latent` k alone) are [rows, kv_heads, head_dim].
        """
        assert len(kv) in (0, 1 if self.latent else 2)
        for tensor, heads in [(q, self.heads), *((one, self.kv_heads) for one in kv)]:
            if tensor is not None:
                assert tensor.dtype == self.dtype
                assert tensor.shape == (rows, heads, self.head_dim)
                assert tensor.is_contiguous()
                assert tensor.device == self.device
