"""The attention worker against the plain reference, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plain_attention import plain_combine, plain_partial

from lamina._native import Slab
from lamina.attention import attention_isas
from lamina.attention.worker import TensorWorker

LENGTHS = (1, 2, 17, 64, 65, 600, 1100)
EXACT = 5e-6  # what float32 arithmetic can promise
ROUNDED = {torch.float32: EXACT, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # an output of each type


@pytest.mark.long(but=["*-14-2-80-*", "*-8-1-128-dtype1-*"])
@pytest.mark.parametrize("isa", attention_isas())
@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(8, 1, 128), (14, 2, 80), (3, 3, 64), (4, 2, 256)]
)
@pytest.mark.parametrize(
    ("window", "chunk", "softcap", "sunk"),
    [(0, 0, 0.0, False), (33, 0, 20.0, False), (0, 0, 0.0, True), (0, 64, 0.0, False)],
)
def test_an_iteration_is_what_the_reference_says(
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
    layer = worker.add_layer(
        arena[:, 0], arena[:, 1], scale=scale, window=window, softcap=softcap, sinks=sinks, chunk=chunk
    )
    q = torch.randn(batch, heads, head_dim).to(dtype)
    k, v = torch.randn(2, batch, kv_heads, head_dim).to(dtype)
    for request, length in enumerate(LENGTHS):
        slab.allocate(request, length)
    worker.plan(slab, np.arange(batch))

    # Where many query heads share a key, bfloat16's kernel rounds its weights, as flash attention does.
    rounds = dtype == torch.bfloat16 and isa == "avx512_bf16" and heads // kv_heads >= 8

    out = worker.run(layer, q, k, v)
    whole, lse = worker.partial(layer, q)

    for request in range(batch):
        slots = torch.from_numpy(slab.indices(request).astype(np.int64))
        assert torch.equal(arena[slots[-1]], torch.stack([k[request], v[request]]))
        keys, values = arena[slots].double().unbind(1)
        wanted, wanted_lse = plain_partial(
            q[request].double(), keys, values, scale=scale, window=window, softcap=softcap, chunk=chunk
        )
        heard = torch.ones(heads) if sinks is None else torch.sigmoid(wanted_lse - sinks)
        torch.testing.assert_close(
            out[request].double(), wanted * heard[:, None], rtol=0, atol=ROUNDED[dtype]
        )
        torch.testing.assert_close(whole[request].double(), wanted, rtol=0, atol=1e-2 if rounds else EXACT)
        torch.testing.assert_close(lse[request].double(), wanted_lse, rtol=0, atol=EXACT)


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
    layer = worker.add_layer(arena[:, 0], arena[:, 1], scale=1.0)
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
