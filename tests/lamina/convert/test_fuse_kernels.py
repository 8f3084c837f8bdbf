"""Native operators beside the torch expressions that they stand for, on a CPU and on a GPU.

A CPU's give the same bits. A GPU's, emulated where there is none, add up in another order than torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pairwise import pairwise
from tiny_models import converted, seeded, tiny
from torch import Tensor

from lamina import _native, cuda_library
from lamina.convert.fuse import Fusing, fuse, gpu_kernels, kernels, sum_lanes
from lamina.convert.fuse.kernels import norm
from lamina.convert.program import BATCH
from lamina.model.sampler import likeliest

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
EPS = 1e-5
# Sums in another order may be rounded otherwise, and then once more.
NEAR = {torch.bfloat16: 2**-6, torch.float16: 2**-9, torch.float32: 1e-5}


@dataclass(frozen=True)
class Backend:
    """The kernels of a kind of device, and how exactly they compute."""

    kernels: ModuleType
    place: torch.device
    exact: bool

    def drawn(self, *shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
        return (_extreme if self.exact else _plain)(shape, seed).to(dtype).to(self.place)

    def check(self, ours: Tensor, torchs: Tensor) -> None:
        """NaN where torch has one, else the same number, to the last bit if the backend is exact."""
        assert ours.dtype == torchs.dtype
        if not self.exact:
            torch.testing.assert_close(ours, torchs, rtol=NEAR[ours.dtype], atol=NEAR[ours.dtype] / 8)
            return
        assert torch.equal(ours.isnan(), torchs.isnan())
        bits = [one.nan_to_num(nan=0.0).contiguous().view(torch.uint8) for one in (ours, torchs)]
        assert torch.equal(*bits)


@pytest.fixture(params=["cpu", "gpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "cpu":
        return Backend(kernels, torch.device("cpu"), exact=True)
    return Backend(gpu_kernels, request.getfixturevalue("gpu"), exact=False)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    request.getfixturevalue("emulated")
    return torch.device("cpu")


def _plain(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _extreme(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Numbers of all sizes, with zeros, numbers so small that they are not normal, and infinities."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x = x * 10 ** torch.randint(-3, 3, shape[:-1], generator=generator)[..., None]
    places = torch.randperm(x.numel(), generator=generator)[:12]
    x.view(-1)[places] = torch.tensor(
        [0.0, -0.0, 1e-40, -1e-40, 1e-7, -6e-8, 1e4, -1e4, 3e38, -3e38, 7e4, 1e-38]
    )
    return x


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


@pairwise(
    dtype=DTYPES,
    width__of_gpu=[(16, 16), (65, 520), (1000, 4104), (70001, 8192)],
    weighted__rounds_first__centred=[
        ("same", True, False),
        ("float32", False, False),
        ("same", False, False),
        ("", True, False),
        ("float32", False, True),
    ],
)
def test_norms(
    backend: Backend,
    dtype: torch.dtype,
    width: int,
    of_gpu: int,
    weighted: str,
    rounds_first: bool,
    centred: bool,
) -> None:
    width = width if backend.exact else of_gpu
    of = torch.float32 if weighted == "float32" else dtype
    weight = backend.drawn(width, dtype=of, seed=2) if weighted else None
    assert backend.kernels.has_norm(dtype, width)
    options = {"centred": centred, "rounds_first": rounds_first, "wide_weight": of == torch.float32 != dtype}
    alone, of_sum = backend.kernels.norm(dtype, width, EPS, **options)
    x, added = (backend.drawn(3, 1, width, dtype=dtype, seed=seed) for seed in (0, 1))
    backend.check(alone(x, weight), _normed(x, weight, rounds_first, centred))
    total, normed = of_sum(x, added, weight)
    backend.check(total, x + added)
    backend.check(normed, _normed(x + added, weight, rounds_first, centred))
    # Heads of a row that others are in, too; and rows that begin where nothing is aligned.
    for before in (8, 7):
        wide = backend.drawn(5, 1, 2 * width + 8, dtype=dtype)
        heads = wide.narrow(2, before, 2 * width).view(5, 1, 2, width)
        backend.check(alone(heads, weight), _normed(heads.contiguous(), weight, rounds_first, centred))
    assert alone(x[:0], weight).shape == (0, 1, width)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("isa", _native.attention_isas())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_instruction_sets_agree(dtype: str, isa: str, lanes: int) -> None:
    x, outs = _extreme((4, 777)).to(getattr(torch, dtype)), []
    for which in ("baseline", isa):
        outs.append(torch.empty_like(x))
        one = _native.Norm(dtype, 777, EPS, False, True, False, lanes, which)
        one.run(x.data_ptr(), 4, 0, 0, outs[-1].data_ptr(), 4)
    Backend(kernels, torch.device("cpu"), exact=True).check(*outs)


def _halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def _pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def _small_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _in_turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _small_tables(torch.cat((x[..., ::2], x[..., 1::2]), -1), cos, sin)


@pairwise(
    dtype=DTYPES,
    head_dim__rotated=[(80, 80), (64, 24), (21, 2)],
    form=[_halves, _pairs, _small_tables, _in_turn],
    tables=["same", "wide", "float32"],
)
def test_rotations(
    backend: Backend,
    dtype: torch.dtype,
    head_dim: int,
    rotated: int,
    form: Callable[..., Tensor],
    tables: str,
) -> None:
    small, kind = form in (_small_tables, _in_turn), torch.float32 if tables == "float32" else dtype
    width = rotated // 2 if small else rotated
    cos, sin = (backend.drawn(7, 1, 1, 2 * width, dtype=kind, seed=seed)[..., :width] for seed in (1, 2))
    # q of a product that k and v are in, too.
    x = backend.drawn(7, 1, 6 * head_dim, dtype=dtype)[..., : 4 * head_dim]
    x = x.view(7, 1, 4, head_dim).transpose(1, 2)
    ours = backend.kernels.rotary(
        dtype,
        4,
        head_dim,
        rotated,
        pairs=form is _pairs,
        interleaved=form is _in_turn,
        half_tables=small,
        wide=tables != "same",
        wide_tables=kind == torch.float32 != dtype,
    )(x, cos, sin)
    part = x[..., :rotated] if tables == "same" else x[..., :rotated].float()
    backend.check(ours, torch.cat((form(part, cos, sin).to(dtype), x[..., rotated:]), -1))


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize(
    ("op", "options"), [(F.silu, {}), (F.gelu, {}), (F.gelu, {"approximate": "tanh"}), (F.relu, {})]
)
def test_gates(
    backend: Backend, dtype: torch.dtype, op: Callable[..., Tensor], options: dict[str, Any]
) -> None:
    activation = partial(op, **options)
    assert backend.kernels.has_gate(dtype, 1024, activation)
    ours = backend.kernels.gated(dtype, "some", activation)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).view(64, 1, 1024)
    every = every if backend.exact else backend.drawn(64, 1, 1024, dtype=dtype, seed=1)
    up = backend.drawn(64, 1, 1024, dtype=dtype)
    backend.check(ours(every, up), activation(every) * up)
    both = torch.cat((every, up), -1)
    backend.check(ours(*both.chunk(2, -1)), activation(every) * up)
    # What is left of a vector torch computes otherwise: the numbers are those of whole ones.
    odd, active = (one.view(-1)[: 33 * 128].view(3, 11, 128) for one in (both, activation(both)))
    backend.check(ours(odd[..., :40], odd[..., 56:96]), active[..., :40] * odd[..., 56:96])
    assert ours(every[:0], up[:0]).shape == (0, 1, 1024)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 7, 300, 32000])
def test_the_likeliest_is_argmax(dtype: torch.dtype, vocab: int) -> None:
    few = torch.randint(-3, 0, (9, vocab)).to(dtype)  # ties: the first of them
    assert torch.equal(likeliest(few), few.argmax(-1))
    some = _extreme((9, max(vocab, 12))).to(dtype)
    some[3, -1] = some[4, 0] = math.nan
    some[5] = -math.inf
    assert torch.equal(likeliest(some), some.argmax(-1))
    assert likeliest(some.t()[:5]).shape == (5,)


def test_large_batches_are_shared_out() -> None:
    x = _extreme((300, 1024)).bfloat16()
    lanes = sum_lanes()
    alone, _ = norm(x.dtype, 1024, EPS, centred=False, rounds_first=True, wide_weight=False, lanes=lanes)
    by_one = alone(x)
    torch.set_num_threads(3)
    try:
        assert torch.equal(alone(x), by_one)
    finally:
        torch.set_num_threads(1)


def test_unsupported_cpu_options_are_refused() -> None:
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


def test_patterns_without_gpu_kernels_stay() -> None:
    assert not gpu_kernels.has_norm(torch.bfloat16, 100)
    assert not gpu_kernels.has_norm(torch.bfloat16, 16392)
    assert not gpu_kernels.has_gate(torch.float32, 64, partial(F.silu))
    assert not gpu_kernels.has_gate(torch.bfloat16, 64, partial(F.relu6))
    assert gpu_kernels.has_gate(torch.bfloat16, 28672, partial(F.silu)), "wider than what is normed"


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
@pytest.mark.usefixtures("gpu")
def test_unsupported_gpu_options_are_refused(call: str, arguments: list[Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cuda_library.call(call, *arguments)


@pytest.mark.long(but=["Gemma2"])
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2"])
def test_a_slice_with_a_gpus_kernels_computes_the_same(gpu: torch.device, family: str) -> None:
    changes = {} if family == "Llama" else {"head_dim": 32}
    conversion = converted(family, torch.bfloat16, **changes)
    kind = conversion.classes[1]
    fused = fuse(kind.program, Fusing(merge=False, on_gpu=True))
    assert fused.counts == fuse(kind.program, Fusing(merge=False)).counts
    model = seeded(tiny(family, **changes)).bfloat16().to(gpu)
    middle = conversion.bind(model, "torch", gpu)[1]
    query, keyvalue, rest = fused.bind(gpu, *middle.weights)
    generator = torch.Generator().manual_seed(3)
    specs = [*(value.spec for value in kind.program.context), kind.program.attended.spec]
    *context, attended = (
        torch.randn([5 if dim == BATCH else dim for dim in spec.dims], generator=generator)
        .to(spec.dtype)
        .to(gpu)
        for spec in specs
    )
    made = []
    for pieces in ((middle.query, middle.keyvalue, middle.rest), (query, keyvalue, rest)):
        q, state = pieces[0](tuple(context), attended)
        k, v, state = pieces[1](state)
        made.append((q, k, v, *pieces[2](state)))
    for torchs, ours in zip(*made, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=0.05, atol=0.05)
