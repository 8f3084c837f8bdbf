"""A replay that is cut off anywhere and gone on with ends with the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laminabench.analysis.metrics import summarise
from laminabench.json_safe import to_json
from laminabench.runs.journal import Journal
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered
from laminabench.systems.live.lamina.log import ReplayLog, Resumed, record, unpacked
from laminabench.systems.live.lamina.loop import Clock, Replay
from laminabench.systems.live.lamina.order import Order, order_of
from laminabench.systems.live.lamina.prompts import Prompts
from laminabench.systems.live.lamina.records import no_timeline, recorded
from laminabench.traces.table import Trace, TraceMeta

OUTPUTS = [5, 2, 9, 1, 4, 7, 3, 120, 2, 6]
CAPACITY = 100  # which one of them does not fit
SATURATE, OPEN, CLOSED = Offered(), Offered("open"), Offered("closed", concurrency=3)


def a_trace() -> Trace:
    rows = len(OUTPUTS)
    return Trace(
        np.arange(rows) * 0.02,
        np.arange(5, 5 + rows, dtype=np.int32),
        np.array(OUTPUTS, np.int32),
        TraceMeta("small"),
    )


def play(
    engine: Any, offered: Offered, log: ReplayLog, journal: Journal | None = None, order: Order | None = None
) -> Replay:
    """The whole of it, or what is left of the log."""
    trace, order = log.trace, order or Order(None)
    prompts = Prompts(trace, 3, 1000)
    if order.key is not None:
        engine.priority = order.policy

    def submit(row: int, made: list[int]) -> int:
        number: int = engine.submit(prompts.of(row), int(trace.output_tokens[row]), made)
        return number

    replay = Replay(
        engine,
        trace,
        offered,
        submit,
        ValueError,
        order,
        Clock(engine.now, engine.sleep),
        log,
        made_since=engine.made,
        journal=journal,
    )
    replay.run()
    return replay


def told(records: list[Any]) -> ReplayLog:
    log = ReplayLog(a_trace())
    for packed in records:
        log.apply(unpacked(packed))
    return log


def outcome_of(engine: Any, replay: Replay) -> Outcome:
    log = replay.log
    tables, found = log.tables, recorded(engine, replay.clock.began, log.before)
    assert found.violations == []
    return Outcome(
        tables.requests(), found.with_times(tables.iterations(), log.faults), tables.stints(),
        no_timeline(), found.replica_busy_s(), found.attention_busy_s(), tables.end_s,
        tables.queue_empty_s or tables.end_s, log.peak_kv_tokens, engine.capacity,
    )  # fmt: skip


@pytest.fixture
def records(made_up_engine: Any, tmp_path: Path) -> Any:
    """What a whole replay writes into its journal, and what comes of it."""

    def whole(offered: Offered) -> tuple[list[Any], Replay]:
        path = tmp_path / "whole.journal"
        journal = Journal.create(path, {})
        replay = play(made_up_engine(capacity=CAPACITY, most=3), offered, ReplayLog(a_trace()), journal)
        journal.close()
        journal, (_, *found) = Journal.reopen(path)
        journal.remove()
        return found, replay

    return whole


def check_same(replay: Replay, whole: Replay, kept: list[Any]) -> None:
    """The same requests and tokens, and the iterations that were told of before."""
    one, other = replay.log.tables, whole.log.tables
    rows, wanted = one.requests(), other.requests()
    assert (rows["first_iteration"] < 0).tolist() == (wanted["first_iteration"] < 0).tolist()
    assert (np.isfinite(rows["finished_s"])).tolist() == (np.isfinite(wanted["finished_s"])).tolist()
    assert rows["preemptions"].sum() == 0
    assert (one.finished, one.tokens, one.waiting) == (other.finished, other.tokens, 0)
    assert replay.log.tokens == whole.log.tokens
    told_of = sum(record[0] == "Iteration" for record in kept)
    for name, column in one.iterations().items():
        assert np.array_equal(column[:told_of], other.iterations()[name][:told_of], equal_nan=True), name


@pytest.mark.parametrize("offered", [SATURATE, OPEN, CLOSED])
def test_cut_off_after_any_record_it_ends_with_the_same_tables(
    made_up_engine: Any, records: Any, offered: Offered
) -> None:
    all_records, whole = records(offered)
    for cut in range(len(all_records) + 1):  # the last: only its Run was missing
        kept = all_records[:cut]
        engine, log = made_up_engine(capacity=CAPACITY, most=3, now_ns=10**12), told(kept)
        record(Resumed(log.at_s), log, None)
        replay = play(engine, offered, log)
        check_same(replay, whole, kept)
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
def test_it_can_be_cut_off_again_and_again(made_up_engine: Any, tmp_path: Path, cuts: list[int]) -> None:
    whole = play(made_up_engine(capacity=CAPACITY, most=3), SATURATE, ReplayLog(a_trace()))
    path, kept = tmp_path / "again.journal", []
    for cut in cuts:
        path.unlink(missing_ok=True)
        journal, log = Journal.create(path, {}), ReplayLog(a_trace())
        for packed in kept:
            journal.append(packed)
            log.apply(unpacked(packed))
        record(Resumed(log.at_s), log, journal)
        play(made_up_engine(capacity=CAPACITY, most=3), SATURATE, log, journal)
        journal.close()
        journal, (_, *found) = Journal.reopen(path)
        journal.close()
        kept = found[: len(kept) + cut]
    log = told(kept)
    record(Resumed(log.at_s), log, None)
    replay = play(made_up_engine(capacity=CAPACITY, most=3), SATURATE, log)
    check_same(replay, whole, [])
    assert replay.log.resumed_s == sorted(replay.log.resumed_s)


def test_who_ran_goes_first_with_what_it_had_made(made_up_engine: Any, records: Any) -> None:
    all_records, _ = records(SATURATE)
    arrived = [record for record in all_records if record[0] == "Arrived"]
    iterations = [record for record in all_records if record[0] == "Iteration"]
    log = told([*arrived, *iterations[:3]])
    record(Resumed(log.at_s), log, None)
    # 0 has made three tokens, 1 its two; 2 three; 3 took 1's place.
    assert log.cut_off() == [0, 2]
    assert log.to_go_on_with() == [0, 2, 4, 5, 6, 8, 9]
    assert [len(log.made(row)) for row in (0, 2, 4)] == [3, 3, 0]
    # Even where those who wait are shorter.
    engine = made_up_engine(capacity=CAPACITY, most=2)
    order = order_of("sjf", OUTPUTS.__getitem__, len(OUTPUTS))
    play(engine, SATURATE, log, order=order)
    assert log.tables.iterations()["joined"][:4].tolist() == [3, 0, 1, 2]
    assert engine.given[0] == engine.given[1] == 3


def test_what_workers_did_before_is_unknown_and_shares_are_of_the_time_since(
    made_up_engine: Any, records: Any
) -> None:
    all_records, _ = records(SATURATE)
    engine, log = made_up_engine(capacity=CAPACITY, most=3), told(all_records[:14])
    record(Resumed(log.at_s), log, None)
    outcome = outcome_of(engine, play(engine, SATURATE, log))
    before = log.before[0]
    assert np.isnan(outcome.iterations["model_s"][:before]).all()
    assert outcome.iterations["model_s"][before:] == pytest.approx(0.003)
    summary = to_json(summarise(outcome, log.trace, mode="saturate", slo_tbt_ms=10, usd_per_hour=None))
    assert summary["whole_run"]["throughput_tokens_per_s"] > 0
    assert summary["time_shares"]["model"] == pytest.approx(3 / 7)
    assert summary["bubbles"]["model"] == pytest.approx(4 / 7)
    assert summary["bubbles"]["whole_run"] == {"replicas": [None], "attention": None}
    # Where nobody is left who knows anything, waiting is not told from work.
    engine, log = made_up_engine(capacity=CAPACITY, most=3), told(all_records)
    record(Resumed(log.at_s), log, None)
    outcome = outcome_of(engine, play(engine, SATURATE, log))
    summary = to_json(summarise(outcome, log.trace, mode="saturate", slo_tbt_ms=10, usd_per_hour=None))
    assert summary["time_shares"]["model"] is summary["time_shares"]["waiting"] is None
    assert summary["bubbles"]["model"] is None
