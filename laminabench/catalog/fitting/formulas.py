"""Formulas fitted to one table or grid, with their errors on shapes that were left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laminabench.catalog.cost_terms import (
    AllReduceCost,
    AttentionCost,
    ElementwiseCost,
    Float64,
    GemmCost,
    PromptAttentionCost,
)
from laminabench.catalog.families import released_models
from laminabench.catalog.fitting import terms
from laminabench.catalog.fitting.samples import FULL, AttentionKind, Samples
from laminabench.catalog.fitting.terms import mape
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import Grid
from laminabench.catalog.models import ModelShape

Shape = tuple[int, int]  # (n, k)
Heads = tuple[int, int, int]  # query heads and KV heads of a worker, and their size


def grid_gemm(on: Device, dtype: str, samples: Samples, source: str) -> GemmCost:
    """Fit a grid of matrices; held out are all layers of the catalogue's models that are in it."""
    layers, fit = layers_in_grid(samples), terms.gemm(on, dtype)
    errors: dict[str, float] = {}
    if layers:
        fitted, held_out = hold_out(samples, {shape for layer in layers for shape in layer.shapes})
        guesses = fit.times(held_out)(fit.to(fitted))
        layer_error, worst = layer_errors(layers, held_out, guesses)
        errors = {
            "held_out_op": mape(guesses, held_out.seconds),
            "held_out_layer": layer_error,
            "held_out_layer_worst": worst,
        }
    source = f"{source}; held out: {len(layers)} layers of the catalogue's models"
    return fit.sourced(samples, source, "m 1-2048; n, k 512-65536", errors)


# Last-level caches that hold the KV of much of a table, whose times say little of reading it from memory.
CACHE_BYTES = {"gb200": 126e6}


def decode_attention(on: Device, samples: Samples, source: str, kind: AttentionKind = FULL) -> AttentionCost:
    cache = CACHE_BYTES.get(on.name, 0.0)
    kv_bytes = samples["batch"] * samples["context"] * samples["kv_heads"] * samples["token_bytes"]
    samples = samples.where(kv_bytes >= cache)
    # A KV that is larger than the cache fills the device whatever the number of requests.
    fit = terms.attention(on, **({"fill": 0.0} if cache else {}))
    cost = fit.to(samples)
    busy = samples.where(samples["batch"] * samples["kv_heads"] >= 64)
    errors = {
        "op_from_64_kv_heads": fit.error(cost, busy),
        "held_out_op": float(np.mean(fit.held_out(samples, head_counts(samples)))),
    }
    source = f"{source}; held out: a fifth of the head counts"
    heads = (
        f"1-8 KV heads of size {kind.head_dim}{_note(kind)}, up to 16 query heads each, at least 8 of them"
    )
    return fit.sourced(samples, source, f"{heads} in a batch; context 256-32768", errors, cost)


def _note(kind: AttentionKind) -> str:
    kv = "" if kind.kv_dtype == "bf16" else f", KV in {kind.kv_dtype}"
    return f"{kv}, a window of {kind.window}" if kind.window else kv


def prompt_attention(
    on: Device, samples: Samples, source: str, kind: AttentionKind = FULL
) -> PromptAttentionCost:
    fit = terms.prompt_attention(on)
    error = float(np.mean(fit.held_out(samples, head_counts(samples))))
    source = f"{source}; held out: a fifth of the head counts"
    covered = (
        f"4-64 heads of size {kind.head_dim}{_note(kind)}; whole prompts of 16-16384 tokens, "
        "65536 in all; no chunk after others"
    )
    return fit.sourced(samples, source, covered, {"held_out_op": error})


def head_counts(samples: Samples) -> Iterable[np.ndarray]:
    """Yield each fifth of the head counts."""
    _, group = np.unique(samples["heads"] * 1000 + samples["kv_heads"], return_inverse=True)
    return (group % 5 == fold for fold in range(min(5, int(group.max()) + 1)))


def allreduce(on: Device, degree: int, samples: Samples, source: str) -> AllReduceCost:
    return terms.collective(AllReduceCost, on, degree).sourced(samples, source, "256 B to 32 MiB")


def elementwise(
    on: Device, model: ModelShape, samples: Samples, source: str, covered: str
) -> ElementwiseCost:
    """Fit the sum of a layer's operators by rows and degree; held out is each degree in turn."""
    fit = terms.elementwise(on, model)
    errors = fit.held_out(samples, [samples["tp"] == tp for tp in np.unique(samples["tp"])])
    return fit.sourced(samples, source, covered, {"held_out_op": float(np.mean(errors))})


