"""Curves of operators that were measured one by one, and the formulas fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_keys import OperatorKey
from laminabench.catalog.cost_terms import ElementwiseCost, Float64, GemmCost, Origin
from laminabench.catalog.fitting import terms
from laminabench.catalog.fitting.formulas import Shape
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.fitting.terms import mape
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import Curve, Formula, Measured, nearby
from laminabench.catalog.models import ModelShape

# Over how many an all-reduce is read, where it was measured.
DEGREES = (2, 4, 8)
# By how many measured matrices the formula of another is corrected, where there are dozens.
NEAREST = 4
# The largest CUDA graph that vLLM captures by default.
GRAPH_ROWS = 512
OperatorCurves = Mapping[OperatorKey, Curve]


class Layers(NamedTuple):
    """A model whose layer was measured, and split over how many."""

    model: ModelShape
    degrees: Sequence[int]


def curve(rows: Float64, seconds: Float64, origin: Origin) -> Curve:
    """Return a curve and its error: every other point from its neighbours, about twice the real one."""
    guessed = np.interp(rows[1:-1:2], rows[::2], seconds[::2])
    error = mape(guessed, seconds[1:-1:2]) if len(rows) > 2 else 0.0
    return Curve(rows, seconds, replace(origin, errors={"held_out_op": error}, samples=len(rows)))


def fitted_gemm(
    on: Device, dtype: str, measured: Measured, layers: Sequence[Layers], source: str
) -> GemmCost:
    """Fit to all curves of a device; held out are the shapes of each model in turn."""
    samples = _samples_of(measured.of(on.name, dtype))
    errors = held_out_layers(on, dtype, measured, layers) if len(layers) > 1 else {}
    models = ", ".join(sorted({each.model.name for each in layers}))
    source = f"{source}: GEMMs of {models}; held out: each model in turn"
    return terms.gemm(on, dtype).sourced(samples, source, "m 1-2048", errors)


def held_out_layers(on: Device, dtype: str, measured: Measured, layers: Sequence[Layers]) -> dict[str, float]:
    """Return the error of a layer's GEMMs with the model's shapes held out, in percent.

    By a formula that is fitted to the others, and by that with the nearest of them where the set has it so.
    """
    curves = measured.of(on.name, dtype)
    errors: dict[str, list[float]] = {}
    for model, degrees in layers:
        shapes = [[(gemm.n, gemm.k) for gemm in model.layer_gemms(tp)] for tp in degrees]
        # Routers were not measured.
        split = [[shape for shape in layer if shape in curves] for layer in shapes]
        own = {shape for layer in split for shape in layer}
        others = {shape: curve for shape, curve in curves.items() if shape not in own}
        cost = terms.gemm(on, dtype).to(_samples_of(others))
        formula: Formula = partial(cost.seconds, on, dtype=dtype)
        guesses = {"held_out_layer": formula}
        if measured.nearest:
            guesses["held_out_layer_nearest"] = _helped(formula, others, measured.nearest)
        for name, guess in guesses.items():
            per_layer = [_layer_error(layer, curves, guess) for layer in split]
            errors.setdefault(name, []).append(float(np.mean(per_layer)))
    return {name: float(np.mean(per_layer)) for name, per_layer in errors.items()}


def _helped(formula: Formula, others: Mapping[Shape, Curve], count: int) -> Formula:
    return lambda rows, n, k: formula(rows, n, k) * nearby(others, count, formula, rows, n, k)


def _layer_error(layer: Sequence[Shape], curves: Mapping[Shape, Curve], guess: Formula) -> float:
    rows = curves[layer[0]].rows
    times = np.sum([curves[shape].at(rows) for shape in layer], axis=0)
    return mape(np.sum([guess(rows, *shape) for shape in layer], axis=0), times)


def _samples_of(curves: Mapping[Shape, Curve]) -> Samples:
    rows = [curve.rows for curve in curves.values()]
    columns = {
        "m": rows,
        "n": [np.full(len(m), n, np.float64) for m, (n, _) in zip(rows, curves, strict=True)],
        "k": [np.full(len(m), k, np.float64) for m, (_, k) in zip(rows, curves, strict=True)],
    }
    seconds = np.concatenate([curve.seconds for curve in curves.values()])
    return Samples({name: np.concatenate(parts) for name, parts in columns.items()}, seconds)


def fitted_elementwise(
    on: Device, operators: OperatorCurves, layers: Sequence[Layers], source: str
) -> ElementwiseCost:
    """Fit to the sum of a layer's operators, whose formula counts kernels and bytes; first model only."""
    model, degrees = layers[0]
    parts: dict[str, list[Float64]] = {"m": [], "tp": [], "seconds": []}
    for degree in degrees:
        of_layer = [
            (operators[OperatorKey(on.name, name, width)], 2 if name == "norm" else 1)
            for name, width, _ in model.operators(degree)
            if OperatorKey(on.name, name, width) in operators
        ]
        rows = of_layer[0][0].rows
        parts["m"].append(rows)
        parts["tp"].append(np.full(len(rows), degree, np.float64))
        parts["seconds"].append(np.sum([times * curve.at(rows) for curve, times in of_layer], axis=0))
    flat = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    samples = Samples(flat, flat.pop("seconds"))
    return terms.elementwise(on, model).sourced(samples, f"{source}: norms, rotation, activation")


def packaged(term: str, on: Device, reason: str) -> Any:
    """Return the default set's coefficients of a device or the one it borrows from; kind `assumed`."""
    costs = load_costs("vllm-0.14")
    measured = costs.measured_as(on)
    cost = getattr(costs, term)[measured]
    if measured != on.name:
        reason += f"; {on.name} borrows: {costs.borrowed[on.name].reason}"
    source = f"{reason}; {costs.name}'s of {measured}: {cost.origin.source}"
    return replace(cost, origin=Origin("assumed", source, cost.origin.range))
