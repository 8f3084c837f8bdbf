"""The attention worker against the plain reference, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lamina._native import Slab
from lamina.attention import attention_isas, reference
from lamina.attention.worker import TensorWorker

LENGTHS = (1, 2, 17, 64, 65, 600, 1100)
# What float32 arithmetic on float32 weights can promise, and the rounding of an output of each type.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.mark.parametrize("isa", attention_isas())
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(8, 1, 128), (14, 2, 80), (3, 3, 64), (4, 2, 256)]
)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (33, 20.0)])
def test_an_iteration_is_what_the_reference_says(
    isa: str, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, window: int, softcap: float
) -> None:
    torch.manual_seed(head_dim)
    batch, scale = len(LENGTHS), head_dim**-0.5
    slab = Slab(sum(LENGTHS) + 10)
    arena = torch.randn(slab.capacity, 2, kv_heads, head_dim).to(dtype)
    worker = TensorWorker(dtype, heads, kv_heads, head_dim, threads=2, isa=isa)
    layer = worker.add_layer(arena[:, 0], arena[:, 1], scale=scale, window=window, softcap=softcap)
    q = torch.randn(batch, heads, head_dim).to(dtype)
    k, v = torch.randn(2, batch, kv_heads, head_dim).to(dtype)
    for request, length in enumerate(LENGTHS):
        slab.allocate(request, length)
    worker.plan(slab, np.arange(batch))

    out = worker.run(layer, q, k, v)
    whole, lse = worker.partial(layer, q)

    for request in range(batch):
        slots = torch.from_numpy(slab.indices(request).astype(np.int64))
        assert torch.equal(arena[slots[-1]], torch.stack([k[request], v[request]]))
        keys, values = arena[slots].double().unbind(1)
        wanted, wanted_lse = reference.partial(
            q[request].double(), keys, values, scale=scale, window=window, softcap=softcap
        )
        torch.testing.assert_close(out[request].double(), wanted, rtol=0, atol=TOLERANCE[dtype])
        torch.testing.assert_close(whole[request].double(), wanted, rtol=0, atol=5e-6)
        torch.testing.assert_close(lse[request].double(), wanted_lse, rtol=0, atol=5e-6)
