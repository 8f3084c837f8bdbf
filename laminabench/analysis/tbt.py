"""Time between tokens, exact for every token, without looking at tokens one by one.

The requests that run both in an iteration of a batch and in the one before it get their tokens at the ends
of the two: `size - joined` tokens with the same gap. A request that was preempted, or interrupted with the
whole replay, has one gap for each time: from the end of its last iteration before to the end of its first one
after. A first token has no gap.

Where only a client saw the tokens, each chunk of a request has a gap since the one before it. That is the
gap of the chunk's first token; the others in it came with it, so theirs is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.distribution import Distribution, column_ticks, distribution
from laminabench.analysis.streams import Chunks, Observed, observed_of, rows_of_batches
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import Ticks, ticks

MOST_AT_ONCE = 1 << 30


@dataclass(frozen=True, slots=True)
class Lane:
    """The iterations of one batch in their order: row k is iteration k."""

    end: Ticks
    # Requests that ran in this iteration and in the one before it.
    stayed: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Alone:
    """Gaps that one request has by itself: at each resumption, or with each chunk that a client saw."""

    request: NDArray[np.int64]
    end: Ticks  # when the token came
    gap: Ticks
    count: NDArray[np.int32]  # how many of its tokens have this gap; 0 of a first chunk, whose gap is -1


@dataclass(frozen=True, slots=True)
class Tokens:
    """Arrival times of a run's tokens: by batch, and those whose gap no other request shares."""

    lanes: tuple[Lane, ...]
    alone: Alone


def tokens_of(outcome: Outcome, observed: Observed | None = None) -> Tokens:
    """Return the iterations sorted into batches, or the chunks into requests, in ticks.

    `observed` is `observed_of(outcome)`, if the caller has it already.
    """
    observed = observed or observed_of(outcome)
    if observed is not None:
        return Tokens((), _chunked(observed.chunks))
    lanes = tuple(_lane(outcome.iterations, rows) for rows in rows_of_batches(outcome.iterations["batch"]))
    alone = [_resumed(outcome.stints, lanes)]
    if outcome.gaps is not None:
        request, at_s, gap_s = (outcome.gaps[name] for name in ("request", "at_s", "gap_s"))
        alone.append(Alone(request, ticks(at_s), ticks(gap_s), np.ones(len(request), np.int32)))
    if outcome.tally is not None:
        alone.append(_tallied(outcome.tally, outcome.end_s))
    return Tokens(lanes, _together(alone))


@dataclass(frozen=True, slots=True)
class Gaps:
    """Ends and lengths of gaps, and how many tokens (at least one) have each."""

    end: Ticks
    gap: Ticks
    count: NDArray[np.int32]


def gaps_of(tokens: Tokens, window: Window | None = None) -> Gaps:
    """Return every gap with its time; `tbt` takes less memory where only lengths count."""
    lanes, alone = tokens.lanes, tokens.alone
    end = np.concatenate([*(lane.end[1:] for lane in lanes), alone.end])
    gap = np.concatenate([*(np.diff(lane.end) for lane in lanes), alone.gap])
    count = np.concatenate([*(lane.stayed[1:] for lane in lanes), alone.count])
    some = count > 0
    if window is not None:
        some &= (end > window.start) & (end <= window.end)
    return Gaps(end[some], gap[some], count[some])


def tbt(tokens: Tokens, window: Window | None = None) -> Distribution:
    """Return the gaps in ticks (in the window), each weighted by the tokens that came after it."""
    gaps: list[Ticks] = []
    weights: list[NDArray[Any]] = []
    for lane in tokens.lanes:
        first, last = 1, len(lane.end)
        if window is not None:
            first = max(1, int(np.searchsorted(lane.end, window.start, side="right")))
            last = int(np.searchsorted(lane.end, window.end, side="right"))
        if first >= last:
            continue
        stayed = lane.stayed[first:last]
        # With no request in both iterations there is no gap, and often a long pause.
        some = stayed > 0
        gaps.append(np.diff(lane.end[first - 1 : last])[some])
        weights.append(stayed[some])
    alone = tokens.alone
    if len(alone.gap):
        inside = alone.count > 0
        if window is not None:
            inside &= (alone.end > window.start) & (alone.end <= window.end)
        gaps.append(alone.gap[inside])
        weights.append(alone.count[inside])
    if not gaps:
        return distribution(np.zeros(0, np.int64), np.zeros(0, np.int32))
    if len(gaps) == 1:
        return distribution(gaps[0], weights[0])
    # Free the parts before the concatenation is sorted.
    values = np.concatenate(gaps)
    gaps.clear()
    counts = np.concatenate(weights)
    weights.clear()
    return distribution(values, counts)


def _lane(iterations: Columns, rows: NDArray[np.intp]) -> Lane:
    if len(rows) == len(iterations["batch"]):
        columns = iterations
    else:
        names = ("iteration", "start_s", "duration_s", "size", "joined")
        columns = {name: iterations[name][rows] for name in names}
    assert not len(rows) or (int(columns["iteration"][0]), int(columns["iteration"][-1])) == (
        0,
        len(rows) - 1,
    )
    end = column_ticks(columns["start_s"])
    end += column_ticks(columns["duration_s"])
    return Lane(end, (columns["size"] - columns["joined"]).astype(np.int32, copy=False))


def _resumed(stints: Columns, lanes: tuple[Lane, ...]) -> Alone:
    # A request's stints are listed in their order, but not next to each other.
    order = np.argsort(stints["request"], kind="stable")
    request = stints["request"][order]
    batch, first, last = (stints[name][order] for name in ("batch", "first_iteration", "last_iteration"))
    began, ended = np.empty(len(request), np.int64), np.empty(len(request), np.int64)
    for j, lane in enumerate(lanes):
        members = batch == j
        began[members], ended[members] = lane.end[first[members]], lane.end[last[members]]
    next_of_same = np.flatnonzero(request[1:] == request[:-1]) + 1
    end = began[next_of_same]
    once = np.ones(len(end), np.int32)
    return Alone(request[next_of_same], end, end - ended[next_of_same - 1], once)


def _tallied(tally: Mapping[str, Any], end_s: float) -> Alone:
    """Return gaps by class, of no request in particular; split so that counts fit 32 bits."""
    parts = -(-tally["gap_tokens"] // MOST_AT_ONCE)
    tokens = np.repeat(tally["gap_tokens"] // parts, parts)
    tokens[np.cumsum(parts) - 1] += tally["gap_tokens"] % parts
    gap = ticks(np.repeat(tally["gap_s"], parts))
    return Alone(np.full(len(gap), -1), np.full(len(gap), ticks(end_s)), gap, tokens.astype(np.int32))


def _chunked(chunks: Chunks) -> Alone:
    first_tokens = Alone(chunks.request, chunks.end, chunks.gap, (chunks.gap >= 0).astype(np.int32))
    more = np.flatnonzero(chunks.tokens > 1)
    if not len(more):
        return first_tokens
    none = np.zeros(len(more), np.int64)
    return _together(
        [first_tokens, Alone(chunks.request[more], chunks.end[more], none, chunks.tokens[more] - 1)]
    )


def _together(some: list[Alone]) -> Alone:
    if len(some) == 1:
        return some[0]
    names = ("request", "end", "gap", "count")
    return Alone(*(np.concatenate([getattr(one, name) for one in some]) for name in names))
