"""KV rounded to a byte a number: what is stored, and attention to exactly that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from pairwise import pairwise
from plain_attention import plain_partial
from torch import Tensor

from lamina.attention import AttentionWorker, attention_isas
from lamina.attention.cpu import TensorWorker
from lamina.attention.heads import AttentionLayer
from lamina.kv import Arena, ArenaShape
from lamina.kv.stored import KvDtype, as_stored, rounded

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = (1, 2, 33, 64, 130, 1100)
SLOTS = sum(LENGTHS) + 8
ROUND: tuple[KvDtype, ...] = ("fp8", "int8")
# Of int8 each score and weight is multiplied by a scale, once more in float32 than without.
EXACT = 1e-5


class Bench:
    """A worker over one layer of an arena, filled, and a batch with new tokens."""

    def __init__(
        self, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, kv_dtype: KvDtype, latent: int = 0
    ) -> None:
        torch.manual_seed(dim + heads)
        self.shape = ArenaShape(1, kv_heads, dim, dtype, latent, kv_dtype=kv_dtype)
        self.arena = Arena(self.shape, SLOTS)
        self.heads, self.latent = heads, latent
        # Of uneven sizes, so that scales differ from each other.
        size = (self.shape.vectors, SLOTS, kv_heads, dim)
        self.kv = (torch.randn(size) * torch.exp(torch.randn(*size[:-1], 1) / 2)).to(dtype)
        self.arena.store(0, torch.arange(SLOTS), tuple(self.kv))
        self.q = torch.randn(len(LENGTHS), heads, dim).to(dtype)
        self.new = torch.randn(self.shape.vectors, len(LENGTHS), kv_heads, dim).to(dtype)
        slots = np.random.default_rng(1).permutation(SLOTS)[: sum(LENGTHS)].astype(np.int32)
        slots[-1000:].sort()  # tiles read rows that are evenly apart where they lie
        self.slots = np.split(slots, np.cumsum(LENGTHS)[:-1])

    def worker(self, isa: str = "", threads: int = 2, prefetch: str = "", **layer: object) -> TensorWorker:
        shape = self.shape
        worker = TensorWorker(
            shape.dtype,
            self.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.latent,
            threads=threads,
            isa=isa,
            prefetch=prefetch,
            kv_dtype=shape.kv_dtype,
        )
        keys, values = self.arena.keys(0), self.arena.values(0)
        scales = self.arena.scales(0)
        worker.add_layer(AttentionLayer(keys, values, shape.head_dim**-0.5, scales=scales, **layer))  # type: ignore[arg-type]
        self.plan(worker, range(len(LENGTHS)))
        return worker

    def plan(self, worker: TensorWorker, requests: Iterable[int]) -> None:
        lists = [self.slots[request] for request in requests]
        worker.plan_lists(np.cumsum([0, *map(len, lists)]), np.concatenate(lists))

    def observed(self, request: int) -> tuple[Tensor, Tensor]:
        """A request's K and V as they are stored, in double precision."""
        shape = self.shape
        slots = torch.from_numpy(self.slots[request].astype(np.int64))
        keys = self.arena.keys(0)[slots], self.arena.values(0)[slots]
        if shape.kv_dtype == "fp8":
            both = tuple(one.contiguous().view(torch.float8_e4m3fn).double() for one in keys)
        else:
            scales = (one[slots].double()[..., None] for one in self.arena.scales(0))
            both = tuple(one.double() * scale for one, scale in zip(keys, scales, strict=True))
        return both[0], both[1]


def tolerance(dtype: torch.dtype, isa: str, group: int) -> float:
    """As of KV that is not rounded."""
    rounded_weights = dtype == torch.bfloat16 and isa == "avx512_bf16" and group >= 8
    return 1e-2 if rounded_weights else 2 * EXACT


