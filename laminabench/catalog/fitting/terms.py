"""Fit one cost formula to measured times: the mean absolute log error is what is made small.

That loss weighs a 5 us kernel like a 5 ms one and shrugs off the odd throttled measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from laminabench.catalog.cost_terms import (
    ACTIVATION_BYTES,
    AttentionCost,
    CollectiveCost,
    ElementwiseCost,
    Float64,
    GemmCost,
    Origin,
    PromptAttentionCost,
    coefficients,
)
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import DTYPE_BYTES, ModelShape

Vector = NDArray[np.float64]
Loss = Callable[[Vector], float]
Cost = TypeVar("Cost", bound=msgspec.Struct)
Collective = TypeVar("Collective", bound=CollectiveCost)


def mape(predicted: Float64, measured: Float64) -> float:
    """Return the mean absolute error in percent; a ValueError where there is nothing to compare."""
    if not np.size(measured):
        raise ValueError("no measurement is left to check the fit")
    return float(100 * np.mean(np.abs(predicted / measured - 1)))


NO_ERRORS: Mapping[str, float] = {}


@dataclass(frozen=True)
class Fit(Generic[Cost]):
    """A formula to fit.

    `start` has the first guess of its coefficients, in their units in files; a coefficient is never below
    what `least` has, from which its guess counts, and shares stay below 1.
    """

    kind: type[Cost]
    start: Mapping[str, float]
    times: Callable[[Samples], Callable[[Cost], Float64]]  # of the formula with these coefficients
    least: Mapping[str, float] = field(default_factory=dict)

    def to(self, samples: Samples) -> Cost:
        """Return the coefficients, of no source yet."""
        if not len(samples):
            raise ValueError(f"no measurement for {self.kind.__name__}")
        measured, times = np.log(samples.seconds), self.times(samples)

        def loss(x: Vector) -> float:
            return float(np.mean(np.abs(np.log(times(self._cost(x))) - measured)))

        declared = coefficients(self.kind)
        start = [
            logit(guess) if declared[name].role == "rate" else np.log(guess)
            for name, guess in self.start.items()
        ]
        return self._cost(minimise(loss, np.array(start)))

    def sourced(
        self,
        samples: Samples,
        source: str,
        covered: str = "",
        errors: Mapping[str, float] = NO_ERRORS,
        cost: Cost | None = None,
    ) -> Cost:
        """Return the coefficients, of `cost` if they are fitted already, with where they are from."""
        cost = cost or self.to(samples)
        errors = {"op": self.error(cost, samples), **errors}
        return replace(cost, origin=Origin("fitted", source, covered, errors, len(samples)))

    def error(self, cost: Cost, samples: Samples) -> float:
        """Return the mean absolute error in percent."""
        return mape(self.times(samples)(cost), samples.seconds)

    def held_out(self, samples: Samples, parts: Iterable[np.ndarray]) -> list[float]:
        """Return the error on each part of a fit to the others."""
        return [self.error(self.to(samples.where(~part)), samples.where(part)) for part in parts]

    def _cost(self, x: Vector) -> Cost:
        declared, values = coefficients(self.kind), dict(self.least)
        for name, value in zip(self.start, x, strict=True):
            of = declared[name]
            number = share(value) if of.role == "rate" else positive(value) * of.unit
            values[name] = values.get(name, 0.0) + number
        return self.kind(**values, origin=UNKNOWN)


UNKNOWN = Origin("fitted", "")


def gemm(on: Device, dtype: str) -> Fit[GemmCost]:
    """Return a fit of five coefficients, or of six with quantised activations."""
    start = {
        "overhead_s": 4.0,
        "per_k_s": 0.3,
        "flops_efficiency": 0.8,
        "bandwidth_efficiency": 0.9,
        "sharpness": 1.5,
    }
    if DTYPE_BYTES[dtype] < ACTIVATION_BYTES:
        start["per_input_s"] = 5.0

    def times(of: Samples) -> Callable[[GemmCost], Float64]:
        return lambda cost: cost.seconds(on, of["m"], of["n"], of["k"], dtype)

    return Fit(GemmCost, start, times, {"sharpness": 1.0})


def attention(on: Device, **given: float) -> Fit[AttentionCost]:
    """Return a fit for one layer, in which a token has so many bytes of K and V for a KV head."""

    def times(of: Samples) -> Callable[[AttentionCost], Float64]:
        batch, kv_heads = of["batch"], of["kv_heads"]
        kv_bytes = batch * of["context"] * kv_heads * of["token_bytes"]

        def seconds(cost: AttentionCost) -> Float64:
            memory = kv_bytes / (cost.bandwidth_efficiency * on.bandwidth_bytes_per_s)
            heads = cost.per_query_head_s * batch * of["heads"]
            return cost.overhead_s + heads + memory * (1 + cost.fill / (batch * kv_heads))

        return seconds

    start = {"overhead_s": 11.0, "per_query_head_s": 1.5, "bandwidth_efficiency": 0.85, "fill": 3.0}
    free = {name: value for name, value in start.items() if name not in given}
    return Fit(AttentionCost, free, times, given)


def prompt_attention(on: Device) -> Fit[PromptAttentionCost]:
    """Return a fit for one layer with heads of 128; a row is a token, a pair one that looks at another."""

    def times(of: Samples) -> Callable[[PromptAttentionCost], Float64]:
        heads = of["heads"]
        flops = 4 * 128 * heads * of["pairs"]

        def seconds(cost: PromptAttentionCost) -> Float64:
            rate = cost.flops_efficiency * on.flops_for("bf16")
            return cost.overhead_s + cost.per_query_head_s * heads * of["rows"] + flops / rate

        return seconds

    start = {"overhead_s": 11.0, "per_query_head_s": 0.5, "flops_efficiency": 0.6}
    return Fit(PromptAttentionCost, start, times)


def collective(kind: type[Collective], on: Device, degree: int) -> Fit[Collective]:
    return Fit(
        kind,
        {"latency_s": 10.0, "link_efficiency": 0.5},
        lambda of: lambda cost: cost.seconds(on, degree, of["bytes"]),
    )


def elementwise(on: Device, model: ModelShape) -> Fit[ElementwiseCost]:
    """Return a fit to the sum of a layer's operators, by rows and degree."""

    def times(of: Samples) -> Callable[[ElementwiseCost], Float64]:
        shapes = {tp: model.elementwise(tp) for tp in np.unique(of["tp"]).astype(int).tolist()}
        elements = np.array([shapes[int(tp)][1] for tp in of["tp"]], np.float64)
        kernels, moved = shapes[next(iter(shapes))][0], 2 * elements * of["m"]
        return lambda cost: cost.seconds(on, kernels, moved)

    return Fit(ElementwiseCost, {"kernel_s": 2.5, "bandwidth_efficiency": 0.65}, times)


def positive(value: float) -> float:
    # Clipped: a coefficient that wants to be 0 would otherwise run off to minus infinity.
    return float(np.exp(_clipped(value)))


def share(value: float) -> float:
    """Map a real number to one between 0 and 1."""
    return float(1 / (1 + np.exp(-_clipped(value))))


def _clipped(value: float) -> float:
    # np.clip takes longer for one number than all else of a small fit.
    return min(max(value, -12.0), 12.0)


def logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


# Nelder-Mead: fits of five coefficients need no scipy.


def minimise(loss: Loss, start: Vector, *, rounds: int = 6, steps: int = 400, size: float = 0.4) -> Vector:
    """Return the best point from `start`; each round restarts around it, against simplexes that collapsed."""
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
    best: Vector = points[int(np.argmin(values))]
    return best
