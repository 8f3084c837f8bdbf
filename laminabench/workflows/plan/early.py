"""Early detection, from the first part of a trace, that an open replay misses a limit.

The next request is unknown to the scheduler: until then the part's replay is the whole trace's.
"""

from __future__ import annotations

import math

import numpy as np

from laminabench.analysis.tbt import tbt, tokens_of
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import TICKS_PER_S, Spec, ticks
from laminabench.traces.table import Trace
from laminabench.workflows.plan.question import Slo

# Of the trace's requests, the first one in so many: a third of a replay more for candidates that pass both.
PARTS = (16, 4)


def misses(trace: Trace, spec: Spec, slo: Slo) -> bool:
    """Return whether more are late in one of the parts than may be in the full trace."""
    return any(_misses(trace, len(trace) // part, spec, slo) for part in PARTS if len(trace) >= part)


def _misses(trace: Trace, requests: int, spec: Spec, slo: Slo) -> bool:
    outcome = simulate(trace.first(requests), spec, Offered("open"))
    until_s = float(trace.arrival_s[requests])
    gaps = tbt(tokens_of(outcome), Window(start_s=0.0, end_s=until_s, kind="arrivals"))
    most_gaps = int(np.sum(trace.output_tokens, dtype=np.int64)) - len(trace)
    return (
        gaps.count - gaps.at_most(_ticks(slo.tbt_s)) > most_gaps // 100
        or _late(outcome, "first_token_s", until_s, slo.ttft_s) > len(trace) // 100
        or _late(outcome, "admitted_s", until_s, slo.queueing_s) > len(trace) // 100
    )


def _late(outcome: Outcome, moment: str, until_s: float, limit_s: float) -> int:
    """Count requests that had waited for longer by then; rejected ones do not wait."""
    came_s = outcome.requests[moment]
    some = np.isfinite(came_s)
    waited = ticks(np.minimum(came_s[some], until_s)) - ticks(outcome.requests["arrival_s"][some])
    return int(np.count_nonzero(waited > _ticks(limit_s)))


def _ticks(limit_s: float) -> int:
    """Return the limit in ticks, so that no value above it is within."""
    return math.ceil(min(limit_s * TICKS_PER_S, 2.0**62))
