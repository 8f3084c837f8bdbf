"""What --chaos understands, whom it hits and when, and what a replay makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laminabench.analysis.faults import faults_of, in_all
from laminabench.errors import UserError
from laminabench.runs.faults import Fault, Strike
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered
from laminabench.systems.chaos import Blow, Wish, due, parse, plan
from laminabench.systems.live_loop import Clock, Replay
from laminabench.systems.live_order import Order
from laminabench.systems.live_records import no_timeline, recorded
from laminabench.systems.live_story import Resumed, Story
from laminabench.traces.table import Trace, TraceMeta

WORKERS = ["model 0", "attention 0", "attention 1"]


def a_trace(outputs: list[int], arrival_s: list[float] | None = None) -> Trace:
    rows = len(outputs)
    columns = np.array(arrival_s or [0.0] * rows), np.full(rows, 10, np.int32), np.array(outputs, np.int32)
    return Trace(*columns, TraceMeta("small"))


def play(engine: Any, trace: Trace, blows: list[Blow], mode: Any = "saturate") -> Replay:
    def submit(row: int, made: list[int]) -> int:
        number: int = engine.submit(10, int(trace.output_tokens[row]), made)
        return number

    clock = Clock(engine.now, engine.sleep)
    replay = Replay(
        engine, trace, Offered(mode), submit, ValueError, Order(None), clock, Story(trace), blows=blows
    )
    replay.run()
    return replay


@pytest.mark.parametrize(
    ("spec", "wish"),
    [
        ("attention:1@t=3s", Wish(Blow("attention 1", at_s=3.0))),
        ("model:0@t=500ms", Wish(Blow("model 0", at_s=0.5))),
        ("random@t=2.5s", Wish(Blow("random", at_s=2.5))),
        ("attention:0@tokens=500", Wish(Blow("attention 0", at_tokens=500))),
        ("attention:1=stop@t=3s", Wish(Blow("attention 1", "stop", at_s=3.0))),
        ("prefill:0=kill@tokens=0", Wish(Blow("prefill 0", at_tokens=0))),
        ("random*50", Wish(Blow("random"), 50)),
        ("random*3=stop", Wish(Blow("random", "stop"), 3)),
    ],
)
def test_specifications(spec: str, wish: Wish) -> None:
    assert parse(spec) == wish


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
    wishes = [parse("model:0@t=3s"), parse("random*50")]
    blows = plan(wishes, WORKERS, 5000, seed=3)
    assert blows[0] == Blow("model 0", at_s=3.0, number=0)
    assert [blow.number for blow in blows] == list(range(51))
    # One in each fiftieth.
    assert [blow.at_tokens // 100 for blow in blows[1:] if blow.at_tokens is not None] == list(range(50))
    assert {blow.worker for blow in blows[1:]} == set(WORKERS)
    assert plan(wishes, WORKERS, 5000, seed=3) == blows
    assert plan(wishes, WORKERS, 5000, seed=4) != blows


def test_workers_that_there_are_not() -> None:
    with pytest.raises(UserError, match="chaos-no-worker"):
        plan([parse("attention:2@t=1s")], WORKERS, 10, 0)


def test_what_is_due_comes_once_and_not_to_the_dead() -> None:
    story = Story(a_trace([5]))
    blows = [Blow("model 0", at_s=1.0, number=0), Blow("model 0", at_tokens=0, number=1)]
    assert due(blows, story, 0.5) == blows[1:]
    story.hear(Strike(1, "model 0", "kill", 0.5))
    assert due(blows, story, 2.0) == []
    story.hear(Fault(["model 0"], "killed", 0.6, 0.7, 1, 1))
    assert due(blows, story, 2.0) == blows[:1]
    story.hear(Strike(0, "model 0", "kill", 2.0))
    assert due(blows, story, 3.0) == []


def test_workers_of_a_resumed_replay_are_alive() -> None:
    story = Story(a_trace([5]))
    story.hear(Strike(0, "model 0", "kill", 0.5))
    blows = [Blow("model 0", at_s=1.0, number=1)]
    assert due(blows, story, 2.0) == []
    story.hear(Resumed(1.5))
    assert due(blows, story, 2.0) == blows


def test_a_replay_strikes_between_steps_and_tells_what_it_cost(made_up_engine: Any) -> None:
    trace, engine = a_trace([400] * 4), made_up_engine()
    blows = [Blow("attention 0", at_s=1.0, number=0), Blow("model 0", "stop", at_tokens=1000, number=1)]
    replay = play(engine, trace, blows)
    story = replay.story
    assert [strike.worker for strike in story.strikes] == ["attention 0", "model 0"]
    assert story.strikes[0].at_s == pytest.approx(1.0, abs=0.008)
    found = recorded(engine, replay.clock.began)
    assert found.violations == []
    iterations = found.with_times(story.tables.iterations(), story.faults)
    second = story.faults[1].resumed_s
    # What a worker knew is gone with it.
    assert np.isnan(iterations["model_s"][iterations["start_s"] < second]).all()
    assert iterations["model_s"][iterations["start_s"] >= second] == pytest.approx(0.003)
    between = iterations["start_s"] >= story.faults[0].resumed_s
    assert iterations["attention_s"][between] == pytest.approx(0.004)
    outcome = Outcome(
        story.tables.requests(), iterations, story.tables.stints(), no_timeline(), found.replica_busy_s(),
        found.attention_busy_s(), story.tables.end_s, story.tables.end_s, 0, 100,
    )  # fmt: skip
    rows = faults_of(outcome, story.faults, story.strikes, 50.0)
    assert [row["workers"] for row in rows] == [["attention 0"], ["model 0"]]
    assert [row["detection_s"] for row in rows] == pytest.approx([0.2, 1.0])
    assert [row["recovery_s"] for row in rows] == pytest.approx([0.3, 0.3])
    assert [row["tbt_before_ms"] for row in rows] == pytest.approx([7.0, 7.0])
    assert [row["tbt_worst_ms"] for row in rows] == pytest.approx([507.0, 1307.0])
    # The iteration after the one that was broken off is as ever.
    assert [row["normal_again_s"] for row in rows] == pytest.approx([0.314, 0.314])
    # Four tokens in 7 ms; those of the broken iteration came too late, those of the next in time.
    assert rows[0]["goodput_lost_tokens"] == pytest.approx(4 / 0.007 * 0.514 - 4)
    total = in_all(rows, story.strikes, 2)
    assert (total["faults"], total["strikes"], total["detection_s"]) == (2, 2, pytest.approx(1.0))
    assert total["goodput_lost_tokens"] == sum(row["goodput_lost_tokens"] for row in rows)


def test_nobody_in_the_system_is_no_reason_to_miss_a_blow(made_up_engine: Any) -> None:
    engine = made_up_engine()
    replay = play(engine, a_trace([3, 3], [0.0, 5.0]), [Blow("model 0", at_s=2.0)], mode="open")
    assert replay.story.strikes[0].at_s == pytest.approx(2.0, abs=1e-6)
    assert [len(engine.slept), len(engine.faults)] == [2, 1]


def test_many_random_kills_change_no_token(made_up_engine: Any) -> None:
    trace = a_trace([30] * 40)
    blows = plan([parse("random*50")], ["model 0", "attention 0"], 1200, seed=1)
    replay = play(made_up_engine(), trace, blows)
    assert len(replay.story.strikes) >= 45  # of those that fall together a second one waits
    assert replay.story.tables.finished == 40
    assert replay.story.tables.tokens == 1200
