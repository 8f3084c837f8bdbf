"""A cost set from aiconfigurator's tables of vLLM's kernels, a folder a GPU: GEMMs, attention, all-reduce."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_file import assumed_borrowing, assumed_host
from laminabench.catalog.cost_keys import AllReduceKey, DtypeKey, GemmKey
from laminabench.catalog.cost_terms import (
    AllReduceCost,
    AttentionCost,
    GemmCost,
    Origin,
)
from laminabench.catalog.costs import CostSet
from laminabench.catalog.families import released_models
from laminabench.catalog.fitting import formulas as fitted
from laminabench.catalog.fitting.formulas import Shape
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.hardware import Device
from laminabench.catalog.importing.curves import (
    DEGREES,
    GRAPH_ROWS,
    NEAREST,
    Layers,
    curve,
    held_out_layers,
    packaged,
)
from laminabench.catalog.importing.kernels import Kernels, in_tiles
from laminabench.catalog.importing.tables import FRAMEWORKS, SOURCE, GpuTables
from laminabench.catalog.importing.vllm_tables import (
    vllm_allreduce,
    vllm_attention,
    vllm_gemm,
    vllm_prompt_attention,
)
from laminabench.catalog.measured import Curve, Measured
from laminabench.catalog.models import ModelShape
from laminabench.util.errors import UserError

DTYPES = ("bf16", "fp8", "fp8_block", "fp8_fused", "nvfp4")
# Whose table it is, where not vLLM's: DeepGEMM alone, as systems use it that quantise in the kernel before.
FRAMEWORK_OF = {"fp8_fused": "trtllm"}
# Of block-wise fp8 these versions timed the launch of the kernel.
LAUNCH_BOUND = ("0.18.", "0.22.", "0.24.")
# So did a table whose median matrix takes as long with FEW rows as with MANY, and far longer than ideally.
FEW, MANY, AS_LONG, TOO_LONG = 8, 512, 1.1, 10.0
IDEAL = GemmCost(0.0, 0.0, 1.0, 1.0, math.inf, Origin("ideal", "data sheet"))


def cost_set(
    name: str,
    tables: Sequence[GpuTables],
    models: Sequence[ModelShape],
    allreduce: Mapping[AllReduceKey, AllReduceCost],
) -> CostSet:
    """Return the matrices of the catalogue's models, and of `models`, as measured; formulas for all else."""
    known = [*released_models().values(), *models]
    shapes = {shape for model in known for layer in _layers(model).values() for shape in layer}
    formulas: dict[DtypeKey, GemmCost] = {}
    curves: dict[GemmKey, Curve] = {}
    reduced: dict[AllReduceKey, AllReduceCost] = {}
    attention: dict[str, AttentionCost] = {}
    kernels = Kernels()
    for each in tables:
        for dtype in DTYPES:
            table, samples = _gemm_samples(each, dtype)
            if table is None:
                continue
            formulas[DtypeKey(each.device.name, dtype)] = fitted.grid_gemm(
                each.device, dtype, samples, each.source(table)
            )
            curves |= {
                GemmKey(each.device.name, dtype, *shape): grid
                for shape, grid in _curves(samples, shapes, each.source(table))
            }
        if not any(key.device == each.device.name for key in formulas):
            raise UserError(
                "costs-no-measurements",
                f"{each.folder}/gemm: has no matrix of 512 and more in {', '.join(DTYPES)}; a set needs one",
            )
        decode = _attention(
            each, "generation_attention", "attention", vllm_attention, fitted.decode_attention
        )
        attention[each.device.name] = in_tiles(decode, each)
        if gemm := formulas.get(DtypeKey(each.device.name, "bf16")):
            kernels.read(each, attention[each.device.name], gemm)
        reduced |= _allreduce(each)
    measured = Measured(curves, graph_rows=GRAPH_ROWS, nearest=NEAREST, **kernels.measured)
    for each in tables:
        for dtype in DTYPES:
            if cost := formulas.get(key := DtypeKey(each.device.name, dtype)):
                formulas[key] = _held_out(cost, each.device, dtype, measured, known)
    no_table = f"{SOURCE} has no table of element-wise operators"
    gpus = ", ".join(each.folder.name for each in tables)
    return CostSet(
        name=name,
        title=f"{FRAMEWORKS[tables[0].framework]}'s kernels as aiconfigurator measured them: {gpus}",
        gemm=formulas,
        attention=attention,
        prompt_attention={
            each.device.name: _attention(
                each, "context_attention", "prompt_attention", vllm_prompt_attention, fitted.prompt_attention
            )
            for each in tables
        },
        allreduce={**reduced, **allreduce},
        elementwise={each.device.name: packaged("elementwise", each.device, no_table) for each in tables},
        host=assumed_host(),
        borrowed=assumed_borrowing(),
        measured=measured,
        **kernels.terms,
    )


