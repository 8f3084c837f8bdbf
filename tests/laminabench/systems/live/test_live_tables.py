"""Steps as an engine tells of them, overlapping and preempting, become the simulator's tables."""

from __future__ import annotations

from typing import Any

import pytest

from laminabench.analysis.tbt import tbt, tokens_of
from laminabench.runs.status import statuses
from laminabench.systems.live.tables import Iteration, Tables


def step(batch: int, iteration: int, size: int, start_s: float, end_s: float, **rows: list[int]) -> Iteration:
    return Iteration(batch, iteration, size, size, start_s, end_s, model_s=0.1, attention_s=0.2, **rows)


@pytest.fixture
def tables(trace_of: Any) -> Any:
    def made(prompts: list[int], outputs: list[int]) -> Tables:
        result = Tables(trace_of(prompts, outputs))
        for row in range(len(prompts)):
            result.arrived(row, 0.0)
        return result

    return made


def test_overlapping_batches_are_listed_by_their_starts(tables: Any) -> None:
    result = tables([5, 7], [2, 2])
    # Told of in the order of their ends: batch 1 was short.
    result.add(step(1, 0, 1, 1, 2, joined=[1]))
    result.add(step(0, 0, 1, 0, 3, joined=[0]))
    result.add(step(1, 1, 1, 2, 4, ended=[1]))
    result.add(step(0, 1, 1, 3, 5, ended=[0]))
    rows = result.iterations()
    assert rows["start_s"].tolist() == [0, 1, 2, 3]
    assert rows["batch"].tolist() == [0, 1, 1, 0]
    assert rows["iteration"].tolist() == [0, 0, 1, 1]
    assert result.requests()["batch"].tolist() == [0, 1]
    assert result.requests()["finished_s"].tolist() == [5, 4]
    assert (result.end_s, result.tokens, result.finished) == (5, 4, 2)


def test_preempted_requests_have_stints_and_their_gaps_count(tables: Any) -> None:
    result = tables([10, 10], [3, 3])
    result.add(step(0, 0, 2, 0, 1, joined=[0, 1]))
    result.add(step(0, 1, 1, 1, 2, preempted=[1]))
    assert result.waiting == 1
    result.add(step(0, 2, 1, 2, 3, ended=[0]))
    result.add(step(0, 3, 1, 3, 4, joined=[1]))
    result.add(step(0, 4, 1, 4, 5, ended=[1]))
    rows, stints = result.requests(), result.stints()
    assert rows["preemptions"].tolist() == [0, 1]
    assert rows["admitted_s"].tolist() == [0, 0]
    assert rows["first_iteration"].tolist() == [0, 0]
    assert rows["last_iteration"].tolist() == [2, 4]
    assert {name: column.tolist() for name, column in stints.items()} == {
        "request": [1, 1], "batch": [0, 0], "first_iteration": [0, 3], "last_iteration": [0, 4],
    }  # fmt: skip
    outcome = result.outcome()
    assert statuses(outcome).tolist() == [0, 0]
    # Gaps of 1 s: two of request 0, one of request 1; and of 3 s, while it made room.
    gaps = tbt(tokens_of(outcome)).describe(1.0)
    assert (gaps.mean, gaps.max) == (1.5, 3.0)


def test_a_step_in_which_nothing_ran_is_no_iteration(tables: Any) -> None:
    result = tables([5], [1])
    result.add(step(1, 0, 0, 0, 0))
    assert len(result.iterations()["start_s"]) == 0
    assert result.queue_empty_s is None


def test_a_prompt_is_begun_with_before_its_first_token(tables: Any) -> None:
    result = tables([5, 7], [2, 1])
    result.admitted(0, 0.25)
    result.add(step(0, 0, 1, 1, 2, joined=[0]))
    result.admitted(1, 1.5)
    result.add(step(0, 1, 2, 2, 3, joined=[1], ended=[0, 1]))
    rows = result.requests()
    assert rows["admitted_s"].tolist() == [0.25, 1.5]
    assert rows["first_token_s"].tolist() == [2, 3]
    assert rows["first_iteration"].tolist() == [0, 1]
    assert result.queue_empty_s == 1.5
