"""The spread of work over instances behind a router, and over devices that compute prompts for others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laminabench.analysis import rates
from laminabench.analysis.distribution import total
from laminabench.runs.summary import PerInstance, PromptPool, Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import ticks


def instances_of(
    outcome: Outcome, lengths: rates.Lengths, window: Window, mean_batches: Sequence[float]
) -> PerInstance:
    """Return the numbers of each instance; `mean_batches` are those of all batches that ran.

    Where iterations were not stored, they are computed from the requests' times.
    """
    instances = len(outcome.instance_batches)
    of_batch = np.repeat(np.arange(instances), outcome.instance_batches)
    requests = outcome.requests
    here = np.flatnonzero(requests["batch"] >= 0)
    instance = of_batch[requests["batch"][here]]
    batches = [0.0] * instances
    if outcome.tally is None:
        columns = outcome.iterations
        ends = ticks(columns["start_s"]) + ticks(columns["duration_s"])
        inside = (ends > window.start) & (ends <= window.end)
        made = np.bincount(of_batch[columns["batch"][inside]], columns["size"][inside], minlength=instances)
        for number, size in zip(of_batch, mean_batches, strict=False):
            batches[number] += size
    else:
        made = np.bincount(instance, lengths.output_tokens[here], minlength=instances)
        there_s = requests["finished_s"][here] - requests["admitted_s"][here]
        there = np.bincount(instance, there_s, minlength=instances)
        batches = (there / outcome.end_s).tolist() if outcome.end_s else batches
    mean = sum(batches) / instances
    return PerInstance(
        requests=np.bincount(instance, minlength=instances).tolist(),
        throughput_tokens_per_s=[rates.per_second(some, window) for some in made.tolist()],
        mean_batch=batches,
        imbalance=max(batches) / mean if mean else None,
    )


def prompt_pool_of(outcome: Outcome, window: Window) -> PromptPool:
    """Return the prompt pool's numbers in the window; of an iteration cut by its edge, the part inside."""
    assert outcome.pool is not None
    columns = outcome.pool
    start = ticks(columns["start_s"])
    duration = ticks(columns["duration_s"])
    inside = rates.overlap(start, start + duration, window)
    share = inside / np.maximum(duration, 1)
    engines = outcome.pool_engines or 1 + int(columns["engine"].max(initial=-1))
    ended = (start + duration > window.start) & (start + duration <= window.end)
    tokens = total(columns["prompt_tokens"][ended])
    busy_s = float(np.sum(columns["busy_s"] * share))
    seconds = window.end_s - window.start_s
    return PromptPool(
        engines=engines,
        prompt_tokens_per_s=rates.per_second(tokens, window),
        busy_share=min(1.0, busy_s / (engines * seconds)) if engines and seconds else None,
    )
