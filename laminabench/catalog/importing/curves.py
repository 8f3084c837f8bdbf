"""Curves of operators that were measured one by one, and the formulas fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_terms import ElementwiseCost, Float64, GemmCost, Origin
from laminabench.catalog.fit_terms import elementwise_times, fit_elementwise, fit_gemm, gemm_times, mape
from laminabench.catalog.fitted import Shape
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import Curve
from laminabench.catalog.models import ModelShape
from laminabench.catalog.profiles import Samples

# Over how many an all-reduce is read, where it was measured.
DEGREES = (2, 4, 8)
# The largest CUDA graph that vLLM captures unless told otherwise.
GRAPH_ROWS = 512
GemmCurves = Mapping[tuple[str, str, int, int], Curve]
OperatorCurves = Mapping[tuple[str, str, int], Curve]


class Layers(NamedTuple):
    """A model whose layer was measured, and split over how many."""

    model: ModelShape
    degrees: Sequence[int]


def curve(rows: Float64, seconds: Float64, origin: Origin) -> Curve:
    """With its error: that of every other point from its neighbours, about twice what lies between points."""
    guessed = np.interp(rows[1:-1:2], rows[::2], seconds[::2])
    held = mape(guessed, seconds[1:-1:2]) if len(rows) > 2 else 0.0
    return Curve(rows, seconds, replace(origin, errors={"held_out_op": held}, samples=len(rows)))


def fitted_gemm(on: Device, dtype: str, gemm: GemmCurves, layers: Sequence[Layers], source: str) -> GemmCost:
    """To all curves of a device; held out are the shapes of each model in turn."""
    curves = {key[2:]: curve for key, curve in gemm.items() if key[:2] == (on.name, dtype)}
    samples = _samples_of(curves)
    cost = fit_gemm(on, dtype, samples)
    errors = {"op": mape(gemm_times(cost, on, dtype, samples), samples.seconds)}
    if len(layers) > 1:
        errors["held_out_layer"] = float(np.mean([_held_out(on, dtype, each, curves) for each in layers]))
    models = ", ".join(sorted({each.model.name for each in layers}))
    source = f"{source}: GEMMs of {models}; held out: each model in turn"
    return replace(cost, origin=Origin("fitted", source, "m 1-2048", errors, len(samples)))


def _samples_of(curves: Mapping[Shape, Curve]) -> Samples:
    rows = [curve.rows for curve in curves.values()]
    columns = {
        "m": rows,
        "n": [np.full(len(m), n, np.float64) for m, (n, _) in zip(rows, curves, strict=True)],
        "k": [np.full(len(m), k, np.float64) for m, (_, k) in zip(rows, curves, strict=True)],
    }
    seconds = np.concatenate([curve.seconds for curve in curves.values()])
    return Samples({name: np.concatenate(parts) for name, parts in columns.items()}, seconds)


def _held_out(on: Device, dtype: str, left_out: Layers, curves: Mapping[Shape, Curve]) -> float:
    """The error of a layer's GEMMs, of a fit that saw none of the model's shapes, in percent."""
    layers = [[(gemm.n, gemm.k) for gemm in left_out.model.layer_gemms(tp)] for tp in left_out.degrees]
    own = {shape for layer in layers for shape in layer}
    trial = fit_gemm(on, dtype, _samples_of({shape: c for shape, c in curves.items() if shape not in own}))
    errors = []
    for layer in layers:
        rows = curves[layer[0]].rows
        times = np.sum([curves[shape].at(rows) for shape in layer], axis=0)
        errors.append(
            mape(np.sum([trial.seconds(on, rows, *shape, dtype) for shape in layer], axis=0), times)
        )
    return float(np.mean(errors))


def fitted_elementwise(
    on: Device, operators: OperatorCurves, layers: Sequence[Layers], source: str
) -> ElementwiseCost:
    """To the sum of a layer's operators, whose formula counts kernels and bytes; of the first model."""
    model, degrees = layers[0]
    parts: dict[str, list[Float64]] = {"m": [], "tp": [], "seconds": []}
    for degree in degrees:
        of_layer = [
            (operators[on.name, name, width], 2 if name == "norm" else 1)
            for name, width, _ in model.operators(degree)
        ]
        rows = of_layer[0][0].rows
        parts["m"].append(rows)
        parts["tp"].append(np.full(len(rows), degree, np.float64))
        parts["seconds"].append(np.sum([times * curve.at(rows) for curve, times in of_layer], axis=0))
    flat = {name: np.concatenate(found) for name, found in parts.items()}
    samples = Samples(flat, flat.pop("seconds"))
    cost = fit_elementwise(on, model, samples)
    error = mape(elementwise_times(cost, on, model, samples), samples.seconds)
    source = f"{source}: norms, rotation, activation"
    return replace(cost, origin=Origin("fitted", source, "", {"op": error}, len(samples)))
