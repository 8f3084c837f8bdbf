"""The paper's dynamic scenario as a trace: a batch that stays full while its requests end at random."""

from __future__ import annotations

import heapq

import numpy as np

from laminabench.traces.table import Trace, TraceMeta

ITERATIONS, BATCH, LONGEST = 128, 32, 2048


def dynamic_trace(seed: int, iterations: int = ITERATIONS, batch: int = BATCH) -> Trace:
    """Requests of 1 to 2048 tokens, each as likely, of which one in 128 ends with each iteration.

    One that ends is replaced at once. Replayed saturated, first come, first served, with `max_num_seqs` =
    `batch`, it is exactly so many iterations of a full batch: whatever would have gone on ends with the last.
    """
    rng = np.random.default_rng(seed)
    prompts: list[int] = []
    outputs: list[int] = []
    # The iteration with which each place in the batch is free for the next row.
    free = [0] * batch
    while (begins := free[0]) < iterations:
        lasts = min(int(rng.geometric(1 / ITERATIONS)), iterations - begins)
        prompts.append(int(rng.integers(1, LONGEST, endpoint=True)))
        outputs.append(lasts)
        heapq.heapreplace(free, begins + lasts)
    return Trace(
        np.zeros(len(prompts)),
        np.array(prompts, np.int32),
        np.array(outputs, np.int32),
        TraceMeta(f"h2m2-dynamic-{seed}", origin="drawn from H2M2's distributions", has_arrivals=False),
    )
