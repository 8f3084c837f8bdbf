"""Measured times of a cost set, and interpolation between and beyond their points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec.structs import astuple, replace
from numpy.typing import ArrayLike

from laminabench.catalog.cost_keys import (
    DtypeKey,
    ExpertsKey,
    GemmKey,
    HeadsKey,
    LatentKey,
    LinesKey,
    OperatorKey,
)
from laminabench.catalog.cost_terms import NS, US, AttentionTerms, Coefficient, Float64, Origin, PromptTerms


class Arrays(msgspec.Struct, frozen=True, eq=False):
    """Points along an axis, the first field, with further fields, and their source.

    Two are equal if their points are.
    """

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _same(astuple(self)[:-1], astuple(other)[:-1])


class Curve(Arrays, frozen=True, eq=False):
    """Seconds by rows: of a GEMM, or of an operator that does the same for every row."""

    rows: Annotated[Float64, Coefficient("rows", 1, "shape")]
    seconds: Annotated[Float64, Coefficient("us", US, "time")]
    origin: Origin

    def at(self, rows: ArrayLike, formula: Float64 | None = None, last: float = 1.0) -> Float64:
        """Interpolate between points; below them as at the first, above them as the formula grows.

        `formula` is what it gives for these rows and `last` for the last point; without one it goes on in
        proportion to the rows.
        """
        at = np.asarray(rows, np.float64)
        within: Float64 = np.interp(at, self.rows, self.seconds)
        grown = at / self.rows[-1] if formula is None else formula / last
        return np.where(at > self.rows[-1], within * grown, within)


def _same(some: Iterable[Float64], others: Iterable[Float64]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


class Grid(msgspec.Struct, frozen=True, eq=False):
    """Values at the points of a rectangular grid; csrc/sim/grid.hpp interpolates."""

    axes: tuple[Float64, ...]
    values: Float64

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Grid)
            and len(self.axes) == len(other.axes)
            and _same((*self.axes, self.values), (*other.axes, other.values))
        )


class AttentionGrids(msgspec.Struct, frozen=True):
    """Attention of one layer on one worker, seconds: docs/simulator-prefill.md ("Measured attention")."""

    decode: Grid  # by requests and KV tokens of each
    prompt: Grid  # by tokens of a chunk and those before it
    mixed: Grid  # by both
    skew: Grid  # share of the way to the longest: by requests and the share of them that is long
    mixed_skew: Grid  # by these and the KV tokens of the longest
    origin: Origin


class AttentionLines(Arrays, frozen=True, eq=False):
    """Decode attention of one layer on one worker: for each number of requests a line in their KV tokens.

    KV tokens are those that are attended to: of windowed layers, no more than the window for each request.
    """

    requests: Annotated[Float64, Coefficient("requests", 1, "shape")]
    fixed_s: Annotated[Float64, Coefficient("us", US, "time")]
    per_token_s: Annotated[Float64, Coefficient("per_token_ns", NS, "time")]
    origin: Origin

    def at(self, requests: ArrayLike) -> tuple[Float64, Float64]:
        """(fixed, per KV token) for so many requests: between two lines, or beyond the last in proportion."""
        count = np.asarray(requests, np.float64)
        grown = np.maximum(count / self.requests[-1], 1)
        fixed = np.interp(count, self.requests, self.fixed_s) * grown
        return fixed, np.interp(count, self.requests, self.per_token_s)

    def in_tiles(self, of_request: float) -> AttentionLines:
        """Return lines in requests where these are lines in tiles, and a request has so many."""
        return replace(self, requests=self.requests / of_request, per_token_s=self.per_token_s * of_request)

    def seconds(self, kv_tokens: ArrayLike, requests: ArrayLike) -> Float64:
        fixed, per_token = self.at(requests)
        return np.where(np.asarray(requests) > 0, fixed + per_token * np.asarray(kv_tokens, np.float64), 0.0)


class MeasuredAttention(msgspec.Struct, frozen=True):
    """The grids of a worker, with the formulas by which what lies beyond them grows; of one layer."""

    grids: AttentionGrids
    terms: AttentionTerms
    prompts: PromptTerms

    def faster(self, times: float, *names: str) -> MeasuredAttention:
        """Return a copy with some of the grids' times divided by a factor."""
        changed = {}
        for name in names:
            grid: Grid = getattr(self.grids, name)
            changed[name] = replace(grid, values=grid.values / times)
        return replace(self, grids=replace(self.grids, **changed))

    def least_per_kv_token(self) -> float:
        """Return the least time per KV token in decoding without chunks."""
        grid = self.grids.decode
        requests, tokens = grid.axes[0][:, None], grid.axes[1]
        formula = self.terms.seconds(requests * tokens, requests)
        # Beyond the grid a token takes at least the formula's part of it, in the ratio at the edge.
        per_token = np.minimum(1 / (requests * tokens), self.terms.per_kv_token_s / formula)
        return float((grid.values * per_token).min())


