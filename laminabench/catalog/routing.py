"""Number of active experts of a rank, and of the (token, expert) pairs that it computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from heapq import heapify, heapreplace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laminabench.catalog.cost_terms import Float64
from laminabench.util import safe_parse
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

DRAWS = 16  # of loads, whose mean is taken
# Popularity of experts: a power law with this exponent between these bounds. With it the measured times of
# MegaMoE for `power_law_sampled_1.9` (ai-dynamo/aiconfigurator, SGLang 0.5.10) follow from those for balanced
# loads within 4 %.
POPULARITY, LEAST_POPULAR, MOST_POPULAR = 1.9, 1.0, 300.0
LAYERS = 128  # whose popularities are drawn: the mean of the active experts is known within 2 %
MOST_BUSY = 4096  # pairs of a rank over the mean: no more than there are ranks
MOST_COMMENTS = 10  # of a file, that say what it is from
MOST_STEPS = 64  # of a size, that a measured curve is the mean of
MOST_ROUTED = 512  # tokens that are routed; the pairs of more are in proportion
MOST_DRAWN = 131_072  # the same of drawn loads

Int64 = NDArray[np.int64]


class ExpertLoad(NamedTuple):
    """Load of one rank in a layer; with skewed loads, of the busiest rank."""

    active: Float64
    pairs: Float64


class RoutingCurve(NamedTuple):
    """Load of the busiest rank as it was measured, by a step's tokens: shares of its experts, and of a mean.

    `active` is the share of the rank's experts with a token, `busiest` its pairs over those of a mean rank.
    `ranks`, if given, is the number of ranks of each point. `source` is the file, with its first comments.
    """

    tokens: tuple[float, ...]
    active: tuple[float, ...]
    busiest: tuple[float, ...]
    ranks: tuple[int, ...] = ()
    source: str = ""

    def load(self, experts: int, top_k: int, ep: int, tokens: ArrayLike) -> ExpertLoad:
        """Return the load; between points by the logarithm of tokens, beyond them as at the nearest."""
        known, shares, busiest = np.array(self[:3], np.float64)
        if self.ranks:
            of_ep = np.array(self.ranks) == ep
            if not of_ep.any():
                raise UserError(
                    "routing-no-ranks",
                    f"--routing: the file has no rows of experts over {ep} ranks, only over "
                    f"{', '.join(map(str, sorted(set(self.ranks))))}; choose a layout with one of them",
                )
            known, shares, busiest = known[of_ep], shares[of_ep], busiest[of_ep]
        rows = np.maximum(np.asarray(tokens, np.float64), 1.0)
        at, known = np.log(rows), np.log(known)
        pairs = np.interp(at, known, busiest) * rows * top_k / ep
        active = np.interp(at, known, shares) * experts / ep
        return ExpertLoad(np.minimum(active, np.maximum(pairs, 1.0)), pairs)


COLUMNS = ("tokens", "active", "busiest")


def read_routing(path: Path) -> RoutingCurve:
    """Return the curve of a CSV file with the columns of COLUMNS; raise a UserError for what is wrong.

    A column `ranks` may be before them. Lines that begin with # are comments.
    """

    def wrong(what: str) -> UserError:
        return UserError(
            "routing-bad-file",
            f"--routing {path}: {what}; write skewed, uniform, or a CSV file with the columns "
            f"{','.join(COLUMNS)}, as 12,0.284,1.3",
        )

    try:
        text = safe_parse.text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise wrong("it cannot be read") from error
    lines = [(number, line) for number, line in enumerate(text, 1) if not line.startswith("#")]
    comments = [line.lstrip("# ") for line in text if line.startswith("#")]
    columns = tuple(lines[0][1].replace(" ", "").split(",")) if lines else ()
    by_rank = columns == ("ranks", *COLUMNS)
    if not by_rank and columns != COLUMNS:
        raise wrong(f"line {lines[0][0] if lines else 1} does not name the columns")
    points: list[tuple[float, float, float]] = []
    ranks: list[int] = []
    last: dict[int, float] = {}
    for number, line in lines[1:]:
        try:
            cells = line.split(",")
            of = int(cells.pop(0)) if by_rank else 0
            tokens, active, busiest = map(float, cells)
        except ValueError as error:
            raise wrong(f"line {number} is not {len(columns)} numbers") from error
        rising = last.get(of, 0.0) < tokens < math.inf
        if not (rising and of >= by_rank and 0 < active <= 1 and 1 <= busiest <= MOST_BUSY):
            raise wrong(
                f"line {number} needs more tokens than the line before, 0 < active <= 1, "
                f"1 <= busiest <= {MOST_BUSY}"
            )
        last[of] = tokens
        points.append((tokens, active, busiest))
        ranks.append(of)
    if not points:
        raise wrong("it has no rows")
    known, shares, most = zip(*points, strict=True)
    source = "; ".join([path.name, *comments[:MOST_COMMENTS]])
    return RoutingCurve(known, shares, most, tuple(ranks) if by_rank else (), source)


def write_routing(curve: RoutingCurve, path: Path, comments: Sequence[str]) -> None:
    """Write a file that `read_routing` reads."""
    rows = zip(curve.ranks, *curve[:3], strict=True)
    lines = [f"# {comment}" for comment in comments] + [",".join(("ranks", *COLUMNS))]
    lines += [f"{of},{tokens:.0f},{active:.5g},{max(busiest, 1):.5g}" for of, tokens, active, busiest in rows]
    with replacing(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def counted(chosen: Sequence[Int64], experts: int) -> RoutingCurve:
    """Return the curve of tokens by the experts that were chosen for them, an array of rows a layer.

    A step of n tokens has n of them at random, as the requests of a decode step have nothing to do with each
    other. The means are over layers and steps. Ranks have experts that follow each other, as servers place
    them, for every number of ranks that divides the experts.
    """
    total = len(chosen[0])
    order = np.random.default_rng(0).permutation(total)
    sizes = sorted({*(2**power for power in range(total.bit_length())), total})
    degrees = [ranks for ranks in range(1, experts + 1) if experts % ranks == 0]
    loads = np.zeros((len(degrees), len(sizes), 2))
    for layer in chosen:
        for column, size in enumerate(sizes):
            steps = min(total // size, MOST_STEPS)
            routed = layer[order[: steps * size]].reshape(steps, -1)
            # Experts of the first step, of the second, and so on.
            routed = routed + experts * np.arange(steps)[:, None]
            pairs = np.bincount(routed.ravel(), minlength=steps * experts)
            for row, ranks in enumerate(degrees):
                by_rank = pairs.reshape(steps, ranks, experts // ranks)
                busiest = by_rank[np.arange(steps), by_rank.sum(axis=2).argmax(axis=1)]
                most = busiest.sum(axis=1) * ranks / (size * layer.shape[1])
                loads[row, column] += (busiest > 0).mean(), most.mean()
    active, most = (loads / len(chosen)).reshape(-1, 2).T.tolist()
    of = tuple(int(each) for each in np.repeat(degrees, len(sizes)))
    return RoutingCurve(tuple(map(float, sizes)) * len(degrees), tuple(active), tuple(most), of)


def uniform(experts: int, top_k: int, ep: int, tokens: ArrayLike) -> ExpertLoad:
    """Return the average load where every expert is equally likely."""
    rows = np.asarray(tokens, np.float64)
    return ExpertLoad(experts / ep * (1 - (1 - top_k / experts) ** rows), rows * top_k / ep)


def skewed(experts: int, top_k: int, ep: int, tokens: ArrayLike, exponent: float) -> ExpertLoad:
    """Return loads that follow a power law, as aiconfigurator draws them for its tables."""
    rows = np.asarray(tokens, np.int64)
    drawn = np.minimum(rows, MOST_DRAWN)
    loads = [_drawn(experts, top_k, ep, each, exponent) for each in drawn.ravel().tolist()]
    active, pairs = np.array(loads, np.float64).reshape(-1, 2).T
    scale = np.where(rows > drawn, rows / np.maximum(drawn, 1), 1.0)
    return ExpertLoad(active.reshape(rows.shape), pairs.reshape(rows.shape) * scale)


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
    layers = _choices(experts, top_k)[:, :tokens].reshape(LAYERS, -1)
    pairs = np.bincount((layers + experts * np.arange(LAYERS)[:, None]).ravel(), minlength=LAYERS * experts)
    ranks = pairs.reshape(LAYERS, ep, experts // ep)
    busiest = ranks[np.arange(LAYERS), ranks.sum(axis=2).argmax(axis=1)]
    return float((busiest > 0).sum(axis=1).mean()), float(busiest.sum(axis=1).mean())


@cache
def _choices(experts: int, top_k: int) -> Int64:
    """Return the experts of MOST_ROUTED tokens in LAYERS layers, the same for whatever number of tokens.

    So a step with more tokens has no fewer active experts by chance.
    """
    random, power = np.random.default_rng(0), 1 - POPULARITY
    least, most = LEAST_POPULAR**power, MOST_POPULAR**power
    chosen = np.empty((LAYERS, MOST_ROUTED, top_k), np.int64)
    for layer in chosen:
        popularity = ((most - least) * random.random(experts) + least) ** (1 / power)
        # The first to arrive of Poisson processes: without replacement, in proportion to popularity.
        arrivals = random.standard_exponential((MOST_ROUTED, experts), np.float32) / popularity
        layer[:] = np.argpartition(arrivals, top_k - 1, axis=1)[:, :top_k]
    return chosen


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
