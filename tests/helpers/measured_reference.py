"""Reference of measured attention, as defined in docs/simulator-prefill.md ("Measured attention")."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

Grid = dict[str, Any]


def at(grid: Grid, *point: float) -> float:
    """Interpolate linearly along each axis, from the last to the first; constant beyond the points."""

    def along(axis: int, row: int) -> float:
        if axis == len(grid["axes"]):
            return float(grid["values"][row])
        points = grid["axes"][axis]
        x = min(max(point[axis], points[0]), points[-1])
        above = bisect_right(points, x)
        low = along(axis + 1, row * len(points) + above - 1)
        if x == points[above - 1]:
            return low
        high = along(axis + 1, row * len(points) + above)
        return low + (high - low) * ((x - points[above - 1]) / (points[above] - points[above - 1]))

    return along(0, 0)


class Measured:
    """Measured attention of one layer on one worker, in ticks."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.grids = given
        self.beyond = given["beyond"]

    def ends(self, name: str, axis: int) -> tuple[float, float]:
        points = self.grids[name]["axes"][axis]
        return points[0], points[-1]

    def formula(self, requests: float, mean: float) -> float:
        b = self.beyond
        return float(
            b["fixed"]
            + b["per_request"] * requests
            + b["per_kv_token"] * requests * mean
            + b["per_mean_token"] * mean
        )

    def prompt_formula(self, tokens: float, before: float) -> float:
        b = self.beyond
        pairs = tokens * before + tokens * (tokens + 1) / 2
        return float(b["prompt_fixed"] + b["per_row"] * tokens + b["per_pair"] * pairs)

    def decode(self, requests: float, mean: float) -> float:
        n = min(requests, self.ends("decode", 0)[1])
        least, most = self.ends("decode", 1)
        kv = min(max(mean, least), most)
        time = at(self.grids["decode"], n, kv)
        if n == requests and mean <= kv:
            return time
        return time * (self.formula(requests, max(mean, kv)) / self.formula(n, kv))

    def prompt(self, tokens: float, before: float) -> float:
        least, most = self.ends("prompt", 0)
        c, p = min(max(tokens, least), most), min(before, self.ends("prompt", 1)[1])
        time = at(self.grids["prompt"], c, p)
        if tokens <= c and before == p:
            return time
        return time * (self.prompt_formula(max(tokens, c), before) / self.prompt_formula(c, p))

    def mixed(self, tokens: float, before: float, requests: float, mean: float) -> float:
        (c0, c1), (k0, k1) = self.ends("mixed", 0), self.ends("mixed", 3)
        c, p = min(max(tokens, c0), c1), min(before, self.ends("mixed", 1)[1])
        n, kv = min(requests, self.ends("mixed", 2)[1]), min(max(mean, k0), k1)
        time = at(self.grids["mixed"], c, p, n, kv)
        if tokens <= c and before == p and n == requests and mean <= kv:
            return time
        grown = self.prompt_formula(max(tokens, c), before) + self.formula(requests, max(mean, kv))
        return time * (grown / (self.prompt_formula(c, p) + self.formula(n, kv)))

    def ticks(self, kv: Sequence[int], chunks: Sequence[tuple[int, int]]) -> int:
        """Return the time of decoding requests with these lengths, and of chunks after these prefixes."""
        time = tokens = history = 0.0
        for of, before in chunks:
            time += self.prompt(of, before)
            tokens += of
            history += of * before
        if not kv:
            return math.floor(time + 0.5)
        requests, mean = float(len(kv)), sum(kv) / float(len(kv))
        least, most = float(min(kv)), float(max(kv))
        share = (mean - least) / (most - least) if most > least else 1.0
        if not chunks:
            even, longest = self.decode(requests, mean), self.decode(requests, most)
            return math.floor(even + at(self.grids["skew"], requests, share) * max(0.0, longest - even) + 0.5)
        history /= tokens
        even, longest = (self.mixed(tokens, history, requests, length) for length in (mean, most))
        towards = at(self.grids["mixed_skew"], requests, share, most)
        more = time - self.prompt(tokens, history)
        return math.floor(max(time, even + towards * max(0.0, longest - even) + more) + 0.5)
