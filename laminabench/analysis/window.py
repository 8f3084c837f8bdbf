"""The steady window: the part of a replay that the headline numbers are about."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.streams import arrivals
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Mode

# A window with fewer ends of iterations, or fewer chunks, says nothing about a steady state.
FEWEST_MOMENTS = 10


def whole_run(outcome: Outcome) -> Window:
    return Window(start_s=0.0, end_s=outcome.end_s, kind="whole_run")


def window(outcome: Outcome, mode: Mode) -> Window:
    """Return the steady window of a replay in this mode.

    The full run if that window is too short, or if only a tally of iterations was stored.

    saturate: until the queue was first empty. closed: until the last request entered. open: from the first
    arrival to the last.
    """
    if outcome.tally is not None:
        return whole_run(outcome)
    if mode == "saturate":
        steady = Window(start_s=0.0, end_s=outcome.queue_empty_s, kind="queue_never_empty")
    else:
        arrival_s = outcome.requests["arrival_s"]
        if mode == "closed" or outcome.calls is not None:
            arrival_s = arrival_s[_entered(outcome)]
        arrival_s = arrival_s[np.isfinite(arrival_s)]  # not all requests arrive in a Run that ended early
        if not len(arrival_s):
            return whole_run(outcome)
        first_s, last_s = float(arrival_s.min()), float(arrival_s.max())
        steady = (
            Window(start_s=0.0, end_s=last_s, kind="concurrency_held")
            if mode == "closed"
            else Window(start_s=first_s, end_s=last_s, kind="arrivals")
        )
    moments = sum(np.count_nonzero((at > steady.start) & (at <= steady.end)) for at, _ in arrivals(outcome))
    return steady if moments >= FEWEST_MOMENTS else whole_run(outcome)


def _entered(outcome: Outcome) -> NDArray[np.bool_]:
    if outcome.calls is not None:
        sent: NDArray[np.bool_] = np.isfinite(outcome.calls["sent_s"])
        return sent
    ran: NDArray[np.bool_] = outcome.requests["first_iteration"] >= 0
    return ran
