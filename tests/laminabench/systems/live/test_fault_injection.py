"""What --chaos understands, whom it hits and when, and what a replay makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fault_events import injected, replaced

from laminabench.analysis.faults import faults_of, in_all
from laminabench.sim.simulate import Offered
from laminabench.systems.live.lamina.faults import Injection, due, parse, plan
from laminabench.systems.live.lamina.log import ReplayLog, Resumed
from laminabench.systems.live.lamina.records import recorded
from laminabench.util.errors import UserError

WORKERS = ["model 0", "attention 0", "attention 1"]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("attention:1@t=3s", Injection("attention 1", at_s=3.0)),
        ("model:0@t=500ms", Injection("model 0", at_s=0.5)),
        ("random@t=2.5s", Injection("random", at_s=2.5)),
        ("attention:0@tokens=500", Injection("attention 0", at_tokens=500)),
        ("attention:1=stop@t=3s", Injection("attention 1", "stop", at_s=3.0)),
        ("prefill:0=kill@tokens=0", Injection("prefill 0", at_tokens=0)),
        ("instance:1@t=3s", Injection("instance 1", at_s=3.0)),
        ("1/attention:0=stop@t=3s", Injection("1/attention 0", "stop", at_s=3.0)),
        ("random*50", Injection("random", spread=50)),
        ("random*3=stop", Injection("random", "stop", spread=3)),
    ],
)
def test_specifications(text: str, spec: Injection) -> None:
    assert parse(text) == spec


@pytest.mark.parametrize(
    "spec",
    [
        "attention:1",
        "random",
        "",
        "attention@t=3s",
        "attention:x@t=3s",
        "attention:-1@t=3s",
        "engine:0@t=3s",
        "1/instance:0@t=3s",
        "instance@t=3s",
        "attention:1=maim@t=3s",
        "attention:1=@t=3s",
        "attention:1@t=3",
        "attention:1@t=-3s",
        "attention:1@t=nans",
        "attention:1@tokens=many",
        "attention:1@3s",
        "attention:1*5",
        "random*0",
        "random*",
        "random*5@t=3s",
    ],
)
def test_what_is_wrong_is_named(spec: str) -> None:
    with pytest.raises(UserError, match="chaos-invalid") as error:
        parse(spec)
    assert str(error.value).startswith(f"--chaos '{spec}': ")


def test_a_plan_is_spread_over_the_tokens_and_the_same_for_a_seed() -> None:
    specs = [parse("model:0@t=3s"), parse("random*50")]
    planned = plan(specs, WORKERS, 5000, seed=3)
    assert planned[0] == Injection("model 0", at_s=3.0, number=0)
    assert [fault.number for fault in planned] == list(range(51))
    # One in each fiftieth.
    assert [fault.at_tokens // 100 for fault in planned[1:] if fault.at_tokens is not None] == list(range(50))
    assert {fault.worker for fault in planned[1:]} == set(WORKERS)
    assert plan(specs, WORKERS, 5000, seed=3) == planned
    assert plan(specs, WORKERS, 5000, seed=4) != planned


def test_workers_that_there_are_not() -> None:
    with pytest.raises(UserError, match="chaos-no-worker"):
        plan([parse("attention:2@t=1s")], WORKERS, 10, 0)


def test_what_is_due_comes_once_and_not_to_the_dead(trace_of: Any) -> None:
    log = ReplayLog(trace_of([10] * 1, [5]))
    planned = [Injection("model 0", at_s=1.0, number=0), Injection("model 0", at_tokens=0, number=1)]
    assert due(planned, log, 0.5) == planned[1:]
    log.apply(injected(1, "model 0", "kill", 0.5))
    assert due(planned, log, 2.0) == []
    log.apply(replaced(["model 0"], "killed", 0.6, 0.7, 1, 1))
    assert due(planned, log, 2.0) == planned[:1]
    log.apply(injected(0, "model 0", "kill", 2.0))
    assert due(planned, log, 3.0) == []


def test_workers_of_a_resumed_replay_are_alive(trace_of: Any) -> None:
    log = ReplayLog(trace_of([10] * 1, [5]))
    log.apply(injected(0, "model 0", "kill", 0.5))
    planned = [Injection("model 0", at_s=1.0, number=1)]
    assert due(planned, log, 2.0) == []
    log.apply(Resumed(1.5))
    assert due(planned, log, 2.0) == planned


def test_faults_are_injected_between_steps_and_their_cost_is_reported(
    made_up_engine: Any, trace_of: Any, play: Any
) -> None:
    trace, engine = trace_of([10] * 4, [400] * 4), made_up_engine()
    planned = [
        Injection("attention 0", at_s=1.0, number=0),
        Injection("model 0", "stop", at_tokens=1000, number=1),
    ]
    replay = play(engine, trace, Offered(), planned=planned)
    log = replay.log
    assert [inject_fault.workers[0] for inject_fault in log.strikes] == ["attention 0", "model 0"]
    assert log.strikes[0].at_s == pytest.approx(1.0, abs=0.008)
    result = recorded(engine, replay.clock)
    assert result.violations == []
    iterations = result.with_times(log.tables.iterations(), log.faults)
    second = log.faults[1].resumed_s
    # What a worker knew is gone with it.
    assert np.isnan(iterations["model_s"][iterations["start_s"] < second]).all()
    assert iterations["model_s"][iterations["start_s"] >= second] == pytest.approx(0.003)
    between = iterations["start_s"] >= log.faults[0].resumed_s
    assert iterations["attention_s"][between] == pytest.approx(0.004)
    rows = faults_of(result.outcome(log, 100), log.faults, log.strikes, 50.0)
    assert [row.workers for row in rows] == [["attention 0"], ["model 0"]]
    assert [row.detection_s for row in rows] == pytest.approx([0.2, 1.0])
    assert [row.recovery_s for row in rows] == pytest.approx([0.3, 0.3])
    assert [row.tbt_before_ms for row in rows] == pytest.approx([7.0, 7.0])
    assert [row.tbt_worst_ms for row in rows] == pytest.approx([507.0, 1307.0])
    # The iteration after the one that was broken off is as ever.
    assert [row.normal_again_s for row in rows] == pytest.approx([0.314, 0.314])
    # Four tokens in 7 ms; those of the broken iteration came too late, those of the next in time.
    assert rows[0].goodput_lost_tokens == pytest.approx(4 / 0.007 * 0.514 - 4)
    total = in_all(rows, log.strikes, 2)
    assert (total.faults, total.strikes, total.detection_s) == (2, 2, pytest.approx(1.0))
    assert total.goodput_lost_tokens == sum(row.goodput_lost_tokens for row in rows)


def test_a_fault_is_injected_into_an_idle_system(made_up_engine: Any, trace_of: Any, play: Any) -> None:
    engine, planned = made_up_engine(), [Injection("model 0", at_s=2.0)]
    replay = play(engine, trace_of([10] * 2, [3, 3], [0.0, 5.0]), Offered("open"), planned=planned)
    assert replay.log.strikes[0].at_s == pytest.approx(2.0, abs=1e-6)
    # In short sleeps, so that a watcher gets reports meanwhile.
    assert (max(engine.slept), len(engine.faults)) == (1.0, 1)


def test_many_random_kills_change_no_token(made_up_engine: Any, trace_of: Any, play: Any) -> None:
    trace = trace_of([10] * 40, [30] * 40)
    planned = plan([parse("random*50")], ["model 0", "attention 0"], 1200, seed=1)
    replay = play(made_up_engine(), trace, Offered(), planned=planned)
    assert len(replay.log.strikes) >= 45  # of those that fall together a second one waits
    assert replay.log.tables.finished == 40
    assert replay.log.tables.tokens == 1200


def test_instances_are_there_where_there_are_several() -> None:
    workers = ["0/model 0", "1/model 0"]
    (planned,) = plan([parse("instance:1@t=1s")], workers, 100, 0, instances=2)
    assert planned.worker == "instance 1"
    drawn = plan([parse("random*20")], workers, 100, 0, instances=2)
    assert {fault.worker for fault in drawn} == set(workers)
    for spec, instances in (("instance:2@t=1s", 2), ("instance:0@t=1s", 1), ("model:0@t=1s", 2)):
        with pytest.raises(UserError, match="chaos-no-worker"):
            plan([parse(spec)], workers, 100, 0, instances=instances)


def test_workers_of_an_instance_that_is_lost_are_left_alone(trace_of: Any) -> None:
    log = ReplayLog(trace_of([10], [10]))
    planned = plan(
        [parse("instance:1@t=1s"), parse("1/model:0@t=2s"), parse("0/model:0@t=2s")],
        ["0/model 0", "1/model 0"],
        10,
        0,
        instances=2,
    )
    assert [fault.worker for fault in due(planned, log, 1.5)] == ["instance 1"]
    log.apply(injected(0, "instance 1", "kill", 1.5))
    assert [fault.worker for fault in due(planned, log, 2.5)] == ["0/model 0"]
    log.apply(replaced(["instance 1"], "it was struck", 2.0, 2.2, 1, 10))
    assert [fault.worker for fault in due(planned, log, 2.5)] == ["0/model 0"]
