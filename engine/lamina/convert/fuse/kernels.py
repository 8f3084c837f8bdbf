"""Fused CPU operators for slices: native passes over the rows of a batch.

Each rounds like torch after every step, so results are bitwise equal. An input may be a view of a wider
product, with a stride between rows; results are dense.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import torch
from torch import Tensor, empty_like

from lamina._native import Norm, Rotary, Rowwise
from lamina.convert.packing import by_batch_rows, by_rows

HALVES = (torch.bfloat16, torch.float16)
_LEAST_WIDTH = 16


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def norm(
    dtype: torch.dtype,
    width: int,
    eps: float,
    *,
    centred: bool,
    rounds_first: bool,
    wide_weight: bool,
    lanes: int | None = None,
) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    """Return two functions: x / sqrt(mean(x^2) + eps) x weight, and the same of a sum, which it also returns.

    centred: subtract mean(x) first. rounds_first: round to dtype before weighting. wide_weight: the weight is
    float32. lanes: width of the vectors in whose order a row is summed, by default torch's.
    """
    lanes = lanes or sum_lanes()
    assert lanes is not None
    native = Norm(_dtype_name(dtype), width, eps, centred, rounds_first, wide_weight, lanes)
    run, run_added = native.run, native.add

    def rms_norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
        weighted = 0 if weight is None else weight.data_ptr()
        rows = x.numel() // width
        if x.is_contiguous():
            out = empty_like(x)
            run(x.data_ptr(), rows, 0, weighted, out.data_ptr(), rows)
        else:
            out = x.new_empty(x.shape)
            x, stride = by_batch_rows(x)
            run(x.data_ptr(), prod(x.shape[1:-1]), stride, weighted, out.data_ptr(), rows)
        return out

    def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, added = x.contiguous(), added.contiguous()
        total, out = empty_like(x), empty_like(x)
        weighted = 0 if weight is None else weight.data_ptr()
        rows = x.numel() // width
        run_added(x.data_ptr(), added.data_ptr(), total.data_ptr(), weighted, out.data_ptr(), rows)
        return total, out

    return rms_norm, add_rms_norm


@cache
def sum_lanes() -> int | None:
    """Return the width of the vectors in whose order torch sums a row; None if it is an unknown one."""
    x = torch.randn(32, 1003, generator=torch.Generator().manual_seed(7))
    eps = 1e-6
    expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    for lanes in (16, 8, 4):
        ours, _ = norm(
            x.dtype, x.shape[1], eps, centred=False, rounds_first=False, wide_weight=False, lanes=lanes
        )
        if torch.equal(ours(x), expected):
            return lanes
    return None


def has_norm(dtype: torch.dtype, width: object) -> bool:  # noqa: ARG001 - of any
    """Return whether rows of this width can be normed like torch, which sums narrow ones in other orders."""
    return isinstance(width, int) and width >= _LEAST_WIDTH and sum_lanes() is not None


@cache
def rotary(
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    rotated: int,
    *,
    pairs: bool,
    interleaved: bool,
    half_tables: bool,
    wide: bool,
    wide_tables: bool,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return x cos + rotated(x) sin over the first elements of each head of x [B, heads, 1, head_dim].

    help(lamina._native.Rotary) describes the variants.
    """
    native = Rotary(
        _dtype_name(dtype), heads, head_dim, rotated, pairs, interleaved, half_tables, wide, wide_tables
    )
    run = native.run

    def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        row, head, _, one = x.stride()
        if one != 1:
            x = x.contiguous()
            row, head = heads * head_dim, head_dim
        table, *_, one = cos.stride()
        if one != 1 or sin.stride(-1) != 1 or sin.stride(0) != table:
            cos, sin = cos.contiguous(), sin.contiguous()
            table = cos.stride(0)
        batch = len(x)
        out = x.new_empty((batch, heads, 1, head_dim))
        run(x.data_ptr(), head, row, cos.data_ptr(), sin.data_ptr(), table, out.data_ptr(), batch)
        return out

    return rotary


def has_gate(dtype: torch.dtype, width: object, activation: object) -> bool:  # noqa: ARG001 - of any
    """Return whether rows of this type can be gated by an activation."""
    return dtype in HALVES


@cache
def gated(
    dtype: torch.dtype, name: str, activation: Callable[[Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return activation(gate) x up for 16-bit types, with a table of the activation of all 65,536 values."""
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    table = activation(numbers).contiguous()
    run, at = Rowwise(_dtype_name(dtype)).gate, table.data_ptr()

    def gate_times_up(gate: Tensor, up: Tensor, table: Tensor = table) -> Tensor:  # noqa: ARG001 - keeps it alive
        width = gate.shape[-1]
        if gate.is_contiguous() and up.is_contiguous():
            out = empty_like(gate)
            gates = ups = width
        else:
            out = gate.new_empty(gate.shape)
            gate, gates = by_rows(gate, width)
            up, ups = by_rows(up, width)
        rows = gate.numel() // width
        run(at, gate.data_ptr(), gates, up.data_ptr(), ups, out.data_ptr(), rows, width)
        return out

    gate_times_up.__name__ = f"{name}_times"
    return gate_times_up
