"""Measurement of the time between slices and attention with workers: channels, and the front end's part."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lamina.cluster import Layout, Workplace
from lamina.pipeline import Records
from lamina.serve import Engine, Sampling
from laminabench.calibrate.rounds import Point
from laminabench.systems.live.lamina.starting import refused

BATCHES = (1, 4, 16, 64)
PROMPT = 16
FEWEST_STEPS = 4
MOST_STEPS = 24


def measure(
    source: Any, step_s: Mapping[int, float], seconds: float, ray: str | None = None
) -> dict[Point, list[float]]:
    """Measure a model worker and an attention worker that take turns, by batch size.

    `trip`: from the end of a slice to attention and from its end to the next slice. `boundary`: from the end
    of an iteration to the beginning of the next. `slices`: all of them. `attention`: a layer's. Layers are
    represented by their median.

    `step_s` are the seconds of an iteration by rows, to fit into about `seconds`. The workers are processes,
    or actors of the Ray cluster at the address `ray`.
    """
    batches = [batch for batch in BATCHES if batch in step_s]
    each = seconds / len(batches)
    steps = {b: int(min(max(each / step_s[b], FEWEST_STEPS), MOST_STEPS)) for b in batches}
    tokens = max(batch * (PROMPT + count + 1) for batch, count in steps.items())
    layout = Layout(pipelining="serial")
    sizes: dict[int, int] = {}  # by iteration
    with refused(), contextlib.ExitStack() as made:
        engine = made.enter_context(
            Engine(
                source,
                layout=layout,
                machine=None if ray is None else made.enter_context(_cluster(ray)),
                dtype=torch.bfloat16,
                max_sequences=max(batches),
                kv_tokens=tokens,
                decode_only=True,
                load_format="dummy",
            )
        )
        for batch, count in steps.items():
            # One step more than counted: requests join in the first.
            sampling = Sampling(max_tokens=count + 1, ignore_eos=True)
            numbers = [engine.submit(PROMPT, sampling) for _ in range(batch)]
            while not engine.idle:
                step = engine.step()
                if not step.joined and step.size:
                    sizes[step.iteration] = step.size
            for number in numbers:
                engine.result(number)
        records = engine.records()
    assert records is not None
    return _between(records, sizes)


def _cluster(address: str) -> contextlib.AbstractContextManager[Workplace]:
    from lamina.cluster.ray import RayMachine

    return RayMachine(address)


def _between(records: Records, sizes: Mapping[int, int]) -> dict[Point, list[float]]:
    of_model = np.array(records.replica_of)[records.worker] >= 0
    points: dict[Point, list[float]] = defaultdict(list)
    ended = None
    for iteration in np.unique(records.iteration).tolist():
        here = records.iteration == iteration
        slices, attention = (records.where(here & side) for side in (of_model, ~of_model))
        if iteration in sizes:
            there = attention.start_ns - slices.end_ns[:-1]
            back = slices.start_ns[1:] - attention.end_ns
            size = sizes[iteration]
            points["trip", size].append(float(np.median(there + back)) / 1e9)
            points["slices", size].append(float(np.sum(slices.end_ns - slices.start_ns)) / 1e9)
            points["attention", size].append(float(np.median(attention.end_ns - attention.start_ns)) / 1e9)
            if ended is not None:
                points["boundary", size].append((int(slices.start_ns[0]) - ended) / 1e9)
        ended = int(slices.end_ns[-1])
    return points
