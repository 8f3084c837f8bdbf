"""Native operators beside the torch expressions that they stand for: the same bits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from lamina import _native
from lamina.convert.fuse import gated, norm, rotary, sum_lanes
from lamina.model.sampler import likeliest

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
EPS = 1e-5


def _drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Of all sizes, with zeros, numbers so small that they are not normal, and infinities."""
    generator = torch.Generator().manual_seed(seed)
    x = (
        torch.randn(shape, generator=generator)
        * 10 ** torch.randint(-3, 3, shape[:-1], generator=generator)[..., None]
    )
    flat = x.flatten()
    places = torch.randperm(flat.numel(), generator=generator)[:12]
    flat[places] = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 1e-7, -6e-8, 1e4, -1e4, 3e38, -3e38, 7e4, 1e-38])
    return x.to(dtype)


def _equal(ours: Tensor, torchs: Tensor) -> bool:
    """To the last bit; of what is no number, that it is none."""
    return ours.dtype == torchs.dtype and torch.equal(ours.isnan(), torchs.isnan()) and torch.equal(
        ours.nan_to_num(nan=0.0).view(torch.uint8), torchs.nan_to_num(nan=0.0).contiguous().view(torch.uint8)
    )  # fmt: skip


def _normed(x: Tensor, weight: Tensor | None, rounds_first: bool, centred: bool) -> Tensor:
    wide = x.float()
    if centred:
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    if rounds_first:
        wide = wide.to(x.dtype)
    return (wide if weight is None else weight * wide).to(x.dtype)


def test_torchs_order_of_sums_is_known_here() -> None:
    assert sum_lanes() in (4, 8, 16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 64, 65, 127, 1024, 1000, 2816, 5120, 70001])
@pytest.mark.parametrize(
    ("weighted", "rounds_first", "centred"),
    [
        ("same", True, False),
        ("float32", False, False),
        ("same", False, False),
        ("", True, False),
        ("float32", False, True),
    ],
)
def test_norms(dtype: torch.dtype, width: int, weighted: str, rounds_first: bool, centred: bool) -> None:
    lanes = sum_lanes()
    assert lanes
    of = torch.float32 if weighted == "float32" else dtype
    weight = torch.randn(width).to(of) if weighted else None
    options = {"centred": centred, "rounds_first": rounds_first, "wide_weight": of == torch.float32 != dtype}
    alone, of_sum = norm(dtype, width, EPS, lanes=lanes, **options)
    x, added = _drawn(3, 1, width, dtype=dtype), _drawn(3, 1, width, dtype=dtype, seed=1)
    assert _equal(alone(x, weight), _normed(x, weight, rounds_first, centred))
    total, normed = of_sum(x, added, weight)
    assert _equal(total, x + added)
    assert _equal(normed, _normed(x + added, weight, rounds_first, centred))
    # Heads of a row that others are in, too.
    apart = _drawn(5, 1, 3 * width + 7, dtype=dtype).narrow(2, 7, 2 * width).view(5, 1, 2, width)
    assert _equal(alone(apart, weight), _normed(apart.contiguous(), weight, rounds_first, centred))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("isa", _native.attention_isas())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_instruction_sets_agree(dtype: str, isa: str, lanes: int) -> None:
    kind = getattr(torch, dtype)
    x, outs = _drawn(4, 777, dtype=kind), []
    for which in ("baseline", isa):
        out = torch.empty_like(x)
        one = _native.Norm(dtype, 777, EPS, False, True, False, lanes, which)
        one.run(x.data_ptr(), 4, 0, 0, out.data_ptr(), 4)
        outs.append(out)
    assert _equal(*outs)