@pairwise(
    isa=attention_isas(),
    dtype=DTYPES,
    heads__kv_heads__dim__latent=[
        (2, 2, 128, 0), (8, 2, 128, 0), (8, 1, 64, 0), (14, 2, 80, 0), (3, 1, 24, 0), (16, 1, 96, 64),
    ],
    kv_dtype=ROUND,
    window__chunk__softcap__sunk=[(0, 0, 0.0, False), (33, 0, 20.0, False), (0, 64, 0.0, True)],
)  # fmt: skip
def test_attention_reads_stored_values(
    isa: str,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    dim: int,
    latent: int,
    kv_dtype: KvDtype,
    window: int,
    chunk: int,
    softcap: float,
    sunk: bool,
) -> None:
    bench = Bench(dtype, heads, kv_heads, dim, kv_dtype, latent)
    sinks = 3 * torch.randn(heads) if sunk else None
    worker = bench.worker(isa, window=window, chunk=chunk, softcap=softcap, sinks=sinks)

    out = worker.run(0, bench.q, *bench.new)
    whole, lse = worker.partial(0, bench.q)

    for request in range(len(LENGTHS)):
        newest = as_stored(bench.new[:, request], kv_dtype)
        keys, values = bench.observed(request)
        assert torch.equal(keys[-1].to(dtype), newest[0])
        assert torch.equal(values[-1].to(dtype), newest[-1][:, : worker.value_dim])
        expected, wanted_lse = plain_partial(
            bench.q[request].double(),
            keys,
            values,
            scale=dim**-0.5,
            window=window,
            softcap=softcap,
            chunk=chunk,
        )
        error = tolerance(dtype, isa, heads // kv_heads) * max(float(values.abs().max()) / 4, 1.0)
        torch.testing.assert_close(whole[request].double(), expected, rtol=0, atol=error)
        torch.testing.assert_close(lse[request].double(), wanted_lse, rtol=2e-6, atol=EXACT)
        received = torch.ones(heads) if sinks is None else torch.sigmoid(wanted_lse - sinks)
        expected = expected * received[:, None]
        rounding = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(out[request].double(), expected, rtol=rounding, atol=error)


@pairwise(
    isa=attention_isas(),
    dtype=DTYPES,
    heads__kv_heads__dim=[(2, 2, 64), (8, 2, 128), (12, 1, 64), (6, 2, 40)],
)
def test_fp8_is_the_same_numbers_in_the_models_dtype_bit_for_bit(
    isa: str, dtype: torch.dtype, heads: int, kv_heads: int, dim: int
) -> None:
    """float32, bfloat16 and float16 have all numbers of float8_e4m3fn."""
    bench = Bench(dtype, heads, kv_heads, dim, "fp8")
    worker = bench.worker(isa)
    wide = Bench(dtype, heads, kv_heads, dim, "auto")
    wide.arena.store(0, torch.arange(SLOTS), tuple(as_stored(bench.kv, "fp8")))
    other = wide.worker(isa)
    for ours, theirs in zip(worker.partial(0, bench.q), other.partial(0, bench.q), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(
        worker.run(0, bench.q, *bench.new), other.run(0, bench.q, *as_stored(bench.new, "fp8"))
    )


@pytest.mark.parametrize("kv_dtype", ROUND)
def test_threads_prefetch_the_batch_and_when_a_token_was_newest_change_no_bit(kv_dtype: KvDtype) -> None:
    bench = Bench(torch.bfloat16, 8, 2, 64, kv_dtype)
    out = bench.worker().run(0, bench.q, *bench.new)
    whole = bench.worker().partial(0, bench.q)
    for threads, prefetch in ((1, "none"), (2, "l1"), (2, "l2"), (1, "both")):
        worker = bench.worker(threads=threads, prefetch=prefetch)
        assert torch.equal(worker.run(0, bench.q, *bench.new), out)
        assert all(map(torch.equal, worker.partial(0, bench.q), whole))
    alone = bench.worker()
    for request in range(len(LENGTHS)):
        bench.plan(alone, [request])
        own = slice(request, request + 1)
        assert torch.equal(alone.partial(0, bench.q[own])[0], whole[0][own])
        # With one token, it is seen as it will be when it is not the newest one any more.
        if LENGTHS[request] == 1:
            assert torch.equal(out[own], whole[0][own].to(torch.bfloat16))


def strange(dtype: torch.dtype) -> Tensor:
    """Rows with everything that rounding can meet."""
    torch.manual_seed(0)
    rows = [torch.randn(512) * 2.0**power for power in range(-20, 14)]
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num()
    halves = (codes + codes.roll(1)) / 2  # ties
    rows += [torch.cat([halves, halves.nextafter(torch.tensor(1e9))]), torch.zeros(512), -torch.zeros(512)]
    rows += [torch.full((512,), 1e-39), torch.randn(512) * 1e-37]
    rows += [torch.linspace(-127, 127, 512), torch.linspace(-0.5, 0.5, 512).round(decimals=1)]
    for odd in (torch.inf, -torch.inf, torch.nan):
        rows.append(torch.randn(512).index_fill_(0, torch.tensor([7]), odd))
    return torch.stack(rows).to(dtype)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", ROUND)
def test_stored_values_equal_torchs_rounding(dtype: torch.dtype, kv_dtype: KvDtype) -> None:
    rows = strange(dtype)
    shape = ArenaShape(1, 1, 512, dtype, kv_dtype=kv_dtype)
    arenas = [Arena(shape, len(rows)) for _ in range(2)]
    worker = TensorWorker(dtype, 1, 1, 512, kv_dtype=kv_dtype)
    worker.add_layer(AttentionLayer(arenas[0].keys(0), arenas[0].values(0), 1.0, scales=arenas[0].scales(0)))
    worker.append(0, np.arange(len(rows), dtype=np.int32), rows, -rows)
    arenas[1].store(0, torch.arange(len(rows)), (rows, -rows))
    for ours, theirs in zip(*(reported_by(arena) for arena in arenas), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def reported_by(arena: Arena) -> list[Tensor]:
    numbers = [arena.keys(0), arena.values(0)]
    if arena.shape.kv_dtype == "fp8":
        numbers = [one.contiguous().view(torch.float8_e4m3fn).float() for one in numbers]
    return [*numbers, *arena.scales(0)]


@pytest.mark.parametrize(
    ("kv_dtype", "bound"),
    [
        # Half of the last of 4 bits, and below 2^-6 half of 2^-9.
        ("fp8", lambda rows: (rows.abs() / 16).clamp(min=2.0**-10)),
        # Half of a 127th of the largest one.
        ("int8", lambda rows: rows.abs().amax(-1, keepdim=True).expand_as(rows) / 254 * (1 + 2.0**-20)),
    ],
    ids=ROUND,
)
def test_rounding_is_within_the_bound_that_is_documented(
    kv_dtype: KvDtype, bound: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(1)
    rows = torch.cat([torch.randn(2000, 128) * 2.0**power for power in range(-8, 7)])
    off = (as_stored(rows, kv_dtype) - rows).abs()
    assert bool((off <= bound(rows)).all())
    # What is there is rounded to itself.
    saved = rounded(as_stored(rows, kv_dtype), kv_dtype).bytes
    assert torch.equal(saved, rounded(rows, kv_dtype).bytes)


def test_fp8_saturates() -> None:
    most = as_stored(torch.tensor([[447.0, 449.0, 1e9, -torch.inf, torch.inf]]), "fp8")
    assert most.tolist() == [[448.0, 448.0, 448.0, -448.0, 448.0]]
    assert bool(as_stored(torch.tensor([torch.nan]), "fp8").isnan().all())


def test_workers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="kv_dtype is 'fp4' but must be auto, fp8 or int8"):
        AttentionWorker("float32", 1, 1, 8, kv_dtype="fp4")
    worker = AttentionWorker("float32", 1, 1, 8, kv_dtype="int8")
    memory = np.zeros(1000, np.int8)
    at = memory.ctypes.data
    with pytest.raises(ValueError, match="have scales where kv_dtype is int8, and only there"):
        worker.add_layer(at, at + 8, 4, 16, 8, 1.0, 0, 0.0)
    with pytest.raises(ValueError, match="have scales where kv_dtype is int8, and only there"):
        AttentionWorker("float32", 1, 1, 8, kv_dtype="fp8").add_layer(
            at, at + 8, 4, 24, 8, 1.0, 0, 0.0, k_scales_ptr=at + 16, v_scales_ptr=at + 20
        )
