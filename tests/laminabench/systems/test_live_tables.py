"""Steps as an engine tells of them, overlapping and preempting, become the simulator's tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from laminabench.analysis.tbt import tbt, tokens_of
from laminabench.runs.status import statuses
from laminabench.sim.outcome import Outcome
from laminabench.systems.live_records import no_timeline
from laminabench.systems.live_tables import Tables
from laminabench.traces.table import Trace, TraceMeta

NOBODY: list[int] = []


def step(batch: int, iteration: int, size: int, start_s: float, end_s: float, **who: list[int]) -> Any:
    some = {"joined": NOBODY, "preempted": NOBODY, "ended": NOBODY} | who
    return SimpleNamespace(
        batch=batch, iteration=iteration, size=size, kv_tokens=size, started_s=start_s, ended_s=end_s,
        model_s=0.1, attention_s=0.2, host_s=0.0, **some,
    )  # fmt: skip


def tables(prompts: list[int], outputs: list[int]) -> Tables:
    rows = len(prompts)
    trace = Trace(
        np.zeros(rows), np.array(prompts, np.int32), np.array(outputs, np.int32), TraceMeta("by hand")
    )
    found = Tables(trace)
    found.began_s = 100.0
    for row in range(rows):
        found.arrived(row, 0.0)
        found.waiting += 1
    return found


def test_overlapping_batches_are_listed_by_their_starts() -> None:
    found = tables([5, 7], [2, 2])
    numbers = {20: 0, 21: 1}
    # Told of in the order of their ends: batch 1 was short.
    found.add(step(1, 0, 1, 101, 102, joined=[21]), numbers)
    found.add(step(0, 0, 1, 100, 103, joined=[20]), numbers)
    found.add(step(1, 1, 1, 102, 104, ended=[21]), numbers)
    found.add(step(0, 1, 1, 103, 105, ended=[20]), numbers)
    rows = found.iterations()
    assert rows["start_s"].tolist() == [0, 1, 2, 3]
    assert rows["batch"].tolist() == [0, 1, 1, 0]
    assert rows["iteration"].tolist() == [0, 0, 1, 1]
    assert found.requests()["batch"].tolist() == [0, 1]
    assert found.requests()["finished_s"].tolist() == [5, 4]
    assert (found.end_s, found.tokens, found.finished) == (5, 4, 2)


def test_preempted_requests_have_stints_and_their_gaps_count() -> None:
    found = tables([10, 10], [3, 3])
    numbers = {0: 0, 1: 1}
    found.add(step(0, 0, 2, 100, 101, joined=[0, 1]), numbers)
    found.add(step(0, 1, 1, 101, 102, preempted=[1]), numbers)
    assert found.waiting == 1
    found.add(step(0, 2, 1, 102, 103, ended=[0]), numbers)
    found.add(step(0, 3, 1, 103, 104, joined=[1]), numbers)
    found.add(step(0, 4, 1, 104, 105, ended=[1]), numbers)
    rows, stints = found.requests(), found.stints()
    assert rows["preemptions"].tolist() == [0, 1]
    assert rows["admitted_s"].tolist() == [0, 0]
    assert rows["first_iteration"].tolist() == [0, 0]
    assert rows["last_iteration"].tolist() == [2, 4]
    assert {name: column.tolist() for name, column in stints.items()} == {
        "request": [1, 1], "batch": [0, 0], "first_iteration": [0, 3], "last_iteration": [0, 4],
    }  # fmt: skip
    outcome = Outcome(rows, found.iterations(), stints, no_timeline(), np.ones(1), 1.0, 5.0, 5.0, 22, 22)
    assert statuses(outcome).tolist() == [0, 0]
    # Gaps of 1 s: two of request 0, one of request 1; and of 3 s, while it made room.
    gaps = tbt(tokens_of(outcome)).describe(1.0)
    assert (gaps["mean"], gaps["max"]) == (1.5, 3.0)


def test_a_step_in_which_nothing_ran_is_no_iteration() -> None:
    found = tables([5], [1])
    found.add(step(1, 0, 0, 100, 100), {})
    assert len(found.iterations()["start_s"]) == 0
    assert found.queue_empty_s is None
