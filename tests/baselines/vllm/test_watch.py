"""What the runner makes of vLLM's steps, and when it says that prefill is not stripped out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode_replay.watch import Counted, Step, UnlikeError, Watch

PROMPTS = [10, 20, 1]
# Requests 0 and 1 made a token each.
BOTH = [(0, 1, False), (1, 1, False)]


def counted(*first: int, generated: int) -> Counted:
    """vLLM's statistics of a step in which the prompts of `first` were taken as stripped out."""
    prompts = sum(PROMPTS[row] for row in first)
    return Counted(prompts, len(first), prompts - len(first), generated)


def begun() -> Watch:
    """Requests 0 and 1 run."""
    watch = Watch(PROMPTS)
    watch.step({0: 1, 1: 1}, BOTH, counted(0, 1, generated=2))
    return watch


def test_it_reports_joined_ended_and_preempted_requests() -> None:
    watch = Watch(PROMPTS)
    first = watch.step({0: 1, 1: 1}, BOTH, counted(0, 1, generated=2))
    assert first == Step(2, 30, [0, 1], [], [], 0)
    assert watch.step({0: 1}, [(0, 1, False)], counted(generated=1)) == Step(1, 11, [], [1], [], 0)
    # 1 comes back: its prompt and the token it had made are computed again, 2 joins, 0 ends.
    scheduled, made = {0: 1, 1: 21, 2: 1}, [(0, 1, True), (1, 1, False), (2, 1, True)]
    step = watch.step(scheduled, made, counted(2, generated=3))
    assert step == Step(3, 12 + 21 + 1, [1, 2], [], [0, 2], 20)
    assert watch.step({1: 1}, [(1, 1, True)], counted(generated=1)) == Step(1, 22, [], [], [1], 0)
    assert (watch.steps, watch.preempted, watch.recomputed) == (4, 1, 20)


def test_a_part_of_what_is_computed_again_makes_no_token() -> None:
    watch = begun()
    watch.step({0: 1}, [(0, 1, True)], counted(generated=1))
    assert watch.step({1: 15}, [], None) == Step(0, 0, [], [], [], 15)
    assert watch.step({1: 6}, [(1, 1, False)], counted(generated=1)) == Step(1, 21, [1], [], [], 5)


@pytest.mark.parametrize(
    ("scheduled", "made", "statistics", "why"),
    [
        ({0: 1, 1: 1, 2: 2}, BOTH, None, "computed 2 tokens of request 2 of its prompt"),
        ({0: 3, 1: 1}, BOTH, None, "computed 3 tokens of request 0 though it decodes"),
        ({0: 1, 1: 1}, [(0, 2, False), (1, 1, False)], None, "request 0 made 2 tokens at once"),
        ({0: 1, 1: 1}, BOTH[:1], None, "request 1 made no token, though it was scheduled"),
        ({0: 1}, BOTH, None, "request 1 made a token, though it was not scheduled"),
        ({0: 1, 1: 1}, BOTH, None, "no statistics of a step that made tokens"),
        (
            {0: 1, 1: 1, 2: 1},
            [*BOTH, (2, 1, False)],
            replace(counted(2, generated=3), computed=2),
            "have 2 prompt tokens computed and 0 transferred, of 1, and 3 generated; 1, 0, 1 and 3 were",
        ),
    ],
)
def test_other_than_one_token_per_request_is_reported_with_the_step(
    scheduled: dict[int, int], made: list[tuple[int, int, bool]], statistics: Counted | None, why: str
) -> None:
    with pytest.raises(UnlikeError, match=r"^prefill is not stripped out: in step 2, ") as error:
        begun().step(scheduled, made, statistics)
    assert why in str(error.value)


def test_with_prefill_a_request_without_a_token_while_others_have_one_was_preempted() -> None:
    watch = Watch(PROMPTS, stripped=False)
    assert watch.served([]) == Step(0, 0, [], [], [], 0)  # a part of a prompt
    assert watch.served([(0, 1, False), (1, 1, False)]) == Step(2, 30, [0, 1], [], [], 0)
    assert watch.served([]) == Step(0, 0, [], [], [], 0)
    assert watch.served([(0, 1, False)]) == Step(1, 11, [], [1], [], 0)
    assert watch.served([(0, 1, True), (1, 1, True)]) == Step(2, 12 + 21, [1], [], [0, 1], 0)
    assert (watch.steps, watch.preempted) == (3, 1)
    with pytest.raises(UnlikeError, match=r"^in step 4, request 2 made 2 tokens at once$"):
        watch.served([(2, 2, False)])


@given(st.data())
def test_it_agrees_with_counting_every_request_by_itself(data: st.DataObject) -> None:
    draw: Callable[..., Any] = data.draw
    lengths = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=6))
    prompts = [prompt for prompt, _ in lengths]
    watch = Watch(prompts)
    made = [0] * len(lengths)
    running: set[int] = set()
    begun_rows: set[int] = set()
    for _ in range(40):
        back = {row for row in running if draw(st.booleans())} if draw(st.booleans()) else set()
        waiting = [row for row in range(len(lengths)) if row not in running and made[row] < lengths[row][1]]
        joined = {row for row in waiting if draw(st.booleans())} if not back else set()
        inside = (running - back) | joined
        again = joined & begun_rows
        first = joined - begun_rows
        scheduled = {row: prompts[row] + made[row] if row in again else 1 for row in inside}
        kv_tokens = sum(prompts[row] + made[row] for row in inside)
        for row in inside:
            made[row] += 1
        ended = {row for row in inside if made[row] == lengths[row][1]}
        of_first = sum(prompts[row] for row in first)
        statistics = Counted(of_first, len(first), of_first - len(first), len(inside)) if inside else None
        step = watch.step(scheduled, [(row, 1, row in ended) for row in inside], statistics)
        assert (step.size, step.kv_tokens) == (len(inside), kv_tokens)
        assert (set(step.joined), set(step.preempted), set(step.ended)) == (joined, back, ended)
        assert step.recomputed == sum(scheduled[row] - 1 for row in again)
        begun_rows |= first
        running = inside - ended