def decode_samples(grids: Mapping[Heads, Grid]) -> Samples:
    """Return samples of decode attention at the points of grids by requests and KV tokens."""
    columns: list[tuple[Float64, ...]] = []
    for heads, grid in grids.items():
        batch, context = (each.ravel() for each in np.meshgrid(*grid.axes, indexing="ij"))
        sizes = (np.full(len(batch), size, np.float64) for size in heads[:2])
        token_bytes = np.full(len(batch), 4 * heads[2], np.float64)  # K and V in bf16
        columns.append((batch, context, *sizes, token_bytes, grid.values.ravel()))
    return _samples(("batch", "context", "heads", "kv_heads", "token_bytes"), columns)


def prompt_samples(grids: Mapping[Heads, Grid]) -> Samples:
    """Return samples of chunks' attention at the points of grids by their tokens and those before them."""
    columns: list[tuple[Float64, ...]] = []
    for (heads, _, head_dim), grid in grids.items():
        rows, before = (each.ravel() for each in np.meshgrid(*grid.axes, indexing="ij"))
        # The fit is for heads of 128; what others compute is in proportion.
        pairs = (rows * before + rows * (rows + 1) / 2) * (head_dim / 128)
        columns.append((rows, pairs, np.full(len(rows), heads, np.float64), grid.values.ravel()))
    return _samples(("rows", "pairs", "heads"), columns)


def _samples(names: Sequence[str], columns: Sequence[tuple[Float64, ...]]) -> Samples:
    *values, seconds = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return Samples(dict(zip(names, values, strict=True)), seconds)


# One node's devices, including odd degrees such as 5, which are legal splits of real layers.
MAX_TP = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """The GEMMs of a layer; a shape may occur twice."""

    name: str
    shapes: tuple[Shape, ...]


def layers_in_grid(samples: Samples) -> list[Layer]:
    """Return the layers of the catalogue's released models of which every GEMM was measured.

    A fused gate-and-up matrix that is not in the grid counts as two of half the width. Layers with the
    same shapes (LLaMA3-8B and Mistral-7B) count once.
    """
    measured = {(int(n), int(k)) for n, k in zip(samples["n"], samples["k"], strict=True)}
    layers: dict[tuple[Shape, ...], Layer] = {}
    for name, shape in released_models().items():
        if shape.experts or shape.latent:
            continue  # whose layers are of other products too
        for tp in shape.tp_degrees(MAX_TP):
            shapes: list[Shape] = []
            for gemm in shape.layer_gemms(tp):
                full = (gemm.n, gemm.k)
                half = (gemm.n // 2, gemm.k)
                shapes += [half, half] if gemm.name == "gate_up" and full not in measured else [full]
            if measured.issuperset(shapes):
                layers.setdefault(tuple(shapes), Layer(f"{name} over {tp}", tuple(shapes)))
    return list(layers.values())


def hold_out(samples: Samples, shapes: set[Shape]) -> tuple[Samples, Samples]:
    """Split samples into those of other shapes and those of these."""
    excluded = np.array([(int(n), int(k)) in shapes for n, k in zip(samples["n"], samples["k"], strict=True)])
    return samples.where(~excluded), samples.where(excluded)


def layer_errors(layers: Sequence[Layer], samples: Samples, predicted: Float64) -> tuple[float, float]:
    """Return the mean and largest absolute error of layer sums, in percent, over layers and batch sizes."""
    times = {
        (int(m), int(n), int(k)): (true, guess)
        for m, n, k, true, guess in zip(
            samples["m"], samples["n"], samples["k"], samples.seconds, predicted, strict=True
        )
    }
    errors = []
    for layer in layers:
        for m in _rows(samples, layer.shapes):
            true, guess = np.sum([times[m, n, k] for n, k in layer.shapes], axis=0)
            errors.append(abs(guess / true - 1))
    return 100 * float(np.mean(errors)), 100 * float(np.max(errors))


def _rows(samples: Samples, shapes: Iterable[Shape]) -> list[int]:
    rows = [
        set(samples["m"][(samples["n"] == n) & (samples["k"] == k)].astype(int).tolist())
        for n, k in set(shapes)
    ]
    return sorted(set.intersection(*rows))
