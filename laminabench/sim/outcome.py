"""The outcome of a replay: tables of requests, and of iterations or of what a client observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]

# Recorded work of the attention workers; model replicas are 0 and up.
ATTENTION = -1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Columns by name, as runs/schema.py defines them; times in seconds.

    A replay that only a client saw has `chunks` and `calls`, and no iterations, stints or work.
    Its requests have a `status` and no batch, `arrival_s` is when they were due, and utilisation is NaN.
    """

    # arrival_s admitted_s first_token_s finished_s first_iteration last_iteration batch preemptions;
    # NaN or -1 where it never came to that. One row a request, in the trace's order.
    requests: Columns
    # batch iteration start_s duration_s size joined kv_tokens model_s attention_s network_s host_s
    iterations: Columns
    # request batch first_iteration last_iteration: uninterrupted stretches of requests that ran in several.
    stints: Columns
    # batch worker iteration cycle slice start_s end_s: recorded work, if requested.
    timeline: Columns
    replica_busy_s: NDArray[np.float64]
    attention_busy_s: float
    end_s: float
    # When the queue was first empty after requests had come: the end of the saturated window.
    queue_empty_s: float
    peak_kv_tokens: int
    kv_capacity_tokens: int
    # request at_s tokens: pieces of streams as they came to the client, in the order of at_s.
    chunks: Columns | None = None
    # due_s sent_s headers_s attempts status_code prompt_counted completion_counted even error; NaN or -1
    # where it never came to that. One row a request, in the trace's order.
    calls: Columns | None = None
    # What a board's memories hold, as in runs/schema.py: one row an iteration, in their order.
    memory: Columns | None = None
    # How many batches each instance has, where there are several.
    instance_batches: tuple[int, ...] = (1,)
    # engine start_s duration_s busy_s prompts made prompt_tokens: one row an iteration of devices that
    # compute prompts for others; how many end, and how many of these get their first token there.
    pool: Columns | None = None
    pool_engines: int | None = None  # of all instances, those that never had anything to do included
    # request at_s gap_s: before tokens whose gap `iterations` and `stints` do not show.
    gaps: Columns | None = None
    # Sums of iterations if their rows are not stored, over the whole run: gap_s and gap_tokens, how
    # many tokens came so long after the one before, to a thousandth; and iterations, tokens, prompt_tokens,
    # duration_s, model_s, attention_s, network_s, host_s, waiting_s and overlapped_s, each once a token.
    tally: Mapping[str, Any] | None = None
    # prompt_tokens: what an iteration computed of prompts, one row each; None where they were there already.
    prompts: Columns | None = None

    def __post_init__(self) -> None:
        assert (self.chunks is None) == (self.calls is None)


def no_timeline() -> Columns:
    """Return the timeline of a replay whose work was not recorded."""
    integers = {name: np.zeros(0, np.int64) for name in ("batch", "worker", "iteration", "cycle", "slice")}
    return {**integers, "start_s": np.zeros(0), "end_s": np.zeros(0)}
