"""Number of active experts of a rank, and of the (token, expert) pairs that it computes."""

from __future__ import annotations

import csv
import math
from functools import cache
from heapq import heapify, heapreplace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from laminabench.catalog.cost_terms import Float64
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

DRAWS = 16  # of loads, whose mean is taken
# Popularity of experts: a power law with this exponent between these bounds. With it the measured times of
# MegaMoE for `power_law_sampled_1.9` (ai-dynamo/aiconfigurator, SGLang 0.5.10) follow from those for balanced
# loads within 4 %.
POPULARITY, LEAST_POPULAR, MOST_POPULAR = 1.9, 1.0, 300.0
LAYERS = 8  # whose popularities are drawn
MOST_ROUTED = 512  # tokens that are routed; the pairs of more are in proportion


class ExpertLoad(NamedTuple):
    """Load of one rank in a layer; with skewed loads, of the busiest rank."""

    active: Float64
    pairs: Float64


class RoutingCurve(NamedTuple):
    """Load of the busiest rank as it was measured, by a step's tokens: shares of its experts, and of a mean.

    `active` is the share of the rank's experts with a token, `busiest` its pairs over those of a mean rank.
    """

    tokens: tuple[float, ...]
    active: tuple[float, ...]
    busiest: tuple[float, ...]

    def load(self, experts: int, top_k: int, ep: int, tokens: ArrayLike) -> ExpertLoad:
        """Return the load; between points by the logarithm of tokens, beyond them as at the nearest."""
        rows = np.maximum(np.asarray(tokens, np.float64), 1.0)
        at, known = np.log(rows), np.log(self.tokens)
        pairs = np.interp(at, known, self.busiest) * rows * top_k / ep
        active = np.interp(at, known, self.active) * experts / ep
        return ExpertLoad(np.minimum(active, np.maximum(pairs, 1.0)), pairs)


COLUMNS = ("tokens", "active", "busiest")


def read_routing(path: Path) -> RoutingCurve:
    """Return the curve of a CSV file with the columns of COLUMNS; raise a UserError for what is wrong."""

    def wrong(what: str) -> UserError:
        return UserError(
            "routing-bad-file",
            f"--routing {path}: {what}; write skewed, uniform, or a CSV file with the columns "
            f"{','.join(COLUMNS)}, as 12,0.284,1.3",
        )

    try:
        lines = safe_parse.text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise wrong("it cannot be read") from error
    if not lines or tuple(lines[0].replace(" ", "").split(",")) != COLUMNS:
        raise wrong("line 1 does not name the columns")
    points: list[tuple[float, float, float]] = []
    for number, cells in enumerate(csv.reader(lines[1:]), 2):
        try:
            tokens, active, busiest = map(float, cells)
        except ValueError as error:
            raise wrong(f"line {number} is not three numbers") from error
        rising = tokens > (points[-1][0] if points else 0.0)
        if not (rising and math.isfinite(tokens) and 0 < active <= 1 and 1 <= busiest < math.inf):
            raise wrong(
                f"line {number} needs more tokens than the line before, 0 < active <= 1, busiest >= 1"
            )
        points.append((tokens, active, busiest))
    if not points:
        raise wrong("it has no rows")
    return RoutingCurve(*zip(*points, strict=True))


def uniform(experts: int, top_k: int, ep: int, tokens: ArrayLike) -> ExpertLoad:
    """Return the average load where every expert is equally likely."""
    rows = np.asarray(tokens, np.float64)
    return ExpertLoad(experts / ep * (1 - (1 - top_k / experts) ** rows), rows * top_k / ep)


def skewed(experts: int, top_k: int, ep: int, tokens: ArrayLike, exponent: float) -> ExpertLoad:
    """Return loads that follow a power law, as aiconfigurator draws them for its tables."""
    rows = np.asarray(tokens, np.int64)
    loads = [_drawn(experts, top_k, ep, each, exponent) for each in rows.ravel().tolist()]
    active, pairs = np.array(loads, np.float64).reshape(-1, 2).T
    return ExpertLoad(active.reshape(rows.shape), pairs.reshape(rows.shape))


def sampled(experts: int, top_k: int, ep: int, tokens: ArrayLike) -> ExpertLoad:
    """Return loads of tokens that draw their experts independently, popular ones more often."""
    rows = np.asarray(tokens, np.float64)
    routed = np.clip(rows, 1, MOST_ROUTED).astype(np.int64)
    loads = [_routed(experts, top_k, ep, each) for each in routed.ravel().tolist()]
    active, pairs = np.array(loads, np.float64).reshape(-1, 2).T
    return ExpertLoad(active.reshape(rows.shape), pairs.reshape(rows.shape) * (rows / routed))


@cache
def _routed(experts: int, top_k: int, ep: int, tokens: int) -> tuple[float, float]:
    """Return the active experts and pairs of the busiest rank, the mean of some layers."""
    random, power = np.random.default_rng(tokens), 1 - POPULARITY
    least, most = LEAST_POPULAR**power, MOST_POPULAR**power
    loads = []
    for _ in range(LAYERS):
        popularity = ((most - least) * random.random(experts) + least) ** (1 / power)
        # The first to arrive of Poisson processes: without replacement, in proportion to popularity.
        arrivals = random.standard_exponential((tokens, experts)) / popularity
        chosen = np.argpartition(arrivals, top_k - 1, axis=1)[:, :top_k]
        ranks = np.bincount(chosen.ravel(), minlength=experts).reshape(ep, experts // ep)
        busiest = ranks[ranks.sum(axis=1).argmax()]
        loads.append(((busiest > 0).sum(), busiest.sum()))
    active, pairs = np.mean(loads, axis=0)
    return float(active), float(pairs)


@cache
def _drawn(experts: int, top_k: int, ep: int, tokens: int, exponent: float) -> tuple[float, float]:
    """Return the active experts and pairs of the busiest rank, the mean of some draws."""
    total, places = tokens * top_k, np.random.default_rng(tokens).random((DRAWS, experts))
    least, most = (1, 0.8 * tokens) if total > experts else (0.01, 2)
    power = 1 - exponent
    drawn = ((most**power - least**power) * places + least**power) ** (1 / power)
    loads = np.minimum(np.round(drawn / drawn.sum(axis=1, keepdims=True) * total), tokens)
    ranks = loads.reshape(DRAWS, ep, experts // ep)
    for each in ranks:
        _make_up(each, int(total - each.sum()), tokens)
    busiest = ranks[np.arange(DRAWS), ranks.sum(axis=2).argmax(axis=1)]
    return float((busiest > 0).sum(axis=1).mean()), float(busiest.sum(axis=1).mean())


def _make_up(ranks: Float64, missing: int, most: int) -> None:
    """Add what rounding left out to each rank's idlest expert in turn, or take it from the busiest."""
    sign = 1 if missing > 0 else -1
    heaps = [[(sign * load, place) for place, load in enumerate(loads)] for loads in ranks.tolist()]
    for heap in heaps:
        heapify(heap)
    for turn in range(abs(missing)):
        heap = heaps[turn % len(heaps)]
        if heap[0][0] >= sign * most > 0:
            heap = min(heaps, key=lambda each: each[0][0])
        load, place = heap[0]
        heapreplace(heap, (load + 1, place))
    for loads, heap in zip(ranks, heaps, strict=True):
        for load, place in heap:
            loads[place] = sign * load
