"""How many batches suit a layout: measured, by running each number that its workers allow for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lamina.cluster.layout import Layout
from lamina.pipeline import BatchDelta, EngineError, Joined, Schedule
from lamina.pipeline.batch_delta import NO_LOGPROBS, NO_PARENT, Ints
from lamina.pipeline.records import Iterations

ITERATIONS = 5  # of which the first one touches all memory, and is not counted


@dataclass(frozen=True)
class Trial:
    """What a number of batches came to."""

    batches: int
    slice_s: float  # t_m
    attention_s: float  # t_a
    round_s: float  # of one slice and one attention of every batch, by these two

    @staticmethod
    def measured(iterations: Iterations, schedule: Schedule) -> Trial:
        """What the workers recorded, but for each batch's first iteration."""
        counted = iterations.iteration > 0
        slice_s = float(np.median(iterations.model_s[counted])) / schedule.slices
        attention_s = float(np.median(iterations.attention_s[counted])) / (schedule.slices - 1)
        # A round takes as long as its busiest worker, and no less than a batch needs for itself.
        batches = schedule.batches
        busiest = max(batches * slice_s / schedule.places, batches * attention_s)
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


def settle(layout: Layout, measure: Callable[[Layout], Trial]) -> tuple[Layout, tuple[Trial, ...]]:
    """The layout with the number of batches that makes a token's round shortest, and what was iterations."""
    trials: list[tuple[Trial, Layout]] = []
    refused: EngineError | None = None
    for candidate in candidates(layout):
        try:
            trials.append((measure(candidate), candidate))
        except EngineError as error:  # heads that do not divide so, say
            refused = error
    if not trials:
        raise refused or EngineError(
            "layout-no-batches", "no number of batches goes with these workers: give one"
        )
    # All of them run the same sequences, so that rounds can be compared. Of equal ones the simplest.
    _, best = min(trials, key=lambda pair: (pair[0].round_s, pair[0].batches))
    return best, tuple(trial for trial, _ in trials)


def made_up(names: Ints, tokens: int, pools: int) -> BatchDelta:
    """Sequences of so many tokens join, with KV of made-up content."""
    count = len(names)
    alike = {"token": 0, "position": tokens, "parent": NO_PARENT, "shared": 0, "made": 0, "top_k": 0}
    alike |= {"most": NO_LOGPROBS, "seed": 0, "temperature": 0, "top_p": 1}
    columns = {name: np.full(count, value, getattr(Joined(), name).dtype) for name, value in alike.items()}
    return BatchDelta(joined=Joined(name=names, pool=names % pools, **columns))
