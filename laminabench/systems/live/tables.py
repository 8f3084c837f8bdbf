"""The tables of a live replay, row by row from an engine's steps: the same columns as a simulation's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from laminabench.sim.outcome import Columns, Outcome, no_timeline
from laminabench.traces.table import Trace

_INTEGERS = {
    "batch": np.int32,
    "size": np.int32,
    "joined": np.int32,
    "iteration": np.int64,
    "kv_tokens": np.int64,
}
_COUNTED = ("batch", "iteration", "size", "kv_tokens")
_ITERATIONS = (*_INTEGERS, "start_s", "duration_s", "model_s", "attention_s", "host_s")


class Iteration(NamedTuple):
    """An iteration of a batch, with the rows of the trace that joined it, made room before it, or ended.

    Times are seconds since the replay began.
    """

    batch: int
    iteration: int  # of this batch; of a replay that was resumed, counted through
    size: int  # 0 if nothing ran
    kv_tokens: int
    start_s: float
    end_s: float
    joined: Sequence[int] = ()
    preempted: Sequence[int] = ()
    ended: Sequence[int] = ()
    model_s: float = float("nan")  # NaN: only the workers know
    attention_s: float = float("nan")
    host_s: float = 0.0
    peak_kv_tokens: int = 0
    # Where prompts are computed, each token that was made, and its row.
    token_rows: Sequence[int] = ()
    tokens: Sequence[int] = ()
    moved: Sequence[int] = ()  # they ran on an instance that is lost, and wait for another one


class Stint(NamedTuple):
    """A request that runs: since when, and how many tokens it had made before."""

    batch: int
    first_iteration: int
    made: int


class Tables:
    """The tables of a live replay, step by step."""

    def __init__(self, trace: Trace) -> None:
        rows = len(trace)
        self.waiting = 0
        self.finished = 0
        self.tokens = 0
        self.end_s = 0.0
        self.queue_empty_s: float | None = None
        self.running: dict[int, Stint] = {}  # by row
        self.iterations_of: dict[int, int] = {}  # how many, by batch
        self._requests: Columns = {
            name: np.full(rows, np.nan) for name in ("arrival_s", "admitted_s", "first_token_s", "finished_s")
        }
        self._requests |= {
            name: np.full(rows, -1, np.int64) for name in ("first_iteration", "last_iteration")
        }
        self._requests |= {"batch": np.full(rows, -1, np.int32), "preemptions": np.zeros(rows, np.int32)}
        self._iterations: dict[str, list[Any]] = {name: [] for name in _ITERATIONS}
        self._stints: list[tuple[int, int, int, int]] = []
        self._in_parts: set[int] = set()  # rows that have stints
        self._made: dict[int, int] = {}  # tokens of requests that ran and wait, by row

    def arrived(self, row: int, at_s: float, *, waits: bool = True) -> None:
        self._requests["arrival_s"][row] = at_s
        self.waiting += waits

    def admitted(self, row: int, at_s: float) -> None:
        """Note that its prompt was begun, some time before the iteration that it joins is added."""
        self._requests["admitted_s"][row] = at_s

    def made(self, row: int) -> int:
        """Return the tokens made of a request that runs or waits."""
        stint = self.running.get(row)
        if stint is None:
            return self._made.get(row, 0)
        return stint.made + self.iterations_of[stint.batch] - stint.first_iteration

    def add(self, event: Iteration) -> None:
        """Add an iteration of a batch whose earlier ones have been added."""
        for row in event.preempted:
            self._requests["preemptions"][row] += 1
            self._pause(row)
        for row in event.moved:
            self._pause(row)
        if event.size:
            self._ran(event)
        for row in event.ended:
            self._end(row, event)

    def interrupted(self) -> None:
        """Put running requests back in the queue: another engine takes over."""
        for row in list(self.running):
            self._pause(row)

    def _ran(self, event: Iteration) -> None:
        assert event.iteration == self.iterations_of.get(event.batch, 0)
        left_s = [self._join(row, event) for row in event.joined]
        if left_s and not self.waiting and self.queue_empty_s is None:
            self.queue_empty_s = max(left_s)
        self.iterations_of[event.batch] = event.iteration + 1
        self.tokens += event.size
        self.end_s = max(self.end_s, event.end_s)
        rows = self._iterations
        for name in (*_COUNTED, "start_s", "model_s", "attention_s", "host_s"):
            rows[name].append(getattr(event, name))
        rows["joined"].append(len(event.joined))
        rows["duration_s"].append(event.end_s - event.start_s)

    def _join(self, row: int, event: Iteration) -> float:
        """Return when it left the queue, as it joins a batch."""
        table, made, left_s = self._requests, self._made.pop(row, 0), event.start_s
        if table["first_iteration"][row] < 0:
            if np.isfinite(table["admitted_s"][row]):
                left_s = float(table["admitted_s"][row])
            table["admitted_s"][row], table["first_token_s"][row] = left_s, event.end_s
            table["first_iteration"][row] = event.iteration
        table["batch"][row] = event.batch
        self.running[row] = Stint(event.batch, event.iteration, made)
        self.waiting -= 1
        return left_s

    def _pause(self, row: int) -> None:
        """End its stint with the last iteration of its batch."""
        made, stint = self.made(row), self.running.pop(row)
        self._made[row] = made
        self._stint(row, stint)
        self.waiting += 1

    def _end(self, row: int, event: Iteration) -> None:
        stint, table = self.running.pop(row), self._requests
        table["finished_s"][row] = event.end_s
        table["last_iteration"][row] = event.iteration
        self.finished += 1
        if row in self._in_parts:
            self._stint(row, stint)

    def _stint(self, row: int, stint: Stint) -> None:
        self._in_parts.add(row)
        last = self.iterations_of[stint.batch] - 1
        self._stints.append((row, stint.batch, stint.first_iteration, last))

    def outcome(self, **known: Any) -> Outcome:
        """Return the outcome, with what is known of workers and memory besides."""
        outcome = Outcome(
            requests=self.requests(),
            iterations=known.pop("iterations", None) or self.iterations(),
            stints=self.stints(),
            timeline=no_timeline(),
            replica_busy_s=np.array([np.nan]),
            attention_busy_s=float("nan"),
            end_s=self.end_s,
            queue_empty_s=self.end_s if self.queue_empty_s is None else self.queue_empty_s,
            peak_kv_tokens=0,
            kv_capacity_tokens=0,
        )
        return replace(outcome, **known)

    def requests(self) -> Columns:
        return self._requests

    def iterations(self) -> Columns:
        """Return the iterations by their starts. The network's time is not known: see docs/replay-live.md."""
        columns: Columns = {
            name: np.array(values, _INTEGERS.get(name, np.float64))
            for name, values in self._iterations.items()
        }
        columns["network_s"] = np.full(len(columns["start_s"]), np.nan)
        order = np.argsort(columns["start_s"], kind="stable")
        return {name: values[order] for name, values in columns.items()}

    def stints(self) -> Columns:
        names = ("request", "batch", "first_iteration", "last_iteration")
        table = np.array(self._stints, np.int64).reshape(-1, len(names))
        columns: Columns = {name: table[:, place] for place, name in enumerate(names)}
        return columns | {"batch": columns["batch"].astype(np.int32)}
