"""The steady window: the part of a replay that the headline numbers are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from laminabench.analysis.exact import chunks
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Mode, ticks

Kind = Literal["queue_never_empty", "concurrency_held", "arrivals", "whole_run"]

# A window with fewer iterations says nothing about a steady state.
FEWEST_ITERATIONS = 10


@dataclass(frozen=True, slots=True)
class Window:
    """What happens after start_s and up to and including end_s."""

    start_s: float
    end_s: float
    kind: Kind

    @property
    def start(self) -> int:
        return int(ticks(self.start_s))

    @property
    def end(self) -> int:
        return int(ticks(self.end_s))

    @property
    def ticks(self) -> int:
        return self.end - self.start

    @property
    def fell_back(self) -> bool:
        """There was no steady window, so this is the whole run (which nobody asks `window` for)."""
        return self.kind == "whole_run"

    def describe(self) -> dict[str, float | str]:
        return {"start_s": self.start_s, "end_s": self.end_s, "kind": self.kind}


def whole_run(outcome: Outcome) -> Window:
    return Window(0.0, outcome.end_s, "whole_run")


def window(outcome: Outcome, mode: Mode) -> Window:
    """The steady window of a replay in this mode; the whole run if that window is next to nothing.

    saturate: until the queue was first empty. closed: until the last request entered. open: from the first
    arrival to the last.
    """
    if mode == "saturate":
        found = Window(0.0, outcome.queue_empty_s, "queue_never_empty")
    else:
        arrival_s = outcome.requests["arrival_s"]
        if mode == "closed":
            arrival_s = arrival_s[outcome.requests["first_iteration"] >= 0]
        if not len(arrival_s):
            return whole_run(outcome)
        first_s, last_s = float(arrival_s.min()), float(arrival_s.max())
        found = (
            Window(0.0, last_s, "concurrency_held")
            if mode == "closed"
            else Window(first_s, last_s, "arrivals")
        )
    return found if _iterations_in(outcome, found) >= FEWEST_ITERATIONS else whole_run(outcome)


def _iterations_in(outcome: Outcome, found: Window) -> int:
    start_s, duration_s = outcome.iterations["start_s"], outcome.iterations["duration_s"]
    count = 0
    for rows in chunks(len(start_s)):
        end = ticks(start_s[rows]) + ticks(duration_s[rows])
        count += int(np.count_nonzero((end > found.start) & (end <= found.end)))
    return count
