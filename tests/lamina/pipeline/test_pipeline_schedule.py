"""The order of turns: by the clock, at the place that the paper says, and every stage's slices once."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.pipeline import Schedule, Turn
from lamina.pipeline.partition import Pipelining

CYCLES = 4


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind = draw(st.sampled_from(["serial", "rotational", "fixed", "stages"]))
    batches = 1 if kind == "serial" else draw(st.integers(1 if kind != "stages" else 2, 6))
    if kind == "stages":
        return Schedule("fixed", batches, draw(st.integers(batches, 4 * batches + 3)), batches)
    names: dict[str, Pipelining] = {"serial": "serial", "rotational": "rotational", "fixed": "fixed"}
    return Schedule(names[kind], batches, draw(st.integers(1, 9)))


def whole_cycles(schedule: Schedule, cycles: int = CYCLES) -> list[Turn]:
    """The turns of the first cycles; with stages some of the next one are among them, and left out."""
    expected = cycles * schedule.batches * schedule.slices
    results: list[Turn] = []
    for turn in schedule.turns():
        if turn.cycle < cycles:
            results.append(turn)
        if len(results) == expected:
            return results
    raise AssertionError


@given(schedules())
def test_every_slice_of_every_batch_has_its_turn_once_a_cycle_and_in_order(schedule: Schedule) -> None:
    turns = whole_cycles(schedule)
    everything = itertools.product(range(schedule.batches), range(CYCLES), range(schedule.slices))
    assert sorted(turn[:3] for turn in turns) == list(everything)
    for batch in range(schedule.batches):
        own = [(turn.cycle, turn.slice) for turn in turns if turn.batch == batch]
        assert own == sorted(own)


@given(schedules())
def test_turns_come_by_the_clock_and_then_by_batch(schedule: Schedule) -> None:
    turns = whole_cycles(schedule)
    order = [(schedule.clock(*turn[:3]), turn.batch) for turn in turns]
    assert all(earlier < later for earlier, later in itertools.pairwise(order))
    assert [turn.place for turn in turns] == [schedule.place(*turn[:3]) for turn in turns]
    assert {turn.place for turn in turns} <= set(range(schedule.places))


@given(st.integers(3, 7), st.integers(1, 9))
def test_slices_go_round_the_replicas_as_the_paper_says(batches: int, slices: int) -> None:
    schedule = Schedule("rotational", batches, slices)
    assert schedule.places == batches - 1
    assert schedule.migrates
    for turn in whole_cycles(schedule):
        k = turn.cycle * slices + turn.slice
        assert turn.place == (turn.batch + k) % (batches - 1)
        assert schedule.clock(*turn[:3]) == k


@given(schedules())
def test_a_place_has_the_weights_of_its_slices(schedule: Schedule) -> None:
    for turn in whole_cycles(schedule, schedule.places + 1):
        assert turn.slice in schedule.slices_of(turn.place)
    if schedule.stages == 1:
        assert {schedule.slices_of(place) for place in range(schedule.places)} == {range(schedule.slices)}


@given(st.integers(2, 8), st.integers(0, 40))
def test_stages_follow_each_other_and_none_has_nothing_to_do(stages: int, more: int) -> None:
    schedule = Schedule("fixed", stages, stages + more, stages)
    parts = [schedule.slices_of(stage) for stage in range(stages)]
    assert [slice_ for part in parts for slice_ in part] == list(range(stages + more))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert min(map(len, parts)) >= 1
    assert len(parts[-1]) >= min(2, 1 + more), "the last slice alone would be a stage without a layer"
    assert (schedule.places, schedule.migrates) == (stages, True)
    for turn in whole_cycles(schedule, 2):
        assert turn.slice in parts[turn.place]


@given(st.integers(2, 6), st.integers(0, 20))
def test_no_stage_has_two_batches_in_a_tick_and_none_waits_for_longer_than_it_must(
    stages: int, more: int
) -> None:
    schedule = Schedule("fixed", stages, stages + more, stages)
    at: dict[tuple[int, int], list[Turn]] = defaultdict(list)
    for turn in whole_cycles(schedule):
        at[schedule.clock(*turn[:3]), turn.place].append(turn)
    assert max(map(len, at.values())) == 1
    each = max(len(schedule.slices_of(stage)) for stage in range(stages))
    ends = schedule.clock(0, 1, 0) - schedule.clock(0, 0, 0)
    assert ends == each * stages, "a cycle is as long as the longest stage, once for each"
    later = schedule.clock(1, 0, 0) - schedule.clock(0, 0, 0)
    assert later == each, "a batch begins when the one before has left the first stage"
    lasts = [schedule.clock(0, 0, schedule.slices_of(stage)[-1]) + 1 for stage in range(stages)]
    assert {b - a for a, b in itertools.pairwise(lasts)} == {each}, "none is idle after its last slice"


def test_the_first_turns_by_hand() -> None:
    rotational = itertools.islice(Schedule("rotational", 3, 2).turns(), 9)
    assert [tuple(turn) for turn in rotational] == [
        *((0, 0, 0, 0), (1, 0, 0, 1), (2, 0, 0, 0)),
        *((0, 0, 1, 1), (1, 0, 1, 0), (2, 0, 1, 1)),
        *((0, 1, 0, 0), (1, 1, 0, 1), (2, 1, 0, 0)),
    ]
    # Three slices on two stages: the first stage has one and is idle for a tick.
    staged = itertools.islice(Schedule("fixed", 2, 3, 2).turns(), 8)
    assert [tuple(turn) for turn in staged] == [
        (0, 0, 0, 0),
        (0, 0, 1, 1),
        *((0, 0, 2, 1), (1, 0, 0, 0)),
        (1, 0, 1, 1),
        *((0, 1, 0, 0), (1, 0, 2, 1)),
        (0, 1, 1, 1),
    ]


def test_invalid_schedules_are_refused() -> None:
    for pipelining, batches in (("rotational", 3), ("fixed", 2), ("serial", 1)):
        with pytest.raises(ValueError, match="layout-stages-batches"):
            Schedule(pipelining, batches, 9, 3)
    with pytest.raises(ValueError, match="serial has one batch"):
        Schedule("serial", 2, 9)
