"""Hold out whole layers: the shapes of real models, none of which a fit may see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.models import released_models
from laminabench.catalog.profiles import Samples

Shape = tuple[int, int]  # (n, k)

# One node's devices. Odd degrees such as 5 are kept: they are legal splits of real layers.
MAX_TP = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """The GEMMs of a layer; a shape may occur twice."""

    name: str
    shapes: tuple[Shape, ...]


def layers_in_grid(samples: Samples) -> list[Layer]:
    """Layers of the catalogue's released models of which every GEMM was measured.

    A fused gate-and-up matrix that is not in the grid counts as two of half the width. Layers with the
    same shapes (LLaMA3-8B and Mistral-7B) count once.
    """
    measured = _shapes(samples)
    found: dict[tuple[Shape, ...], Layer] = {}
    for name, shape in released_models().items():
        for tp in shape.tp_degrees(MAX_TP):
            shapes: list[Shape] = []
            for gemm in shape.layer_gemms(tp):
                whole = (gemm.n, gemm.k)
                half = (gemm.n // 2, gemm.k)
                shapes += [half, half] if gemm.name == "gate_up" and whole not in measured else [whole]
            if measured.issuperset(shapes):
                found.setdefault(tuple(shapes), Layer(f"{name} over {tp}", tuple(shapes)))
    return list(found.values())


def hold_out(samples: Samples, shapes: set[Shape]) -> tuple[Samples, Samples]:
    """(the samples of other shapes, the samples of these)."""
    held = np.array([(int(n), int(k)) in shapes for n, k in zip(samples["n"], samples["k"], strict=True)])
    return samples.where(~held), samples.where(held)


def layer_errors(layers: Sequence[Layer], samples: Samples, predicted: Float64) -> tuple[float, float]:
    """Mean and largest absolute error of layer sums, in percent, over layers and batch sizes."""
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
    """Batch sizes at which all of `shapes` were measured."""
    rows = [
        set(samples["m"][(samples["n"] == n) & (samples["k"] == k)].astype(int).tolist())
        for n, k in set(shapes)
    ]
    return sorted(set.intersection(*rows))


def _shapes(samples: Samples) -> set[Shape]:
    return {(int(n), int(k)) for n, k in zip(samples["n"], samples["k"], strict=True)}
