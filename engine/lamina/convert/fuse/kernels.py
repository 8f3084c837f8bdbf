"""What stands for several of torch's operators in a slice's code: native passes over the rows of a batch.

Each rounds as torch does, step by step: the results are the same to the last bit. A tensor may be what is
left of a wider product: rows at a distance from each other. What is given back is dense.
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


def _called(dtype: torch.dtype) -> str:
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
    """x / sqrt(mean(x^2) + eps) x weight, and the same of a sum, which is given first.

    centred: of x - mean(x). rounds_first: to dtype before it is weighted. wide_weight: that is float32.
    lanes: of the vectors in whose order a row is added up, else torch's.
    """
    lanes = lanes or sum_lanes()
    assert lanes is not None
    native = Norm(_called(dtype), width, eps, centred, rounds_first, wide_weight, lanes)
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
    """Of how many numbers the vectors are in whose order torch adds up a row; None if of none we know."""
    x = torch.randn(32, 1003, generator=torch.Generator().manual_seed(7))
    eps = 1e-6
    wanted = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    for lanes in (16, 8, 4):
        ours, _ = norm(
            x.dtype, x.shape[1], eps, centred=False, rounds_first=False, wide_weight=False, lanes=lanes
        )
        if torch.equal(ours(x), wanted):
            return lanes
    return None


def has_norm(dtype: torch.dtype, width: object) -> bool:  # noqa: ARG001 - of any
    """Whether such rows can be normed as torch does it; it adds up narrow ones in other ways."""
    return isinstance(width, int) and width >= _LEAST_WIDTH and sum_lanes() is not None


@cache
def rotary(
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    rotated: int,
    *,
    pairs: bool,
    apart: bool,
    half_tables: bool,
    wide: bool,
    wide_tables: bool,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """x cos + rotated(x) sin over the first numbers of each head of x [B, heads, 1, head_dim].

    See help(lamina._native.Rotary) for the variants.
    """
    native = Rotary(_called(dtype), heads, head_dim, rotated, pairs, apart, half_tables, wide, wide_tables)
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
    """Whether such rows can be gated by an activation."""
    return dtype in HALVES


@cache
def gated(
    dtype: torch.dtype, name: str, activation: Callable[[Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """activation(gate) x up for numbers of 16 bits, of which there are so few that all results are kept."""
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    table = activation(numbers).contiguous()
    run, at = Rowwise(_called(dtype)).gate, table.data_ptr()

    def gate_times_up(gate: Tensor, up: Tensor, table: Tensor = table) -> Tensor:  # noqa: ARG001 - it stays
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
