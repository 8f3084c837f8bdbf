"""Fused GPU operators for slices, with the functions of `kernels`.

Each rounds like torch after every step; sums are computed in another order than torch's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor, empty_like, nn

from lamina import gpu
from lamina.convert.fuse.kernels import HALVES
from lamina.convert.packing import by_batch_rows, by_rows

_ALIGNMENT, _MOST_BYTES = 16, 1 << 15  # of a thread's access; of a row that is normed
_GELU = nn.functional.gelu
_ACTIVATIONS: dict[tuple[Any, frozenset[tuple[str, Any]]], int] = {
    (nn.functional.silu, frozenset()): 0,
    (_GELU, frozenset()): 1,
    (_GELU, frozenset({("approximate", "none")})): 1,
    (_GELU, frozenset({("approximate", "tanh")})): 2,
    (nn.functional.relu, frozenset()): 3,
}


class _Norm(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("dtype", "width")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("centred", "rounds_first", "wide_weight")),
    )


class _Rotary(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in (
            *("dtype", "heads", "head_dim", "rotated"),
            *("pairs", "interleaved", "half_tables", "wide", "wide_tables"),
        )
    )


def has_norm(dtype: torch.dtype, width: object) -> bool:
    """Return whether rows of this width can be normed."""
    return isinstance(width, int) and _moves(dtype, width) and width * dtype.itemsize <= _MOST_BYTES


def _moves(dtype: torch.dtype, width: object) -> bool:
    """Return whether rows of this width divide into a thread's accesses."""
    return isinstance(width, int) and not width * dtype.itemsize % _ALIGNMENT


@cache
def norm(
    dtype: torch.dtype, width: int, eps: float, *, centred: bool, rounds_first: bool, wide_weight: bool
) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    """Return the functions of `kernels.norm` for a GPU."""
    shape = ctypes.byref(_Norm(gpu.DTYPES[dtype], width, eps, centred, rounds_first, wide_weight))

    def run(
        x: Tensor, weight: Tensor | None, added: Tensor | None = None, total: Tensor | None = None
    ) -> Tensor:
        x, stride = by_batch_rows(_aligned(x))
        out = x.new_empty(x.shape)
        others = (added, total, None if weight is None else _aligned(weight))
        pointers = [None if one is None else one.data_ptr() for one in others]
        gpu.launch(
            "norm", x.device, shape, x.data_ptr(), prod(x.shape[1:-1]), stride * dtype.itemsize, *pointers,
            out.data_ptr(), x.numel() // width,
        )  # fmt: skip
        return out

    def rms_norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return run(x, weight)

    def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, added = _aligned(x.contiguous()), _aligned(added.contiguous())
        total = empty_like(x)
        return total, run(x, weight, added, total)

    return rms_norm, add_rms_norm


@cache
def rotary(dtype: torch.dtype, heads: int, head_dim: int, rotated: int, **how: bool) -> Callable[..., Tensor]:
    """Return the function of `kernels.rotary` for a GPU."""
    shape = ctypes.byref(_Rotary(gpu.DTYPES[dtype], heads, head_dim, rotated, **how))
    table_size = (torch.float32 if how["wide_tables"] else dtype).itemsize

    def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        row, head, *_ = x.stride()
        if cos.stride(-1) != 1 or sin.stride(-1) != 1 or sin.stride(0) != cos.stride(0):
            cos, sin = cos.contiguous(), sin.contiguous()
        out = x.new_empty((len(x), heads, 1, head_dim))
        size = dtype.itemsize
        gpu.launch(
            "rotary", x.device, shape, x.data_ptr(), head * size, row * size, cos.data_ptr(), sin.data_ptr(),
            cos.stride(0) * table_size, out.data_ptr(), len(x),
        )  # fmt: skip
        return out

    return rotary


def has_gate(dtype: torch.dtype, width: object, activation: partial[Tensor]) -> bool:
    """Return whether rows of this type can be gated by this activation."""
    return dtype in HALVES and _moves(dtype, width) and _named(activation) in _ACTIVATIONS


def _named(activation: partial[Tensor]) -> tuple[Any, frozenset[tuple[str, Any]]]:
    return activation.func, frozenset(activation.keywords.items())


@cache
def gated(dtype: torch.dtype, name: str, activation: partial[Tensor]) -> Callable[..., Tensor]:
    """Return the function of `kernels.gated` for a GPU."""
    number = _ACTIVATIONS[_named(activation)]

    def gate_times_up(gate: Tensor, up: Tensor) -> Tensor:
        width = gate.shape[-1]
        (gate, gates), (up, ups) = by_rows(_aligned(gate), width), by_rows(_aligned(up), width)
        out = gate.new_empty(gate.shape)
        size = dtype.itemsize
        gpu.launch(
            "gate", gate.device, gpu.DTYPES[dtype], number, gate.data_ptr(), gates * size, up.data_ptr(),
            ups * size, out.data_ptr(), gate.numel() // width, width,
        )  # fmt: skip
        return out

    gate_times_up.__name__ = f"{name}_times"
    return gate_times_up


def _aligned(x: Tensor) -> Tensor:
    """Return `x`, or a dense copy if it or its rows are not aligned to a thread's access."""
    stride = x.stride(0) * x.itemsize % _ALIGNMENT if x.dim() > 1 else 0
    return x if not (stride or x.data_ptr() % _ALIGNMENT) else x.clone(memory_format=torch.contiguous_format)
