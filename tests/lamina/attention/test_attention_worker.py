"""The attention worker against the plain reference, in double precision."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from pairwise import pairwise
from plain_attention import plain_combine, plain_partial

from lamina._native import Slab
from lamina.attention import attention_isas
from lamina.attention.cpu import TensorWorker
from lamina.attention.heads import AttentionLayer

LENGTHS = (1, 2, 17, 64, 65, 600, 1100)
EXACT = 5e-6  # what float32 arithmetic can promise
ROUNDED = {torch.float32: EXACT, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # an output of each type


def of_partials(dtype: torch.dtype, isa: str, group: int) -> float:
    """The error of outputs where many query heads share a key: bfloat16's weights are rounded there, as flash
    attention does, or to twice as many bits by tiles.
    """
    if dtype != torch.bfloat16:
        return EXACT
    return {"avx512_bf16": 1e-2 if group >= 8 else EXACT, "amx_bf16": 1e-5}.get(isa, EXACT)


@pairwise(
    isa=attention_isas(),
    dtype=list(ROUNDED),
    heads__kv_heads__head_dim=[(8, 1, 128), (14, 2, 80), (3, 3, 64), (4, 2, 256)],
    window__chunk__softcap__sunk=[
        (0, 0, 0.0, False), (33, 0, 20.0, False), (0, 0, 0.0, True), (0, 64, 0.0, False),
    ],
)  # fmt: skip
def test_an_iteration_equals_the_reference(
    isa: str,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    chunk: int,
    softcap: float,
    sunk: bool,
) -> None:
    torch.manual_seed(head_dim)
    batch, scale = len(LENGTHS), head_dim**-0.5
    slab = Slab(sum(LENGTHS) + 10)
    arena = torch.randn(slab.capacity, 2, kv_heads, head_dim).to(dtype)
    worker = TensorWorker(dtype, heads, kv_heads, head_dim, threads=2, isa=isa)
    sinks = 3 * torch.randn(heads) if sunk else None  # some outweigh all tokens
    layer = worker.add_layer(AttentionLayer(arena[:, 0], arena[:, 1], scale, window, softcap, sinks, chunk))
    q = torch.randn(batch, heads, head_dim).to(dtype)
    k, v = torch.randn(2, batch, kv_heads, head_dim).to(dtype)
    for request, length in enumerate(LENGTHS):
        slab.allocate(request, length)
    worker.plan(slab, np.arange(batch))

    error = of_partials(dtype, isa, heads // kv_heads)
    out = worker.run(layer, q, k, v)
    whole, lse = worker.partial(layer, q)

    for request in range(batch):
        slots = torch.from_numpy(slab.indices(request).astype(np.int64))
        assert torch.equal(arena[slots[-1]], torch.stack([k[request], v[request]]))
        keys, values = arena[slots].double().unbind(1)
        expected, wanted_lse = plain_partial(
            q[request].double(), keys, values, scale=scale, window=window, softcap=softcap, chunk=chunk
        )
        received = torch.ones(heads) if sinks is None else torch.sigmoid(wanted_lse - sinks)
        torch.testing.assert_close(
            out[request].double(), expected * received[:, None], rtol=0, atol=ROUNDED[dtype]
        )
        torch.testing.assert_close(whole[request].double(), expected, rtol=0, atol=error)
        torch.testing.assert_close(lse[request].double(), wanted_lse, rtol=0, atol=EXACT)


@pairwise(
    isa=attention_isas(),
    heads__kv_heads__head_dim__latent=[
        (24, 2, 64, 0), (8, 2, 96, 0), (14, 2, 64, 0), (9, 3, 32, 0), (45, 1, 96, 64),
    ],
    separate=["evenly", "unevenly"],
)  # fmt: skip
def test_many_query_heads_of_bfloat16(
    isa: str, heads: int, kv_heads: int, head_dim: int, latent: int, separate: str
) -> None:
    """What tiles compute where a processor has them: 4 and 8 heads, steps that are not whole, any slots."""
    torch.manual_seed(heads)
    lengths, scale = (1, 3, 16, 30, 33, 64, 111), head_dim**-0.5
    offsets = np.cumsum((0, *lengths))
    slots = np.random.default_rng(1).permutation(900)[: offsets[-1]]
    if separate == "evenly":
        slots = np.concatenate([np.arange(length) * (1 + i) + i for i, length in enumerate(lengths)])
    arena = torch.randn(900, 1 if latent else 2, kv_heads, head_dim).to(torch.bfloat16)
    arena[~torch.isin(torch.arange(900), torch.from_numpy(slots))] = float("nan")  # never read
    worker = TensorWorker(torch.bfloat16, heads, kv_heads, head_dim, latent, isa=isa)
    layer = worker.add_layer(AttentionLayer(arena[:, 0], arena[:, -1, :, : worker.value_dim], scale))
    worker.plan_lists(offsets, slots.astype(np.int32))
    q = torch.randn(len(lengths), heads, head_dim).to(torch.bfloat16)

    out, lse = worker.partial(layer, q)

    error = of_partials(torch.bfloat16, isa, heads // kv_heads)
    for i, (first, end) in enumerate(itertools.pairwise(offsets)):
        rows = arena[torch.from_numpy(slots[first:end])].double()
        expected, wanted_lse = plain_partial(q[i].double(), rows[:, 0], rows[:, -1], scale=scale)
        expected = expected[:, : worker.value_dim]
        torch.testing.assert_close(out[i].double(), expected, rtol=0, atol=error)
        torch.testing.assert_close(lse[i].double(), wanted_lse, rtol=0, atol=EXACT)


def test_the_reference_combines_splits_too() -> None:
    torch.manual_seed(0)
    q, (k, v) = torch.randn(4, 8).double(), torch.randn(2, 10, 2, 8).double()
    whole = plain_partial(q, k, v, scale=0.3)
    for at in (0, 3, 10):
        parts = (plain_partial(q, k[i], v[i], scale=0.3) for i in (slice(None, at), slice(at, None)))
        torch.testing.assert_close(plain_combine(*parts), whole)


def test_tensors_are_checked() -> None:
    worker = TensorWorker(torch.float32, 4, 2, 16)
    arena = torch.zeros(8, 2, 2, 16)
    layer = worker.add_layer(AttentionLayer(arena[:, 0], arena[:, 1], 1.0))
    worker.plan_lists(np.array([0, 2]), np.array([1, 2], np.int32))
    q, kv = torch.zeros(1, 4, 16), torch.ones(1, 2, 16)
    for wrong in (q.double(), q[0], torch.zeros(1, 16, 4).transpose(1, 2)):
        with pytest.raises(AssertionError):
            worker.begin(layer, wrong)
    with pytest.raises(ValueError, match=r"dtype is torch\.float64"):
        TensorWorker(torch.float64, 4, 2, 16)
    worker.append(layer, np.array([1], np.int32), kv, kv)
    worker.begin(layer, q)
    assert torch.equal(worker.finish(layer, kv, kv), torch.ones(1, 4, 16))
