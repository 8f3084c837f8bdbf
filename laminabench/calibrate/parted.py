"""Division of a step's measured total time into the parts of a cost set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laminabench.calibrate.rounds import Repeats, straight
from laminabench.calibrate.terms import Decode, Model, Prompts
from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.models import DTYPE_BYTES, ModelShape

LEAST_S, LEAST_SHARE = 1e-9, 0.1
# Kinds of points and terms: ("step", requests, KV tokens of each), ("chunk", tokens, tokens before it).
STEP, CHUNK = "step", "chunk"


def parted(repeats: Repeats, shape: ModelShape) -> Repeats:
    """Divide measured times into parts that add up to them at every point.

    KV's part is what exceeds the intercept of a straight line over the attended tokens. Each request beyond
    the first adds what that many requests take longer than a chunk of as many rows. The intercept's
    remainder is the rows': the LM head has its share by size, small operators the time of their bytes at the
    rate of other reads, and matrices the rest.
    """
    steps, chunks = _without_kv(repeats, STEP), _without_kv(repeats, CHUNK)
    both = [n for n in steps if n in chunks and n > 1]
    each = max(float(np.mean([(steps[n][0] - chunks[n][0]) / (n - 1) for n in both] or [0.0])), 0.0)
    head, layer = shape.lm_head_gemm(), shape.layer_gemms()
    sizes = {matrix.name: float(matrix.n * matrix.k * shape.layers) for matrix in layer}
    total = sum(sizes.values())
    last = min(begins for begins, _ in steps.values()) * head.n * head.k / (total + head.n * head.k)
    moved_s = shape.layers * ACTIVATION_BYTES * shape.elementwise(1)[1] / read_rate(repeats, shape)
    rows = {c: begins for c, (begins, _) in chunks.items()}
    rows |= {n: begins - each * (n - 1) for n, (begins, _) in steps.items()}
    parts = Repeats(rounds=repeats.rounds, controls=repeats.controls)
    for term, kind in ((Model.name, STEP), (Decode.name, STEP), (Prompts.name, CHUNK)):
        parts.drifts[term] = repeats.drifts[kind]
    for r, begins in rows.items():
        taken = _relative(repeats, STEP if r in steps else CHUNK, r)
        layers = max(begins - last, LEAST_S)
        rest = min(r * moved_s, layers / 2)
        made = {f"gemm {name}": (layers - rest) * size / total for name, size in sizes.items()}
        made |= {f"gemm {head.name}": last + each * (r - 1), "slices": layers, "rest": rest, "sampler": 0.0}
        for kind, seconds in made.items():
            parts.seconds[kind, r] = [seconds * share for share in taken]
    for kind, name, with_kv in ((STEP, "decode", steps), (CHUNK, "prompt", chunks)):
        for first, (_, more) in with_kv.items():
            for second, seconds in more.items():
                taken = _shares(repeats.seconds[kind, first, second])
                parts.seconds[name, first, second] = [seconds / shape.layers * share for share in taken]
    return parts


def read_rate(repeats: Repeats, shape: ModelShape) -> float:
    """Return bytes/s of a step: of weights by one request, or of KV by the largest and longest batch."""
    steps = _without_kv(repeats, STEP)
    weights = shape.layers * sum(each.n * each.k for each in shape.layer_gemms())
    weights += shape.lm_head_gemm().n * shape.lm_head_gemm().k
    most = max(steps)
    longest, seconds = max(steps[most][1].items())
    kv_bytes = most * longest * shape.kv_bytes_per_token
    return max(weights * DTYPE_BYTES[shape.dtype] / steps[min(steps)][0], kv_bytes / seconds)


def _without_kv(repeats: Repeats, kind: str) -> dict[int, tuple[float, dict[int, float]]]:
    """Return a step's seconds without KV, and KV's by tokens of each, by requests or tokens of a chunk.

    For a chunk that was measured only with nothing before it, KV's part is that of the next smaller one, in
    proportion to pairs of tokens.
    """
    points = [tuple(map(int, point[1:])) for point in repeats.of_kind(kind)]
    separate: dict[int, tuple[float, dict[int, float]]] = {}
    each = 0.0
    for first in sorted({first for first, _ in points}):
        there = sorted(second for other, second in points if other == first)
        seconds = np.array([repeats.at(kind, first, second) for second in there])
        # A chunk's tokens also attend to half of the chunk.
        attended = np.array(there, np.float64) + ((first + 1) / 2 if kind == CHUNK else 0)
        if len(there) == 1:
            separate[first] = max(float(seconds[0] - each * first * attended[0]), LEAST_S), {}
            continue
        begins, slope = straight(attended, seconds)
        begins, each = min(begins, float(seconds.min())), slope / first
        # Noise may hide KV's small part: take at least a share of the line's value.
        more = np.maximum(seconds - begins, max(slope, LEAST_S) * attended * LEAST_SHARE)
        separate[first] = begins, dict(zip(there, more.tolist(), strict=True))
    return separate


def _relative(repeats: Repeats, kind: str, first: int) -> list[float]:
    """Return the repeats of the point with the least KV, relative to their median."""
    least = min(int(point[2]) for point in repeats.of_kind(kind) if point[1] == first)
    return _shares(repeats.seconds[kind, first, least])


def _shares(taken: Sequence[float]) -> list[float]:
    return [float(each / np.median(taken)) for each in taken]
