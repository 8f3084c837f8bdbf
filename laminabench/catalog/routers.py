"""Routers that compute in FP32 whatever the weights are in: times by rows, as measured on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from laminabench.catalog.cost_terms import US, Float64, Origin

# vLLM's MiniMax-M2 computes its router so; TF32 where a server sets VLLM_FLOAT32_MATMUL_PRECISION=high.
TF32 = "tf32"
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# Of torch, for a matrix of 6,144 by 256 on GB200; of TF32 between 1 and 128 rows only the ends were printed.
_US: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "fp32": (_ROWS, (7.5, 20, 20, 17, 22, 63, 63, 69, 78, 97, 111)),
    TF32: ((1, 128, 256, 512, 1024), (11, 20, 23, 26, 33)),
}
_ELEMENTS = 6144 * 256
_RATE = {"fp32": 49e12, TF32: 2 * 1024 * _ELEMENTS / 33e-6}  # FLOP/s of more rows
ROUTER_ORIGIN = Origin(
    "published",
    "github.com/vllm-project/vllm/issues/47973: torch's products of a router of 6,144 by 256 on GB200, taken "
    "in proportion to a router's size and for every device; of more than 1,024 rows by a rate",
)


def router_seconds(dtype: str, rows: Float64, n: int, k: int) -> Float64:
    """Return the time of a router's product in one layer."""
    points, times = _US[dtype]
    share = n * k / _ELEMENTS
    within = np.interp(np.log2(np.maximum(rows, 1)), np.log2(points), np.asarray(times)) * US
    beyond = np.where(rows > points[-1], 2 * rows * _ELEMENTS / _RATE[dtype], 0.0)
    result: Float64 = share * np.maximum(within, beyond)
    return result