def _layers(model: ModelShape) -> dict[int, tuple[Shape, ...]]:
    """Return the matrices of a layer, over as many as the tables know."""
    degrees = {1, *DEGREES} & set(model.tp_degrees())
    return {tp: tuple((gemm.n, gemm.k) for gemm in model.layer_gemms(tp)) for tp in sorted(degrees)}


def _gemm_samples(of: GpuTables, dtype: str) -> tuple[Path | None, Samples]:
    """Return the newest table of matrices in a format that timed kernels and not their launches."""
    known_bad = LAUNCH_BOUND if dtype == "fp8_block" else ()
    for table in of.versions("gemm", "gemm", FRAMEWORK_OF.get(dtype, of.framework), known_bad):
        samples = vllm_gemm(table, dtype)
        if samples and not host_bound(of.device, dtype, samples):
            return table, samples
    return None, Samples({}, np.zeros(0))


def host_bound(device: Device, dtype: str, samples: Samples) -> bool:
    """Return whether the times are those of launching kernels."""
    few = samples.where(samples["m"] <= MANY)
    (n, k), of = np.unique(np.stack([few["n"], few["k"]]), axis=1, return_inverse=True)
    least, most = (np.full(len(n), start) for start in (np.inf, 0.0))
    rows = np.full((2, len(least)), [[np.inf], [0.0]])
    for low, high, values in ((least, most, few.seconds), (rows[0], rows[1], few["m"])):
        np.minimum.at(low, of, values)
        np.maximum.at(high, of, values)
    spans = (rows[0] <= FEW) & (rows[1] == MANY)
    if not spans.any():
        return False
    ideal = IDEAL.seconds(device, MANY, n, k, dtype)
    flat, long = np.median((most / least)[spans]), np.median((least / ideal)[spans])
    return bool(flat <= AS_LONG and long >= TOO_LONG)


def _held_out(
    cost: GemmCost, on: Device, dtype: str, measured: Measured, models: Sequence[ModelShape]
) -> GemmCost:
    """Add the error where the nearest matrices help the formula: with each model held out in turn."""
    curves = measured.of(on.name, dtype)
    covered: dict[tuple[tuple[Shape, ...], ...], Layers] = {}
    for model in models:
        complete = {tp: layer for tp, layer in _layers(model).items() if curves.keys() >= set(layer)}
        if complete:
            covered.setdefault(tuple(complete.values()), Layers(model, list(complete)))
    if len(covered) < 2:
        return cost
    errors = held_out_layers(on, dtype, measured, list(covered.values()))
    nearest = {"held_out_layer_nearest": errors["held_out_layer_nearest"]}
    return replace(cost, origin=replace(cost.origin, errors={**cost.origin.errors, **nearest}))


def _curves(samples: Samples, shapes: set[Shape], source: str) -> Iterable[tuple[Shape, Curve]]:
    # Steps are padded to graphs' sizes: rows between them, slow in fp8, are never computed.
    rows = samples["m"]
    samples = samples.where((rows > GRAPH_ROWS) | (Measured(graph_rows=GRAPH_ROWS).padded(rows) == rows))
    order = np.lexsort((samples["m"], samples["k"], samples["n"]))
    m, n, k = (samples[name][order] for name in ("m", "n", "k"))
    starts = np.flatnonzero((np.diff(n, prepend=-1) != 0) | (np.diff(k, prepend=-1) != 0))
    for rows, seconds, at in zip(
        np.split(m, starts[1:]), np.split(samples.seconds[order], starts[1:]), starts, strict=True
    ):
        shape = int(n[at]), int(k[at])
        if shape in shapes:
            yield shape, curve(rows, seconds, Origin("measured", source))


def _attention(
    of: GpuTables,
    name: str,
    term: str,
    read: Callable[[Path], Samples],
    fit: Callable[[Device, Samples, str], Any],
) -> Any:
    """Return a table's formula, or the default set's where there is no such table or nothing of use in it."""
    table = of.newest("attention", name)
    if table is not None and len(samples := read(table)):
        return fit(of.device, samples, of.source(table))
    return packaged(term, of.device, f"{of.folder.name} has no {name} of heads of 128 with KV in bf16")


def _allreduce(of: GpuTables) -> dict[AllReduceKey, AllReduceCost]:
    table = of.newest("comm", "custom_allreduce")
    if table is None:
        return {}
    source = f"{of.source(table)}, custom all-reduce in a CUDA graph"
    measured = {degree: vllm_allreduce(table, degree) for degree in DEGREES}
    return {
        AllReduceKey(of.device.name, degree): fitted.allreduce(of.device, degree, samples, source)
        for degree, samples in measured.items()
        if len(samples)
    }
