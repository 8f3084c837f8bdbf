"""What a simulation gives back: tables of requests, iterations, stints and recorded work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]

# Recorded work of the attention workers; model replicas are 0 and up.
ATTENTION = -1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Columns by name, as docs/simulator.md defines them; times in seconds."""

    # arrival_s admitted_s first_token_s finished_s first_iteration last_iteration batch preemptions;
    # NaN or -1 where it never came to that. One row a request, in the trace's order.
    requests: Columns
    # batch iteration start_s duration_s size joined kv_tokens model_s attention_s network_s host_s
    iterations: Columns
    # request batch first_iteration last_iteration: uninterrupted stretches of requests that ran in several.
    stints: Columns
    # batch worker iteration cycle slice start_s end_s: recorded work, if any was asked for.
    timeline: Columns
    replica_busy_s: NDArray[np.float64]
    attention_busy_s: float
    end_s: float
    # When the queue was first empty after requests had come: the end of the saturated window.
    queue_empty_s: float
    peak_kv_tokens: int
    kv_capacity_tokens: int
