"""Storage formats of K and V in an arena: the model's dtype, or rounded to a byte per number.

The formats are defined in csrc/attention/stored.hpp. Every attention kernel computes with the stored values.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

KvDtype = Literal["auto", "fp8", "int8"]  # auto: the model's
KV_DTYPES = get_args(KvDtype)
SCALE_BYTES = 4
_MOST_FP8 = 448.0
_MOST_INT8 = 127.0


class Rounded(NamedTuple):
    """Rounded vectors: a byte per number [..., numbers] and, for int8, a scale per vector [...]."""

    bytes: Tensor  # as int8
    scales: Tensor | None


def number_bytes(kv_dtype: KvDtype, dtype: torch.dtype) -> int:
    return dtype.itemsize if kv_dtype == "auto" else 1


def scale_bytes(kv_dtype: KvDtype) -> int:
    """Return the bytes of the scale of each vector."""
    return SCALE_BYTES if kv_dtype == "int8" else 0


def rounded(vectors: Tensor, kv_dtype: KvDtype) -> Rounded:
    """Round vectors as an arena stores them, bit for bit what the native worker stores."""
    if kv_dtype == "fp8":
        clamped = vectors.float().clamp(-_MOST_FP8, _MOST_FP8)  # keeps NaN
        return Rounded(clamped.to(torch.float8_e4m3fn).view(torch.int8), None)
    assert kv_dtype == "int8"
    wide = vectors.float()
    # A tensor as divisor: torch multiplies by the inverse of a number.
    scales = wide.abs().amax(-1) / torch.full((), _MOST_INT8, device=wide.device)
    least = torch.finfo(torch.float32).tiny
    finite, zero = scales.isfinite(), scales < least
    whole = (wide / scales[..., None]).round().nan_to_num(0.0, 0.0, 0.0)
    numbers = torch.where((finite & ~zero)[..., None], whole, 0.0).to(torch.int8)
    return Rounded(numbers, scales.masked_fill(~finite, torch.nan).masked_fill(zero, 0.0))


def widened(stored: Rounded, dtype: torch.dtype) -> Tensor:
    """Convert stored vectors to what attention computes with; exact except for scaled 16-bit values."""
    if stored.scales is None:
        return stored.bytes.view(torch.float8_e4m3fn).to(dtype)
    return (stored.bytes.float() * stored.scales[..., None]).to(dtype)


def as_stored(vectors: Tensor, kv_dtype: KvDtype) -> Tensor:
    """Round vectors to the values that attention reads from an arena."""
    if kv_dtype == "auto":
        return vectors
    return widened(rounded(vectors, kv_dtype), vectors.dtype)