Formula = Callable[[Float64, int, int], Float64]  # seconds of a GEMM by rows, n and k


def nearby(
    curves: Mapping[tuple[int, int], Curve],
    count: int,
    formula: Formula,
    rows: ArrayLike,
    n: int,
    k: int,
) -> Float64:
    """Return the ratio of measured to formula time for the `count` nearest matrices, at these rows.

    Distances are of logarithms. n counts twice: it says how many tiles there are, k how long each takes. A
    matrix weighs as the inverse square of its distance, the formula itself as a matrix at a distance of 1.
    """
    away = np.log(np.array(list(curves), np.float64).reshape(-1, 2) / (n, k))
    distances = np.hypot(away[:, 0], away[:, 1] / 2)
    shapes, weights = list(curves.items()), 1 / np.maximum(distances, 1e-3) ** 2
    total, all_weights = np.zeros(np.shape(rows)), 1.0
    for place in np.argsort(distances, kind="stable")[:count]:
        shape, curve = shapes[place]
        ratios = np.log(curve.seconds / formula(curve.rows, *shape))
        total = total + weights[place] * np.interp(np.asarray(rows, np.float64), curve.rows, ratios)
        all_weights += weights[place]
    return np.exp(total / all_weights)


class Measured(msgspec.Struct, frozen=True):
    """All measured times of a cost set."""

    gemm: Mapping[GemmKey, Curve] = msgspec.field(default_factory=dict)
    operators: Mapping[OperatorKey, Curve] = msgspec.field(default_factory=dict)
    attention: Mapping[HeadsKey, AttentionGrids] = msgspec.field(default_factory=dict)
    # Rows of a step are padded to the next size of a CUDA graph, up to this many; 0 for no padding.
    graph_rows: int = 0
    # Matrices that correct the formula of one that was not measured; 0 where there are too few.
    nearest: int = 0
    lines: Mapping[LinesKey, AttentionLines] = msgspec.field(default_factory=dict)
    latent: Mapping[LatentKey, AttentionLines] = msgspec.field(default_factory=dict)
    experts: Mapping[ExpertsKey, Curve] = msgspec.field(default_factory=dict)
    # Of named kernels with heads of 128, by tiles in place of requests: as many for each of their KV heads.
    tiles: Mapping[DtypeKey, AttentionLines] = msgspec.field(default_factory=dict)

    def of(self, device: str, dtype: str) -> dict[tuple[int, int], Curve]:
        """Return the matrices of a device, by n and k."""
        return {
            (key.n, key.k): curve
            for key, curve in self.gemm.items()
            if (key.device, key.dtype) == (device, dtype)
        }

    def padded(self, rows: Float64) -> Float64:
        """Round rows up to the size of the CUDA graph that such a step runs in: vLLM's 1, 2, 4, 8, 16, ..."""
        if not self.graph_rows:
            return rows
        sizes = np.array([1, 2, 4, *range(8, 257, 8), *range(272, self.graph_rows + 1, 16)], np.float64)
        size = np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1)
        return np.where(rows > self.graph_rows, rows, sizes[size])
