"""A replay that is cut off anywhere and gone on with ends with the same tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laminabench.analysis.metrics import summarise
from laminabench.runs.journal import Journal
from laminabench.sim.simulate import Offered
from laminabench.systems.live.lamina.log import ReplayLog, Resumed, record, unpacked
from laminabench.systems.live.lamina.loop import Replay, order_of
from laminabench.systems.live.prompts import prompt_of
from laminabench.traces.table import Trace
from laminabench.util.json import to_json

OUTPUTS = [5, 2, 9, 1, 4, 7, 3, 120, 2, 6]
CAPACITY = 100  # which one of them does not fit
SATURATE, OPEN, CLOSED = Offered(), Offered("open"), Offered("closed", concurrency=3)


def reported(records: list[Any], trace: Trace) -> ReplayLog:
    log = ReplayLog(trace)
    for packed in records:
        log.apply(unpacked(packed))
    return log


@pytest.fixture(scope="session")
def trace(trace_of: Any) -> Trace:
    rows = len(OUTPUTS)
    made: Trace = trace_of(range(5, 5 + rows), OUTPUTS, np.arange(rows) * 0.02)
    return made


@pytest.fixture(scope="session")
def go_on(trace: Trace, play: Any) -> Any:
    """As `play`, with prompts."""
    return partial(play, prompts=partial(prompt_of, trace, 3, 1000))


@pytest.fixture
def records(made_up_engine: Any, tmp_path: Path, trace: Trace, go_on: Any) -> Any:
    """What a whole replay writes into its journal, and what comes of it."""

    def whole(offered: Offered) -> tuple[list[Any], Replay]:
        path = tmp_path / "whole.journal"
        journal = Journal.create(path, {})
        engine = made_up_engine(capacity=CAPACITY, most=3)
        replay = go_on(engine, ReplayLog(trace), offered, journal=journal)
        journal.close()
        journal, (_, *result) = Journal.reopen(path)
        journal.remove()
        return result, replay

    return whole


def check_same(replay: Replay, whole: Replay, saved: list[Any]) -> None:
    """The same requests and tokens, and the iterations that were told of before."""
    one, other = replay.log.tables, whole.log.tables
    rows, expected = one.requests(), other.requests()
    assert (rows["first_iteration"] < 0).tolist() == (expected["first_iteration"] < 0).tolist()
    assert (np.isfinite(rows["finished_s"])).tolist() == (np.isfinite(expected["finished_s"])).tolist()
    assert rows["preemptions"].sum() == 0
    assert (one.finished, one.tokens, one.waiting) == (other.finished, other.tokens, 0)
    assert replay.log.tokens == whole.log.tokens
    reported_tokens = sum(record[0] == "Iteration" for record in saved)
    for name, column in one.iterations().items():
        assert np.array_equal(
            column[:reported_tokens], other.iterations()[name][:reported_tokens], equal_nan=True
        ), name


@pytest.mark.parametrize("offered", [SATURATE, OPEN, CLOSED])
def test_cut_off_after_any_record_it_ends_with_the_same_tables(
    made_up_engine: Any, records: Any, trace: Trace, go_on: Any, outcome_of: Any, offered: Offered
) -> None:
    all_records, whole = records(offered)
    for cut in range(len(all_records) + 1):  # the last: only its Run was missing
        saved = all_records[:cut]
        engine, log = made_up_engine(capacity=CAPACITY, most=3, now_ns=10**12), reported(saved, trace)
        record(Resumed(log.at_s), log, None)
        replay = go_on(engine, log, offered)
        check_same(replay, whole, saved)
        # No time passes between the last that was told and the first that comes after.
        outcome = outcome_of(engine, replay)
        starts = outcome.iterations["start_s"]
        assert (np.diff(starts) > 0).all()
        if offered is SATURATE:
            assert np.diff(starts).max() == pytest.approx(0.007)
        summary = to_json(summarise(outcome, log.trace, mode="saturate", slo_tbt_ms=10, usd_per_hour=None))
        assert summary["requests"] == {"completed": 9, "rejected": 1, "unfinished": 0, "failed": 0}
        assert summary["tokens_generated"] == sum(OUTPUTS) - 120
        if offered is SATURATE:
            # Every gap is there, and none is longer for the interruption.
            assert summary["whole_run"]["tbt_ms"]["max"] == pytest.approx(7)
            assert summary["whole_run"]["slo"]["request_attainment"] == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_it_can_be_cut_off_again_and_again(
    made_up_engine: Any, tmp_path: Path, trace: Trace, go_on: Any, cuts: list[int]
) -> None:
    whole = go_on(made_up_engine(capacity=CAPACITY, most=3), trace, SATURATE)
    path, saved = tmp_path / "again.journal", []
    for cut in cuts:
        path.unlink(missing_ok=True)
        journal, log = Journal.create(path, {}), ReplayLog(trace)
        for packed in saved:
            journal.append(packed)
            log.apply(unpacked(packed))
        record(Resumed(log.at_s), log, journal)
        go_on(made_up_engine(capacity=CAPACITY, most=3), log, SATURATE, journal=journal)
        journal.close()
        journal, (_, *result) = Journal.reopen(path)
        journal.close()
        saved = result[: len(saved) + cut]
    log = reported(saved, trace)
    record(Resumed(log.at_s), log, None)
    replay = go_on(made_up_engine(capacity=CAPACITY, most=3), log, SATURATE)
    check_same(replay, whole, [])
    assert replay.log.resumed_s == sorted(replay.log.resumed_s)


def test_running_requests_resume_first_with_their_tokens(
    made_up_engine: Any, records: Any, trace: Trace, go_on: Any
) -> None:
    all_records, _ = records(SATURATE)
    arrived = [record for record in all_records if record[0] == "Arrived"]
    iterations = [record for record in all_records if record[0] == "Iteration"]
    log = reported([*arrived, *iterations[:3]], trace)
    record(Resumed(log.at_s), log, None)
    # 0 has made three tokens, 1 its two; 2 three; 3 took 1's place.
    assert log.cut_off() == [0, 2]
    assert log.to_resume_with() == [0, 2, 4, 5, 6, 8, 9]
    assert [len(log.made(row)) for row in (0, 2, 4)] == [3, 3, 0]
    # Even where waiting requests are shorter.
    engine = made_up_engine(capacity=CAPACITY, most=2)
    order = order_of("sjf", OUTPUTS.__getitem__, len(OUTPUTS))
    go_on(engine, log, SATURATE, order)
    assert log.tables.iterations()["joined"][:4].tolist() == [3, 0, 1, 2]
    assert engine.given[0] == engine.given[1] == 3


def test_what_workers_did_before_is_unknown_and_shares_are_of_the_time_since(
    made_up_engine: Any, records: Any, trace: Trace, go_on: Any, outcome_of: Any
) -> None:
    all_records, _ = records(SATURATE)
    engine, log = made_up_engine(capacity=CAPACITY, most=3), reported(all_records[:14], trace)
    record(Resumed(log.at_s), log, None)
    outcome = outcome_of(engine, go_on(engine, log, SATURATE))
    before = log.before[0]
    assert np.isnan(outcome.iterations["model_s"][:before]).all()
    assert outcome.iterations["model_s"][before:] == pytest.approx(0.003)
    summary = to_json(summarise(outcome, log.trace, mode="saturate", slo_tbt_ms=10, usd_per_hour=None))
    assert summary["whole_run"]["throughput_tokens_per_s"] > 0
    assert summary["time_shares"]["model"] == pytest.approx(3 / 7)
    assert summary["bubbles"]["model"] == pytest.approx(4 / 7)
    assert summary["bubbles"]["whole_run"] == {"replicas": [None], "attention": None}
    # Without any worker's records waiting cannot be distinguished from work.
    engine, log = made_up_engine(capacity=CAPACITY, most=3), reported(all_records, trace)
    record(Resumed(log.at_s), log, None)
    outcome = outcome_of(engine, go_on(engine, log, SATURATE))
    summary = to_json(summarise(outcome, log.trace, mode="saturate", slo_tbt_ms=10, usd_per_hour=None))
    assert summary["time_shares"]["model"] is summary["time_shares"]["waiting"] is None
    assert summary["bubbles"]["model"] is None
