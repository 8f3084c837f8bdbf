"""A GPU's native operators beside the torch expressions they stand for; emulated where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from tiny_models import converted, seeded, tiny
from torch import Tensor

from lamina import cuda_library
from lamina.convert.fuse import Fusing, fuse, gpu_kernels
from lamina.convert.program import BATCH

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
EPS = 1e-5
# Sums in another order may be rounded otherwise, and then once more.
NEAR = {torch.bfloat16: 2**-6, torch.float16: 2**-9, torch.float32: 1e-5}


@pytest.fixture
def place(request: pytest.FixtureRequest) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    request.getfixturevalue("emulated")
    return torch.device("cpu")


@pytest.fixture
def drawn(place: torch.device) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(place)

    return draw


def _near(ours: Tensor, torchs: Tensor) -> None:
    torch.testing.assert_close(ours, torchs, rtol=NEAR[ours.dtype], atol=NEAR[ours.dtype] / 8)


def _normed(x: Tensor, weight: Tensor | None, rounds_first: bool, centred: bool) -> Tensor:
    wide = x.float()
    if centred:
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    if rounds_first:
        wide = wide.to(x.dtype)
    return (wide if weight is None else weight * wide).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 512, 520, 4104, 8192])
@pytest.mark.parametrize(
    ("weighted", "rounds_first", "centred"),
    [("same", True, False), ("float32", False, False), ("", True, False), ("float32", False, True)],
)
def test_norms(
    drawn: Callable[..., Tensor],
    dtype: torch.dtype,
    width: int,
    weighted: str,
    rounds_first: bool,
    centred: bool,
) -> None:
    of = torch.float32 if weighted == "float32" else dtype
    weight = drawn(width, dtype=of) if weighted else None
    assert gpu_kernels.has_norm(dtype, width)
    options = {"centred": centred, "rounds_first": rounds_first, "wide_weight": of == torch.float32 != dtype}
    alone, of_sum = gpu_kernels.norm(dtype, width, EPS, **options)
    x, added = drawn(3, 1, width, dtype=dtype), drawn(3, 1, width, dtype=dtype)
    _near(alone(x, weight), _normed(x, weight, rounds_first, centred))
    total, normed = of_sum(x, added, weight)
    assert torch.equal(total, x + added)
    _near(normed, _normed(x + added, weight, rounds_first, centred))
    # Heads of a row that others are in, too; and rows that begin where nothing is aligned.
    for before in (8, 7):
        apart = drawn(5, 1, 2 * width + 8, dtype=dtype).narrow(2, before, 2 * width).view(5, 1, 2, width)
        _near(alone(apart, weight), _normed(apart, weight, rounds_first, centred))
    assert alone(x[:0], weight).shape == (0, 1, width)


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
@pytest.mark.parametrize(("head_dim", "rotated"), [(64, 64), (64, 24), (21, 2)])
@pytest.mark.parametrize("form", [_halves, _pairs, _small_tables, _apart])
@pytest.mark.parametrize("tables", ["same", "wide", "float32"])
def test_rotations(
    drawn: Callable[..., Tensor],
    dtype: torch.dtype,
    head_dim: int,
    rotated: int,
    form: Callable[..., Tensor],
    tables: str,
) -> None:
    small, kind = form in (_small_tables, _apart), torch.float32 if tables == "float32" else dtype
    width = rotated // 2 if small else rotated
    cos, sin = (drawn(7, 1, 1, 2 * width, dtype=kind)[..., :width] for _ in range(2))
    # q of a product that k and v are in, too.
    x = drawn(7, 1, 6 * head_dim, dtype=dtype)[..., : 4 * head_dim].view(7, 1, 4, head_dim).transpose(1, 2)
    ours = gpu_kernels.rotary(
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
    _near(ours, torch.cat((form(part, cos, sin).to(dtype), x[..., rotated:]), -1))


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize(
    ("op", "options"),
    [
        (F.silu, {}),
        (F.gelu, {}),
        (F.gelu, {"approximate": "tanh"}),
        (F.gelu, {"approximate": "none"}),
        (F.relu, {}),
    ],
)
def test_gates(
    drawn: Callable[..., Tensor], dtype: torch.dtype, op: Callable[..., Tensor], options: dict[str, Any]
) -> None:
    activation = partial(op, **options)
    assert gpu_kernels.has_gate(dtype, 264, activation)
    assert gpu_kernels.has_gate(dtype, 28672, activation), "wider than what is normed"
    ours = gpu_kernels.gated(dtype, "some", activation)
    both = 4 * drawn(3, 1, 528, dtype=dtype)
    gate, up = both.chunk(2, -1)
    _near(ours(gate, up), activation(gate) * up)
    _near(ours(gate.contiguous(), up), activation(gate) * up)
    assert ours(gate[:0], up[:0]).shape == (0, 1, 264)


def test_what_there_is_no_kernel_for_is_left_alone() -> None:
    assert not gpu_kernels.has_norm(torch.bfloat16, 100)
    assert not gpu_kernels.has_norm(torch.bfloat16, 16392)
    assert not gpu_kernels.has_gate(torch.float32, 64, partial(F.silu))
    assert not gpu_kernels.has_gate(torch.bfloat16, 64, partial(F.relu6))


@pytest.mark.parametrize(
    ("call", "arguments", "sentence"),
    [
        ("norm", [None, None, 1, 0, None, None, None, None, 0, None], "no norm"),
        ("norm", [gpu_kernels._Norm(3, 64), None, 1, 0, None, None, None, None, 0, None], "no such dtype"),
        ("norm", [gpu_kernels._Norm(2, 60), None, 1, 0, None, None, None, None, 0, None], "multiple of 16"),
        ("norm", [gpu_kernels._Norm(2, 16392), None, 1, 0, None, None, None, None, 0, None], "too wide"),
        ("norm", [gpu_kernels._Norm(2, 64), 8, 1, 0, None, None, None, 16, 1, None], "not aligned"),
        ("norm", [gpu_kernels._Norm(2, 64), 16, 1, 0, 16, None, None, 16, 1, None], "needs a sum"),
        ("norm", [gpu_kernels._Norm(2, 64), None, 1, 0, None, None, None, 16, 1, None], "missing"),
        ("rotary", [gpu_kernels._Rotary(2, 4, 64, 63), 16, 0, 0, 16, 16, 0, 16, 1, None], "even number"),
        ("rotary", [gpu_kernels._Rotary(2, 4, 64, 64), 16, 0, 0, 16, None, 0, 16, 1, None], "missing"),
        ("gate", [0, 0, 16, 0, 16, 0, 16, 1, 64, None], "16-bit"),
        ("gate", [2, 4, 16, 0, 16, 0, 16, 1, 64, None], "no such activation"),
        ("gate", [2, 0, 16, 8, 16, 0, 16, 1, 64, None], "not aligned"),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_makes_no_sense_is_refused(call: str, arguments: list[Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cuda_library.call(call, *arguments)


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2"])
def test_a_slice_with_them_computes_the_same(place: torch.device, family: str) -> None:
    changes = {} if family == "Llama" else {"head_dim": 32}
    conversion = converted(family, torch.bfloat16, **changes)
    kind = conversion.classes[1]
    fused = fuse(kind.program, Fusing(merge=False, on_gpu=True))
    assert fused.found == fuse(kind.program, Fusing(merge=False)).found
    model = seeded(tiny(family, **changes)).bfloat16().to(place)
    middle = conversion.bind(model, "torch", place)[1]
    query, keyvalue, rest = fused.bind(place, *middle.weights)
    generator = torch.Generator().manual_seed(3)
    specs = [*(value.spec for value in kind.program.context), kind.program.attended.spec]
    *context, attended = (
        torch.randn([5 if dim == BATCH else dim for dim in spec.dims], generator=generator)
        .to(spec.dtype)
        .to(place)
        for spec in specs
    )
    for one in (0, 1):
        q, state = (middle.query, query)[one](tuple(context), attended)
        k, v, state = (middle.keyvalue, keyvalue)[one](state)
        found = q, k, v, *(middle.rest, rest)[one](state)
        if not one:
            wanted = found
    for ours, torchs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=0.05, atol=0.05)
