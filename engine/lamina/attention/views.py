"""What an attention worker takes for the keys and values of a layer."""

from __future__ import annotations

import torch
from torch import Tensor


def require_views(k: Tensor, v: Tensor, dtype: torch.dtype, kv_heads: int, head_dim: int) -> None:
    """Both [slots, kv_heads, head_dim], of the same dtype and strides, a head's dimensions adjacent."""
    assert k.dtype == v.dtype == dtype
    assert k.shape[1:] == v.shape[1:] == (kv_heads, head_dim)
    assert k.stride() == v.stride()
    assert k.stride(2) == 1
