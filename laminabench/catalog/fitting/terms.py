"""Fit one cost formula to measured times: the mean absolute log error is what is made small.

That loss weighs a 5 us kernel like a 5 ms one and shrugs off the odd throttled measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from laminabench.catalog.cost_terms import (
    ACTIVATION_BYTES,
    AllReduceCost,
    AttentionCost,
    ElementwiseCost,
    Float64,
    GemmCost,
    Origin,
    PromptAttentionCost,
)
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import DTYPE_BYTES, ModelShape

Vector = NDArray[np.float64]
Loss = Callable[[Vector], float]
Cost = TypeVar("Cost")

UNKNOWN = Origin("fitted", "")


def mape(predicted: Float64, measured: Float64) -> float:
    return float(100 * np.mean(np.abs(predicted / measured - 1)))


def fit_gemm(device: Device, dtype: str, samples: Samples) -> GemmCost:
    """Five coefficients, or six with quantised activations. Efficiencies stay below 1."""
    quantised = DTYPE_BYTES[dtype] < ACTIVATION_BYTES

    def cost(x: Vector) -> GemmCost:
        return GemmCost(
            overhead_s=positive(x[0]) * 1e-6,
            per_k_s=positive(x[1]) * 1e-9,
            flops_efficiency=share(x[2]),
            bandwidth_efficiency=share(x[3]),
            sharpness=1 + positive(x[4]),
            origin=UNKNOWN,
            per_input_s=positive(x[5]) * 1e-12 if quantised else 0.0,
        )

    start = np.array([np.log(4), np.log(0.3), logit(0.8), logit(0.9), np.log(1.5), np.log(5)])
    return fitted_to(
        cost,
        lambda fitted: gemm_times(fitted, device, dtype, samples),
        samples,
        start if quantised else start[:5],
    )


def gemm_times(cost: GemmCost, device: Device, dtype: str, samples: Samples) -> Float64:
    return cost.seconds(device, samples["m"], samples["n"], samples["k"], dtype)


def fit_attention(device: Device, samples: Samples) -> AttentionCost:
    """Overhead, time per query head, bandwidth efficiency, and the fill of a small batch."""

    def cost(x: Vector) -> AttentionCost:
        us, ns, bandwidth, fill = x
        return AttentionCost(
            positive(us) * 1e-6, positive(ns) * 1e-9, share(bandwidth), positive(fill), UNKNOWN
        )

    start = np.array([np.log(11), np.log(1.5), logit(0.85), np.log(3)])
    return fitted_to(cost, lambda fitted: attention_times(fitted, device, samples), samples, start)


def attention_times(cost: AttentionCost, device: Device, samples: Samples) -> Float64:
    """One layer: context tokens for every request, each of so many bytes of K and V for a KV head."""
    batch, kv_heads = samples["batch"], samples["kv_heads"]
    kv_bytes = batch * samples["context"] * kv_heads * samples["token_bytes"]
    memory = kv_bytes / (cost.bandwidth_efficiency * device.bandwidth_bytes_per_s)
    heads = cost.per_query_head_s * batch * samples["heads"]
    return cost.overhead_s + heads + memory * (1 + cost.fill / (batch * kv_heads))


def fit_prompt_attention(device: Device, samples: Samples) -> PromptAttentionCost:
    """Overhead, time per row and query head, and the share of the peak rate."""

    def cost(x: Vector) -> PromptAttentionCost:
        return PromptAttentionCost(positive(x[0]) * 1e-6, positive(x[1]) * 1e-9, share(x[2]), UNKNOWN)

    start = np.array([np.log(11), np.log(0.5), logit(0.6)])
    return fitted_to(cost, lambda fitted: prompt_attention_times(fitted, device, samples), samples, start)


def prompt_attention_times(cost: PromptAttentionCost, device: Device, samples: Samples) -> Float64:
    """One layer, heads of 128; a row is a token, a pair one that looks at another or itself."""
    heads = samples["heads"]
    rate = cost.flops_efficiency * device.flops_for("bf16")
    flops = 4 * 128 * heads * samples["pairs"]
    return cost.overhead_s + cost.per_query_head_s * heads * samples["rows"] + flops / rate


def fit_allreduce(device: Device, degree: int, samples: Samples) -> AllReduceCost:
    start = np.array([np.log(10), logit(0.5)])
    return fitted_to(
        _time_and_share(AllReduceCost),
        lambda fitted: fitted.seconds(device, degree, samples["bytes"]),
        samples,
        start,
    )


def fit_elementwise(device: Device, model: ModelShape, samples: Samples) -> ElementwiseCost:
    start = np.array([np.log(2.5), logit(0.65)])
    kernels, moved = _elementwise_work(model, samples)
    return fitted_to(
        _time_and_share(ElementwiseCost),
        lambda fitted: fitted.seconds(device, kernels, moved),
        samples,
        start,
    )


def _time_and_share(kind: Callable[[float, float, Origin], Cost]) -> Callable[[Vector], Cost]:
    return lambda x: kind(positive(x[0]) * 1e-6, share(x[1]), UNKNOWN)


def elementwise_times(cost: ElementwiseCost, device: Device, model: ModelShape, samples: Samples) -> Float64:
    return cost.seconds(device, *_elementwise_work(model, samples))


def _elementwise_work(model: ModelShape, samples: Samples) -> tuple[int, Float64]:
    """The kernels of a layer, and the bytes of each sample."""
    shapes = {tp: model.elementwise(tp) for tp in np.unique(samples["tp"]).astype(int).tolist()}
    elements = np.array([shapes[int(tp)][1] for tp in samples["tp"]], np.float64)
    kernels = shapes[next(iter(shapes))][0]
    return kernels, 2 * elements * samples["m"]


def fitted_to(
    cost: Callable[[Vector], Cost], seconds: Callable[[Cost], Float64], samples: Samples, start: Vector
) -> Cost:
    measured = np.log(samples.seconds)

    def loss(x: Vector) -> float:
        return float(np.mean(np.abs(np.log(seconds(cost(x))) - measured)))

    return cost(minimise(loss, start))


def positive(value: float) -> float:
    # Clipped: a coefficient that wants to be 0 would otherwise run off to minus infinity.
    return float(np.exp(_clipped(value)))


def share(value: float) -> float:
    """A number between 0 and 1 from any real one."""
    return float(1 / (1 + np.exp(-_clipped(value))))


def _clipped(value: float) -> float:
    # np.clip takes longer for one number than all else of a small fit.
    return min(max(value, -12.0), 12.0)


def logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


# Nelder-Mead: fits of five coefficients need no scipy.


def minimise(loss: Loss, start: Vector, *, rounds: int = 6, steps: int = 400, size: float = 0.4) -> Vector:
    """The best point found from `start`; each round restarts around it, against simplexes that collapsed."""
    best = np.asarray(start, np.float64)
    for turn in range(rounds):
        best = _nelder_mead(loss, best, steps, size * 0.5**turn)
    return best


def _nelder_mead(loss: Loss, start: Vector, steps: int, size: float) -> Vector:
    points = np.vstack([start, start + size * np.eye(len(start))])
    values = np.array([loss(point) for point in points])
    for _ in range(steps):
        order = np.argsort(values, kind="stable")
        points, values = points[order], values[order]
        if values[-1] - values[0] < 1e-9:
            break
        centre, worst = points[:-1].mean(axis=0), points[-1]
        reflected = centre + (centre - worst)
        value = loss(reflected)
        if value < values[0]:
            stretched = centre + 2 * (centre - worst)
            further = loss(stretched)
            points[-1], values[-1] = (stretched, further) if further < value else (reflected, value)
            continue
        if value < values[-2]:
            points[-1], values[-1] = reflected, value
            continue
        # Contract towards the better of the reflected and the worst point.
        anchor, bound = (reflected, value) if value < values[-1] else (worst, float(values[-1]))
        contracted = centre + 0.5 * (anchor - centre)
        value = loss(contracted)
        if value < bound:
            points[-1], values[-1] = contracted, value
        else:
            points[1:] = points[0] + 0.5 * (points[1:] - points[0])
            values[1:] = [loss(point) for point in points[1:]]
    found: Vector = points[int(np.argmin(values))]
    return found
