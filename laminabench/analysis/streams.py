"""Arrival times of tokens: at the ends of iterations, or in the chunks that a client saw, by request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.distribution import chunks, column_ticks
from laminabench.sim.outcome import Columns, Outcome
from laminabench.sim.spec import Ticks, ticks

# Up to this many batches, one search each is faster than sorting.
FEW_BATCHES = 8


class Chunks(NamedTuple):
    """Chunks by request, those of one request in the order in which they came."""

    request: NDArray[np.int64]
    end: Ticks  # when it came
    gap: Ticks  # since the request's chunk before it; -1 of its first
    tokens: NDArray[np.int32]


class Streams(NamedTuple):
    """First and last chunk of each request; -1 if it had none."""

    first: Ticks
    last: Ticks
    tokens: NDArray[np.int64]  # in all of them


class Observed(NamedTuple):
    chunks: Chunks
    streams: Streams


def observed_of(outcome: Outcome) -> Observed | None:
    """Return the chunks of a replay that only a client saw, else None. Slow: pass the result on."""
    if outcome.chunks is None:
        return None
    chunks = _chunks(outcome.chunks)
    return Observed(chunks, _streams(chunks, len(outcome.requests["finished_s"])))


def _chunks(table: Columns) -> Chunks:
    order = _by_request(table["request"])
    request, end = table["request"][order], column_ticks(table["at_s"])[order]
    gap = np.full(len(end), -1, np.int64)
    np.copyto(gap[1:], end[1:] - end[:-1], where=request[1:] == request[:-1])
    return Chunks(request, end, gap, table["tokens"][order])


def _streams(chunks: Chunks, requests: int) -> Streams:
    first, last = np.full((2, requests), -1, np.int64)
    tokens = np.zeros(requests, np.int64)
    begin = np.flatnonzero(chunks.gap < 0)
    if len(begin):
        row, until = chunks.request[begin], np.append(begin[1:], len(chunks.gap))
        first[row], last[row] = chunks.end[begin], chunks.end[until - 1]
        tokens[row] = np.add.reduceat(chunks.tokens, begin, dtype=np.int64)
    return Streams(first, last, tokens)


def _by_request(request: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stable order by request: one sorted array, many times faster than argsort."""
    bits = len(request).bit_length()
    packed = (request.astype(np.int64) << bits) | np.arange(len(request))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def arrivals(outcome: Outcome) -> Iterator[tuple[Ticks, NDArray[np.int32]]]:
    """Yield times and numbers of tokens, some rows at a time, in the order of their table."""
    if outcome.chunks is not None:
        at_s, tokens = outcome.chunks["at_s"], outcome.chunks["tokens"]
        for rows in chunks(len(at_s)):
            yield ticks(at_s[rows]), tokens[rows]
        return
    if outcome.tally is not None:  # a tally has no times
        yield ticks(np.array([outcome.end_s])), np.array([outcome.tally["tokens"]])
    start_s, duration_s = outcome.iterations["start_s"], outcome.iterations["duration_s"]
    for rows in chunks(len(start_s)):
        yield ticks(start_s[rows]) + ticks(duration_s[rows]), outcome.iterations["size"][rows]
    if outcome.pool is not None:
        made = outcome.pool["made"] > 0
        ends = ticks(outcome.pool["start_s"][made]) + ticks(outcome.pool["duration_s"][made])
        yield ends, outcome.pool["made"][made]


def all_arrivals(outcome: Outcome) -> tuple[Ticks, NDArray[np.int32]]:
    """Return all arrivals of tokens at once, to follow them over time."""
    parts = list(arrivals(outcome))
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    at, tokens = zip(*parts, strict=True)
    return np.concatenate(at), np.concatenate(tokens)


def rows_of_batches(batch: NDArray[np.int32]) -> list[NDArray[np.intp]]:
    """Return the rows of each batch, in their order."""
    batches = int(batch.max()) + 1 if len(batch) else 0
    if batches <= FEW_BATCHES:
        return [np.flatnonzero(batch == j) for j in range(batches)]
    order = np.argsort(batch, kind="stable")
    return np.split(order, np.searchsorted(batch[order], np.arange(1, batches)))
