"""What a fault cost, from tables made by hand; and the same replay in slices of time."""

from __future__ import annotations

import numpy as np
import pytest
from fault_events import injected, replaced
from made_outcome import outcome_of

from laminabench.analysis.checksum import tokens_sha256
from laminabench.analysis.faults import faults_of, in_all
from laminabench.analysis.over_time import over_time
from laminabench.runs.summary import InjectedFault
from laminabench.util.live_progress import FaultEvent


def a_fault(noticed_s: float, resumed_s: float, *workers: str) -> FaultEvent:
    return replaced(workers or ("model 0",), "it was killed", noticed_s, resumed_s, 3, 30)


def test_the_dip_and_what_it_cost() -> None:
    # Ten normal ones of 10 ms, one of 500 ms over the fault, two slow ones of 40 ms, normal again.
    result = outcome_of([0.01] * 10 + [0.5] + [0.04] * 2 + [0.01] * 70)
    strikes = [injected(0, "model 0", "kill", 0.105)]
    (row,) = faults_of(result, [a_fault(0.2, 0.4)], strikes, 30.0)
    assert row.struck == [InjectedFault(worker="model 0", how="kill", at_s=0.105)]
    assert row.detection_s == pytest.approx(0.095)
    assert row.recovery_s == pytest.approx(0.2)
    assert row.tbt_before_ms == pytest.approx(10)
    assert row.tbt_worst_ms == pytest.approx(500)
    # 0.1 + 0.5 + 0.08 + 0.01 is when the first normal one had ended.
    assert row.normal_again_s == pytest.approx(0.69 - 0.2)
    # At 1000 tokens/s from 0.105 to 0.69; the ten of the normal one were in time.
    assert row.goodput_lost_tokens == pytest.approx(585 - 10)
    assert (row.requests, row.kv_tokens) == (3, 30)


def test_a_fault_that_nobody_struck_began_when_it_was_noticed() -> None:
    result = outcome_of([0.01] * 10 + [0.5] + [0.01] * 70)
    strikes = [injected(0, "attention 0", "kill", 0.105), injected(1, "model 0", "kill", 0.3)]
    (row,) = faults_of(result, [a_fault(0.2, 0.4)], strikes, 30.0)
    assert (row.struck, row.detection_s) == ([], None)
    assert row.goodput_lost_tokens == pytest.approx(410 - 10)


def test_faults_in_a_row_do_not_count_the_same_time_twice() -> None:
    result = outcome_of([0.01] * 10 + [0.5] + [0.5] + [0.01] * 70)
    faults = [a_fault(0.2, 0.4), a_fault(0.7, 0.9)]
    first, second = faults_of(result, faults, [], 30.0)
    # The second begins before anything was normal again: the first ends there.
    assert first.normal_again_s is None
    assert first.goodput_lost_tokens == pytest.approx(500)
    # Nothing normal lies between the two to hold the second against.
    assert (second.tbt_before_ms, second.goodput_lost_tokens) == (None, None)
    assert second.tbt_worst_ms == pytest.approx(500)
    total = in_all([first, second], [], 0)
    assert total.goodput_lost_tokens == pytest.approx(500)
    assert total.detection_s is None


def test_no_more_is_lost_than_was_left_to_be_made() -> None:
    result = outcome_of([0.01] * 10 + [0.5] + [0.01] * 10)
    (row,) = faults_of(result, [a_fault(0.2, 0.4)], [injected(0, "model 0", "kill", 0.105)], 30.0)
    # 11 iterations of 10, of which the one that was normal again was in time.
    assert row.goodput_lost_tokens == pytest.approx(110 - 10)


def test_a_fault_before_anything_and_one_after_all() -> None:
    result = outcome_of([0.5] + [0.01] * 3)
    (row,) = faults_of(result, [a_fault(0.1, 0.2)], [], 30.0)
    assert (row.tbt_before_ms, row.tbt_worst_ms, row.goodput_lost_tokens) == (None, None, None)
    (row,) = faults_of(result, [a_fault(0.6, 0.7)], [], 30.0)
    assert row.normal_again_s is None
    assert faults_of(result, [], [], 30.0) == []
    assert in_all([], [], 0).faults == 0


def test_slices_of_time_have_all_tokens_and_their_gaps() -> None:
    result = over_time(outcome_of([0.01] * 100 + [0.5] + [0.01] * 50), slices=20)
    assert result.tokens_per_s.sum() * 0.1 == pytest.approx(1510)
    assert result.tbt_p99_ms[3] == pytest.approx(10)
    assert np.nanmax(result.tbt_p99_ms) == pytest.approx(500)
    # Of the half second without a token there is nothing to tell.
    assert np.isnan(result.tbt_p50_ms[12])
    assert result.tokens_per_s[12] == 0


def test_nothing_at_all_over_time() -> None:
    result = over_time(outcome_of([]), slices=5)
    assert result.tokens_per_s.tolist() == [0] * 5
    assert np.isnan(result.tbt_p50_ms).all()


def test_the_checksum_is_of_which_request_said_what() -> None:
    assert tokens_sha256([[1, 2], [3]]) == tokens_sha256([(1, 2), (3,)])
    assert (
        len({tokens_sha256(rows) for rows in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]], [[1, 2], [4]])}) == 4
    )
