"""Fit one cost formula to measured times: the mean absolute log error is what is made small.

That loss weighs a 5 us kernel like a 5 ms one and shrugs off the odd throttled measurement.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from laminabench.catalog.cost_terms import (
    ACTIVATION_BYTES,
    AllReduceCost,
    AttentionCost,
    ElementwiseCost,
    Float64,
    GemmCost,
    Origin,
)
from laminabench.catalog.hardware import Device
from laminabench.catalog.minimise import Vector, minimise
from laminabench.catalog.models import DTYPE_BYTES, ModelShape
from laminabench.catalog.profiles import Samples

UNKNOWN = Origin("fitted", "")


def mape(predicted: Float64, measured: Float64) -> float:
    """Mean absolute error in percent."""
    return float(100 * np.mean(np.abs(predicted / measured - 1)))


def fit_gemm(device: Device, dtype: str, samples: Samples) -> GemmCost:
    """Five coefficients, or six with quantised activations. Efficiencies stay below 1."""
    quantised = DTYPE_BYTES[dtype] < ACTIVATION_BYTES

    def cost(x: Vector) -> GemmCost:
        return GemmCost(
            overhead_s=_exp(x[0]) * 1e-6,
            per_k_s=_exp(x[1]) * 1e-9,
            flops_efficiency=_share(x[2]),
            bandwidth_efficiency=_share(x[3]),
            sharpness=1 + _exp(x[4]),
            origin=UNKNOWN,
            per_input_s=_exp(x[5]) * 1e-12 if quantised else 0.0,
        )

    def predict(x: Vector) -> Float64:
        return gemm_times(cost(x), device, dtype, samples)

    start = np.array([np.log(4), np.log(0.3), _logit(0.8), _logit(0.9), np.log(1.5), np.log(5)])
    return cost(_fit(predict, samples, start if quantised else start[:5]))


def gemm_times(cost: GemmCost, device: Device, dtype: str, samples: Samples) -> Float64:
    return cost.seconds(device, samples["m"], samples["n"], samples["k"], dtype)


def fit_attention(device: Device, samples: Samples) -> AttentionCost:
    """Overhead, time per query head, bandwidth efficiency, and the fill of a small batch."""

    def cost(x: Vector) -> AttentionCost:
        us, ns, bandwidth, fill = x
        return AttentionCost(_exp(us) * 1e-6, _exp(ns) * 1e-9, _share(bandwidth), _exp(fill), UNKNOWN)

    def predict(x: Vector) -> Float64:
        return attention_times(cost(x), device, samples)

    start = np.array([np.log(11), np.log(1.5), _logit(0.85), np.log(3)])
    return cost(_fit(predict, samples, start))


def attention_times(cost: AttentionCost, device: Device, samples: Samples) -> Float64:
    """One layer: KV of 2 bytes an element, context tokens for every request."""
    batch, kv_heads = samples["batch"], samples["kv_heads"]
    kv_bytes = 4 * batch * samples["context"] * kv_heads * samples["head_dim"]
    memory = kv_bytes / (cost.bandwidth_efficiency * device.bandwidth_bytes_per_s)
    heads = cost.per_query_head_s * batch * samples["heads"]
    return cost.overhead_s + heads + memory * (1 + cost.fill / (batch * kv_heads))


def fit_allreduce(device: Device, degree: int, samples: Samples) -> AllReduceCost:
    def cost(x: Vector) -> AllReduceCost:
        return AllReduceCost(_exp(x[0]) * 1e-6, _share(x[1]), UNKNOWN)

    def predict(x: Vector) -> Float64:
        return cost(x).seconds(device, degree, samples["bytes"])

    return cost(_fit(predict, samples, np.array([np.log(10), _logit(0.5)])))


def fit_elementwise(device: Device, model: ModelShape, samples: Samples) -> ElementwiseCost:
    def cost(x: Vector) -> ElementwiseCost:
        return ElementwiseCost(_exp(x[0]) * 1e-6, _share(x[1]), UNKNOWN)

    def predict(x: Vector) -> Float64:
        return elementwise_times(cost(x), device, model, samples)

    return cost(_fit(predict, samples, np.array([np.log(2.5), _logit(0.65)])))


def elementwise_times(cost: ElementwiseCost, device: Device, model: ModelShape, samples: Samples) -> Float64:
    shapes = {tp: model.elementwise(tp) for tp in np.unique(samples["tp"]).astype(int).tolist()}
    elements = np.array([shapes[int(tp)][1] for tp in samples["tp"]], np.float64)
    kernels = shapes[next(iter(shapes))][0]
    return cost.seconds(device, kernels, 2 * elements * samples["m"])


def _fit(predict: Callable[[Vector], Float64], samples: Samples, start: Vector) -> Vector:
    measured = np.log(samples.seconds)

    def loss(x: Vector) -> float:
        return float(np.mean(np.abs(np.log(predict(x)) - measured)))

    return minimise(loss, start)


def _exp(value: float) -> float:
    # Clipped: a coefficient that wants to be 0 would otherwise run off to minus infinity.
    return float(np.exp(np.clip(value, -12, 12)))


def _share(value: float) -> float:
    """A number between 0 and 1 from any real one."""
    return float(1 / (1 + np.exp(-np.clip(value, -12, 12))))


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))
