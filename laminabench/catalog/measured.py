"""What a cost set holds as it was measured: times at points, and what is between and beyond them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from laminabench.catalog.cost_terms import AttentionTerms, Float64, Origin, PromptTerms


class Curve(msgspec.Struct, frozen=True, eq=False):
    """Seconds by rows: of a GEMM, or of an operator that does the same for every row."""

    rows: Float64
    seconds: Float64
    origin: Origin

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and _same((self.rows, self.seconds), (other.rows, other.seconds))

    def at(self, rows: ArrayLike, formula: Float64 | None = None, last: float = 1.0) -> Float64:
        """Linear between the points; below them as at the first, above them as the formula grows.

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
    """Attention of one layer on one worker, seconds: docs/simulator.md ("Measured attention")."""

    decode: Grid  # by requests and KV tokens of each
    prompt: Grid  # by tokens of a chunk and those before it
    mixed: Grid  # by both
    skew: Grid  # share of the way to the longest: by requests and the share of them that is long
    mixed_skew: Grid  # by these and the KV tokens of the longest
    origin: Origin


class AttentionLines(msgspec.Struct, frozen=True, eq=False):
    """Decode attention of one layer on one worker: for each number of requests a line in their KV tokens.

    KV tokens are those that are attended to: of windowed layers, no more than the window for each request.
    """

    requests: Float64
    fixed_s: Float64
    per_token_s: Float64
    origin: Origin

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionLines) and _same(
            (self.requests, self.fixed_s, self.per_token_s),
            (other.requests, other.fixed_s, other.per_token_s),
        )

    def at(self, requests: ArrayLike) -> tuple[Float64, Float64]:
        """(fixed, per KV token) for so many requests: between two lines, or beyond the last in proportion."""
        count = np.asarray(requests, np.float64)
        grown = np.maximum(count / self.requests[-1], 1)
        fixed = np.interp(count, self.requests, self.fixed_s) * grown
        return fixed, np.interp(count, self.requests, self.per_token_s)

    def seconds(self, kv_tokens: ArrayLike, requests: ArrayLike) -> Float64:
        fixed, per_token = self.at(requests)
        return np.where(np.asarray(requests) > 0, fixed + per_token * np.asarray(kv_tokens, np.float64), 0.0)


class MeasuredAttention(msgspec.Struct, frozen=True):
    """The grids of a worker, with the formulas by which what lies beyond them grows; of one layer."""

    grids: AttentionGrids
    terms: AttentionTerms
    prompts: PromptTerms

    def faster(self, times: float, *names: str) -> MeasuredAttention:
        """With some of the grids' times so many times shorter."""
        changed = {}
        for name in names:
            grid: Grid = getattr(self.grids, name)
            changed[name] = replace(grid, values=grid.values / times)
        return replace(self, grids=replace(self.grids, **changed))

    def least_per_kv_token(self) -> float:
        """No KV token of those who decode, without chunks beside them, takes less than this."""
        grid = self.grids.decode
        requests, tokens = grid.axes[0][:, None], grid.axes[1]
        formula = self.terms.seconds(requests * tokens, requests)
        # Beyond the grid a token takes at least the formula's part of it, in the ratio at the edge.
        per_token = np.minimum(1 / (requests * tokens), self.terms.per_kv_token_s / formula)
        return float((grid.values * per_token).min())


# Operators next to the GEMMs, by what their width is: hidden size, heads times head size, feed-forward width,
# vocabulary. The last is done for each request that gets a token, the others for every row.
OPERATORS = ("norm", "rotary", "qk_norm", "activation", "embedding", "sampler")


Formula = Callable[[Float64, int, int], Float64]  # seconds of a GEMM by rows, n and k


def nearby(
    curves: Mapping[tuple[int, int], Curve],
    count: int,
    formula: Formula,
    rows: ArrayLike,
    n: int,
    k: int,
) -> Float64:
    """How much longer than by the formula the `count` nearest matrices take, for these rows.

    Distances are of logarithms. n counts twice: it says how many tiles there are, k how long each takes. A
    matrix weighs as the inverse square of its distance, the formula itself as a matrix at a distance of 1.
    """
    away = np.log(np.array(list(curves), np.float64).reshape(-1, 2) / (n, k))
    distances = np.hypot(away[:, 0], away[:, 1] / 2)
    found, weights = list(curves.items()), 1 / np.maximum(distances, 1e-3) ** 2
    total, all_weights = np.zeros(np.shape(rows)), 1.0
    for place in np.argsort(distances, kind="stable")[:count]:
        shape, curve = found[place]
        ratios = np.log(curve.seconds / formula(curve.rows, *shape))
        total = total + weights[place] * np.interp(np.asarray(rows, np.float64), curve.rows, ratios)
        all_weights += weights[place]
    return np.exp(total / all_weights)


class Measured(msgspec.Struct, frozen=True):
    """All that a cost set has as it was measured; by the device first."""

    gemm: Mapping[tuple[str, str, int, int], Curve] = msgspec.field(default_factory=dict)  # dtype, n, k
    operators: Mapping[tuple[str, str, int], Curve] = msgspec.field(default_factory=dict)  # name, width
    # Query heads, KV heads and head size of a worker.
    attention: Mapping[tuple[str, int, int, int], AttentionGrids] = msgspec.field(default_factory=dict)
    # Rows of a step are padded to the next size of a CUDA graph, up to this many; 0 where they are not.
    graph_rows: int = 0
    # Of so many matrices the formula of one that was not measured is corrected by; 0 where there are too few.
    nearest: int = 0
    # Query heads, KV heads and head size of a worker, KV's type, window (0: none).
    lines: Mapping[tuple[str, int, int, int, str, int], AttentionLines] = msgspec.field(default_factory=dict)
    # Attention over a latent KV: heads of a worker, KV's type.
    latent: Mapping[tuple[str, int, str], AttentionLines] = msgspec.field(default_factory=dict)
    # Routed experts of a layer by the tokens of the whole group: format of the weights, hidden size, width of
    # an expert, experts of a token, all of them; over how many each is split, over how many they are dealt.
    experts: Mapping[tuple[str, str, int, int, int, int, int, int], Curve] = msgspec.field(
        default_factory=dict
    )

    def of(self, device: str, dtype: str) -> dict[tuple[int, int], Curve]:
        """The matrices of a device, by n and k."""
        return {(n, k): found for (*on, n, k), found in self.gemm.items() if on == [device, dtype]}

    def padded(self, rows: Float64) -> Float64:
        """As many rows as the CUDA graph that a step with these runs in has: vLLM's 1, 2, 4, 8, 16, ..."""
        if not self.graph_rows:
            return rows
        sizes = np.array([1, 2, 4, *range(8, 257, 8), *range(272, self.graph_rows + 1, 16)], np.float64)
        found = np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1)
        return np.where(rows > self.graph_rows, rows, sizes[found])
