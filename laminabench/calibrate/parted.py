"""Steps of which only the whole is known, as the parts that a cost set has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laminabench.calibrate.rounds import Repeats, straight
from laminabench.calibrate.terms import Decode, Model, Prompts
from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.models import DTYPE_BYTES, ModelShape

LEAST_S, LEAST_SHARE = 1e-9, 0.1
# The kinds of points, and of terms: ("step", requests, KV tokens of each), ("chunk", tokens, those before).
STEP, CHUNK = "step", "chunk"


def parted(found: Repeats, shape: ModelShape) -> Repeats:
    """The same time, dealt out, so that it adds up again at every point.

    KV has what is above the beginning of a straight line over the tokens that are attended to. That beginning
    is for rows and, beyond the first request, for each that gets a token: it has what so many requests
    take more than a chunk of as many rows. Of the rest the LM head has its share by size, small operators
    have what their bytes take at the rate at which others were read, and matrices have all else.
    """
    steps, chunks = _kv_apart(found, STEP), _kv_apart(found, CHUNK)
    both = [n for n in steps if n in chunks and n > 1]
    each = max(float(np.mean([(steps[n][0] - chunks[n][0]) / (n - 1) for n in both] or [0.0])), 0.0)
    head, layer = shape.lm_head_gemm(), shape.layer_gemms()
    sizes = {matrix.name: float(matrix.n * matrix.k * shape.layers) for matrix in layer}
    whole = sum(sizes.values())
    last = min(begins for begins, _ in steps.values()) * head.n * head.k / (whole + head.n * head.k)
    moved_s = shape.layers * ACTIVATION_BYTES * shape.elementwise(1)[1] / read_rate(found, shape)
    rows = {c: begins for c, (begins, _) in chunks.items()}
    rows |= {n: begins - each * (n - 1) for n, (begins, _) in steps.items()}
    parts = Repeats(rounds=found.rounds, controls=found.controls)
    for term, kind in ((Model.name, STEP), (Decode.name, STEP), (Prompts.name, CHUNK)):
        parts.drifts[term] = found.drifts[kind]
    for r, begins in rows.items():
        taken = _relative(found, STEP if r in steps else CHUNK, r)
        layers = max(begins - last, LEAST_S)
        rest = min(r * moved_s, layers / 2)
        made = {f"gemm {name}": (layers - rest) * size / whole for name, size in sizes.items()}
        made |= {f"gemm {head.name}": last + each * (r - 1), "slices": layers, "rest": rest, "sampler": 0.0}
        for kind, seconds in made.items():
            parts.seconds[kind, r] = [seconds * share for share in taken]
    for kind, name, apart in ((STEP, "decode", steps), (CHUNK, "prompt", chunks)):
        for first, (_, more) in apart.items():
            for second, seconds in more.items():
                taken = _shares(found.seconds[kind, first, second])
                parts.seconds[name, first, second] = [seconds / shape.layers * share for share in taken]
    return parts


def read_rate(found: Repeats, shape: ModelShape) -> float:
    """Bytes/s of a step: of weights by one request, or of KV by the largest batch with the longest."""
    steps = _kv_apart(found, STEP)
    weights = shape.layers * sum(each.n * each.k for each in shape.layer_gemms())
    weights += shape.lm_head_gemm().n * shape.lm_head_gemm().k
    most = max(steps)
    longest, seconds = max(steps[most][1].items())
    kv_bytes = most * longest * shape.kv_bytes_per_token
    return max(weights * DTYPE_BYTES[shape.dtype] / steps[min(steps)][0], kv_bytes / seconds)


def _kv_apart(found: Repeats, kind: str) -> dict[int, tuple[float, dict[int, float]]]:
    """By requests or tokens of a chunk: a step's seconds without KV, and what KV adds, by tokens of each.

    Of a chunk that was measured with nothing before it alone, what KV adds is as to the next smaller one, by
    pairs of tokens.
    """
    points = [tuple(map(int, point[1:])) for point in found.of_kind(kind)]
    apart: dict[int, tuple[float, dict[int, float]]] = {}
    each = 0.0
    for first in sorted({first for first, _ in points}):
        there = sorted(second for other, second in points if other == first)
        seconds = np.array([found.at(kind, first, second) for second in there])
        # A chunk's tokens attend to half of it, too.
        attended = np.array(there, np.float64) + ((first + 1) / 2 if kind == CHUNK else 0)
        if len(there) == 1:
            apart[first] = max(float(seconds[0] - each * first * attended[0]), LEAST_S), {}
            continue
        begins, slope = straight(attended, seconds)
        begins, each = min(begins, float(seconds.min())), slope / first
        # Noise may hide what little KV adds: at least a part of what the line says.
        more = np.maximum(seconds - begins, max(slope, LEAST_S) * attended * LEAST_SHARE)
        apart[first] = begins, dict(zip(there, more.tolist(), strict=True))
    return apart


def _relative(found: Repeats, kind: str, first: int) -> list[float]:
    """How repeats were spread, of the point with the least KV."""
    least = min(int(point[2]) for point in found.of_kind(kind) if point[1] == first)
    return _shares(found.seconds[kind, first, least])


def _shares(taken: Sequence[float]) -> list[float]:
    return [float(each / np.median(taken)) for each in taken]
