"""How many batches suit a layout: measured, by running each number that its workers allow for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lamina.cluster.layout import Layout
from lamina.pipeline import BatchDelta, EngineError, Joined
from lamina.pipeline.batch_delta import NO_LOGPROBS, NOBODY

if TYPE_CHECKING:
    from lamina.cluster.core import ClusterCore

ITERATIONS = 5  # of which the first one touches all memory, and is not counted


@dataclass(frozen=True)
class Trial:
    """What a number of batches came to."""

    batches: int
    slice_s: float  # t_m
    attention_s: float  # t_a
    round_s: float  # of one slice and one attention of every batch, by these two

    @staticmethod
    def of(batches: int, places: int, slice_s: float, attention_s: float) -> Trial:
        """A round takes as long as its busiest worker, and no less than a batch needs for itself."""
        busiest = max(batches * slice_s / places, batches * attention_s)
        return Trial(batches, slice_s, attention_s, max(busiest, slice_s + attention_s))


def candidates(layout: Layout) -> Iterator[Layout]:
    """The same workers with one batch, and with as many as there can be replicas for."""
    for batches in range(1, layout.model_workers + 2):
        if layout.pipelining == "serial" and batches > 1:
            return
        try:
            yield replace(layout, batches=batches)
        except EngineError:
            continue  # the workers do not divide into that many replicas


def settle(
    layout: Layout, start: Callable[[Layout], ClusterCore], rows: int
) -> tuple[Layout, tuple[Trial, ...]]:
    """The layout with the number of batches that makes a token's round shortest, and what was measured."""
    result: dict[int, tuple[Layout, Trial]] = {}
    refused: EngineError | None = None
    for one in candidates(layout):
        try:
            core = start(one)
        except EngineError as error:  # heads that do not divide so, say
            refused = error
            continue
        try:
            trial = _run(core, rows)
        finally:
            core.close()
        result[trial.batches] = one, trial
    if not result:
        raise refused or EngineError(
            "layout-no-batches", "no number of batches goes with these workers: give one"
        )
    # All of them run the same sequences, so that rounds can be compared. Of equal ones the simplest.
    best, _ = min(result.values(), key=lambda pair: (pair[1].round_s, pair[1].batches))
    return best, tuple(trial for _, trial in result.values())


def _run(core: ClusterCore, rows: int) -> Trial:
    """Some iterations of as many sequences as there may be, as long as the memory has room for."""
    schedule, batches = core.schedule, core.batches
    # Everybody's first tokens have to fit, and those that iterations add.
    rows = max(batches, min(rows, core.pools * (core.pool_tokens // (1 + ITERATIONS))))
    most = core.pool_tokens // -(-rows // core.pools) - ITERATIONS
    tokens = max(1, min(most, core.facts.max_positions - ITERATIONS))
    for batch in range(batches):
        names = np.arange(batch, rows, batches, dtype=np.int64)
        core.launch(batch, BatchDelta(joined=_made_up(names, tokens, core.pools)), len(names))
    for _ in range(ITERATIONS - 1):
        for batch in range(batches):
            core.land(batch)
            core.launch(batch, BatchDelta(), len(range(batch, rows, batches)))
    for batch in range(batches):
        core.land(batch)
    measured = core.records().of_iterations
    counted = measured.iteration > 0
    slice_s = float(np.median(measured.model_s[counted])) / schedule.slices
    attention_s = float(np.median(measured.attention_s[counted])) / (schedule.slices - 1)
    return Trial.of(batches, schedule.places, slice_s, attention_s)


def _made_up(names: np.ndarray[tuple[int], np.dtype[np.int64]], tokens: int, pools: int) -> Joined:
    count = len(names)

    def column(value: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.full(count, value, np.int64)

    return Joined(
        name=names,
        token=column(0),
        position=column(tokens),
        parent=column(NOBODY),
        shared=column(0),
        pool=names % pools,
        made=column(0),
        top_k=column(0),
        most=column(NO_LOGPROBS),
        seed=np.zeros(count, np.uint64),
        temperature=np.zeros(count, np.float32),
        top_p=np.ones(count, np.float32),
    )