def _halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def _pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def _small_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _small_tables(torch.cat((x[..., ::2], x[..., 1::2]), -1), cos, sin)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "rotated"), [(64, 64), (16, 16), (64, 24), (80, 80), (32, 2)])
@pytest.mark.parametrize("form", [_halves, _pairs, _small_tables, _apart])
@pytest.mark.parametrize("tables", ["same", "wide", "float32"])
def test_rotations(dtype: torch.dtype, head_dim: int, rotated: int, form: object, tables: str) -> None:
    assert callable(form)
    small, kind = form in (_small_tables, _apart), torch.float32 if tables == "float32" else dtype
    width = rotated // 2 if small else rotated
    cos, sin = (_drawn(7, 1, 1, 2 * width, dtype=kind, seed=seed)[..., :width] for seed in (1, 2))
    # q of a product that k and v are in, too.
    x = (
        _drawn(7, 1, 6 * head_dim, dtype=dtype)
        .narrow(2, 0, 4 * head_dim)
        .view(7, 1, 4, head_dim)
        .transpose(1, 2)
    )
    ours = rotary(
        dtype,
        4,
        head_dim,
        rotated,
        pairs=form is _pairs,
        apart=form is _apart,
        half_tables=small,
        wide=tables != "same",
        wide_tables=kind == torch.float32 != dtype,
    )(x, cos, sin)
    part = x[..., :rotated] if tables == "same" else x[..., :rotated].float()
    assert _equal(ours, torch.cat((form(part, cos, sin).to(dtype), x[..., rotated:]), -1))


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("activation", [F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh")])
def test_gates(dtype: torch.dtype, activation: object) -> None:
    assert callable(activation)
    ours = gated(dtype, "some", activation)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).view(64, 1, 1024)
    up = _drawn(64, 1, 1024, dtype=dtype)
    assert _equal(ours(every, up), activation(every) * up), "every number there is"
    both = torch.cat((every, up), -1)
    assert _equal(ours(*both.chunk(2, -1)), activation(every) * up), "halves of one product"
    # What is left of a vector torch computes otherwise: the numbers are those of whole ones.
    odd, active = (one.view(-1)[: 33 * 100].view(3, 11, 100) for one in (both, activation(both)))
    assert _equal(ours(odd[..., :37], odd[..., 50:87]), active[..., :37] * odd[..., 50:87])
    assert ours(every[:0], up[:0]).shape == (0, 1, 1024)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 7, 256, 300, 32000])
def test_the_likeliest_is_argmax(dtype: torch.dtype, vocab: int) -> None:
    few = torch.randint(-3, 0, (9, vocab)).to(dtype)  # ties: the first of them
    assert torch.equal(likeliest(few), few.argmax(-1))
    some = _drawn(9, max(vocab, 12), dtype=dtype)
    assert torch.equal(likeliest(some), some.argmax(-1))
    some[3, -1] = some[4, 0] = math.nan
    some[5] = -math.inf
    assert torch.equal(likeliest(some), some.argmax(-1))
    assert likeliest(some.t()[:5]).shape == (5,)


def test_large_batches_are_shared_out(one_thread: None) -> None:  # noqa: ARG001
    lanes = sum_lanes()
    assert lanes
    x = _drawn(300, 1024, dtype=torch.bfloat16)
    alone, _ = norm(x.dtype, 1024, EPS, centred=False, rounds_first=True, wide_weight=False, lanes=lanes)
    by_one = alone(x)
    torch.set_num_threads(3)
    try:
        assert torch.equal(alone(x), by_one)
    finally:
        torch.set_num_threads(1)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="lanes"):
        _native.Norm("float32", 64, EPS, False, False, False, 5)
    with pytest.raises(ValueError, match="at least one"):
        _native.Norm("float32", 0, EPS, False, False, False, 8)
    with pytest.raises(ValueError, match="even"):
        _native.Rotary("float32", 2, 64, 63, False, False, False, False, False)
    with pytest.raises(ValueError, match="sorted"):
        _native.Rotary("float32", 2, 2048, 2048, False, True, True, False, False)
    with pytest.raises(ValueError, match="float32 have no table"):
        _native.Rowwise("float32").gate(0, 0, 0, 0, 0, 0, 1, 1)
