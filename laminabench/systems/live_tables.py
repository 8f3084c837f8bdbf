"""The tables of a live replay, row by row from an engine's steps: the same columns as a simulation's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from laminabench.sim.outcome import Columns
from laminabench.traces.table import Trace

if TYPE_CHECKING:
    from laminabench.systems.live_loop import StepLike

_INTEGERS = {
    "batch": np.int32,
    "size": np.int32,
    "joined": np.int32,
    "iteration": np.int64,
    "kv_tokens": np.int64,
}
_ITERATIONS = (*_INTEGERS, "start_s", "duration_s", "model_s", "attention_s", "host_s")


class Stint(NamedTuple):
    """A request that runs: since when, and how many tokens it had made before."""

    batch: int
    first_iteration: int
    made: int


class Tables:
    """What is known so far. Times are seconds since `began_s`, on the engine's clock."""

    def __init__(self, trace: Trace) -> None:
        rows = len(trace)
        self.began_s = 0.0
        self.waiting = 0
        self.finished = 0
        self.tokens = 0
        self.end_s = 0.0
        self.queue_empty_s: float | None = None
        self._output: list[int] = trace.output_tokens.tolist()
        self._requests: Columns = {
            name: np.full(rows, np.nan) for name in ("arrival_s", "admitted_s", "first_token_s", "finished_s")
        }
        self._requests |= {
            name: np.full(rows, -1, np.int64) for name in ("first_iteration", "last_iteration")
        }
        self._requests |= {"batch": np.full(rows, -1, np.int32), "preemptions": np.zeros(rows, np.int32)}
        self._iterations: dict[str, list[Any]] = {name: [] for name in _ITERATIONS}
        self._stints: list[tuple[int, int, int, int]] = []
        self._running: dict[int, Stint] = {}  # by row
        self._made: dict[int, int] = {}  # tokens of those who had to make room, by row

    def arrived(self, row: int, at_s: float) -> None:
        self._requests["arrival_s"][row] = at_s

    def add(self, step: StepLike, row_of: Mapping[int, int]) -> None:
        """An iteration, with those who joined it, made room before it, or ended with it."""
        for number in step.preempted:
            self._preempt(row_of[number], step)
        if step.size:
            self._ran(step, [row_of[number] for number in step.joined])
        for number in step.ended:
            self._end(row_of[number], step)

    def _ran(self, step: StepLike, joined: list[int]) -> None:
        start_s, end_s = step.started_s - self.began_s, step.ended_s - self.began_s
        for row in joined:
            self._join(row, step, start_s, end_s)
        if joined and not self.waiting and self.queue_empty_s is None:
            self.queue_empty_s = start_s
        self.tokens += step.size
        self.end_s = max(self.end_s, end_s)
        rows = self._iterations
        for name in ("batch", "iteration", "size", "kv_tokens", "model_s", "attention_s", "host_s"):
            rows[name].append(getattr(step, name))
        rows["joined"].append(len(joined))
        rows["start_s"].append(start_s)
        rows["duration_s"].append(end_s - start_s)

    def _join(self, row: int, step: StepLike, start_s: float, end_s: float) -> None:
        table, made = self._requests, self._made.pop(row, 0)
        if not np.isfinite(table["admitted_s"][row]):
            table["admitted_s"][row], table["first_token_s"][row] = start_s, end_s
            table["first_iteration"][row] = step.iteration
        table["batch"][row] = step.batch
        self._running[row] = Stint(step.batch, step.iteration, made)
        self.waiting -= 1

    def _preempt(self, row: int, step: StepLike) -> None:
        """It ran in its batch's iterations up to the one before this."""
        stint = self._running.pop(row)
        last = step.iteration - 1
        self._made[row] = stint.made + last - stint.first_iteration + 1
        self._requests["preemptions"][row] += 1
        self._stints.append((row, stint.batch, stint.first_iteration, last))
        self.waiting += 1

    def _end(self, row: int, step: StepLike) -> None:
        stint, table = self._running.pop(row), self._requests
        table["finished_s"][row] = step.ended_s - self.began_s
        table["last_iteration"][row] = step.iteration
        self.finished += 1
        if table["preemptions"][row]:
            self._stints.append((row, stint.batch, stint.first_iteration, step.iteration))

    def requests(self) -> Columns:
        return self._requests

    def iterations(self) -> Columns:
        """In the order of their starts. What the network took is not known: see docs/replay.md."""
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
