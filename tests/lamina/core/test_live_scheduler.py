"""The engine's scheduler: requests that come, leave early, grow and make room for each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina._native import Scheduler


@dataclass
class Lives:
    """What every request must have gone through, kept beside the scheduler."""

    scheduler: Scheduler
    left: dict[int, int] = field(default_factory=dict)  # row -> tokens still to make
    running: dict[int, int] = field(default_factory=dict)  # row -> batch
    finished: int = 0

    def add(self, prompt: int, output: int, width: int, key: int) -> None:
        row = self.scheduler.add(prompt, output, width=width, key=key)
        if row is not None:
            assert row not in self.left, "a row was given to two requests"
            self.left[row] = output

    def remove(self, row: int) -> None:
        self.scheduler.remove(row)
        del self.left[row]
        self.running.pop(row, None)

    def iterate(self, batch: int) -> None:
        preempted, joined = self.scheduler.advance(batch)
        self.scheduler.check_integrity()
        for row in preempted.tolist():
            assert self.running.pop(row) == batch
        for row in joined.tolist():
            assert row in self.left
            assert row not in self.running
            self.running[row] = batch
        for row, where in self.running.items():
            if where == batch:
                self.left[row] -= 1
        done = self.scheduler.finish(batch).tolist()
        self.scheduler.check_integrity()
        assert sorted(done) == sorted(row for row, tokens in self.left.items() if tokens == 0)
        for row in done:
            del self.left[row]
            del self.running[row]
        self.finished += len(done)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 40), st.integers(1, 4)),
        st.tuples(st.just("remove"), st.integers(0, 10)),
        st.tuples(st.just("iterate"), st.integers(0, 1)),
    ),
    max_size=120,
)


@pytest.mark.parametrize("admission", ["reserve", "grow"])
@given(steps=STEPS)
def test_books_stay_right_whatever_comes_and_goes(
    admission: str, steps: list[tuple[str, int, int, int]]
) -> None:
    lives = Lives(Scheduler(120, 12, batches=2, admission=admission))
    for number, (kind, *arguments) in enumerate(steps):
        if kind == "add":
            prompt, output, width = arguments
            lives.add(prompt, output, width, key=number)
        elif kind == "remove" and lives.left:
            lives.remove(sorted(lives.left)[arguments[0] % len(lives.left)])
        elif kind == "iterate":
            lives.iterate(arguments[0])
        lives.scheduler.check_integrity()
    # Whatever is left ends by itself, and then everything is free again.
    for _ in range(40 * (len(steps) + 1)):
        if not lives.left:
            break
        lives.iterate(0)
        lives.iterate(1)
    assert not lives.left
    assert lives.scheduler.free_tokens == 120
    assert lives.scheduler.waiting == lives.scheduler.running == 0


def test_removing_in_the_middle_of_an_iteration_gives_back_the_room_for_its_token() -> None:
    scheduler = Scheduler(100, 4, admission="grow")
    row = scheduler.add(10, 5, width=2, key=0)
    assert row is not None
    scheduler.advance()
    assert scheduler.free_tokens == 100 - 12
    scheduler.finish()
    scheduler.advance()
    scheduler.remove(row)
    assert scheduler.free_tokens == 100
    scheduler.check_integrity()


def test_an_output_longer_than_any_before_still_ends() -> None:
    scheduler = Scheduler(10_000, 4)
    short, long = scheduler.add(1, 3, key=0), None
    ended: dict[int, int] = {}
    for iteration in range(1, 2100):
        if iteration == 2:
            long = scheduler.add(1, 2000, key=1)
        scheduler.advance()
        for row in scheduler.finish().tolist():
            ended[row] = iteration
    assert short is not None
    assert long is not None
    assert ended == {short: 3, long: 2001}


def test_smaller_keys_are_served_first() -> None:
    scheduler = Scheduler(1000, 1)
    rows = [scheduler.add(1, 1, key=key) for key in (5, 3, 4)]
    served = []
    for _ in rows:
        served += scheduler.advance()[1].tolist()
        scheduler.finish()
    assert served == [rows[1], rows[2], rows[0]]


def test_one_of_the_waiting_can_be_removed_wherever_it_stands() -> None:
    scheduler = Scheduler(1000, 1)
    rows = [scheduler.add(1, 1, key=key) for key in (1, 9, 5, 3)]
    for gone in (rows[1], rows[2]):
        assert gone is not None
        scheduler.remove(gone)
    assert scheduler.waiting == 2
    with pytest.raises(IndexError, match="no request has this row"):
        scheduler.remove(rows[1])


def test_what_could_never_fit_is_told_at_once() -> None:
    scheduler = Scheduler(100, 4)
    assert scheduler.add(60, 41, key=0) is None
    assert scheduler.add(60, 40, key=0) is not None
    assert scheduler.add(10, 30, width=4, key=0) is None
    assert scheduler.add(1, 1, width=5, key=0) is None


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="'reserve' or 'grow', not 'hope'"):
        Scheduler(1, 1, admission="hope")
    with pytest.raises(ValueError, match="at least 1"):
        Scheduler(0, 1)
    with pytest.raises(IndexError, match="no such batch"):
        Scheduler(1, 1).advance(1)
    with pytest.raises(ValueError, match="at least one token of prompt"):
        Scheduler(1, 1).add(0, 1, key=0)


def test_a_row_is_in_the_pool_that_had_most_room_when_it_joined() -> None:
    scheduler = Scheduler(100, 8, pools=2)
    rows = [scheduler.add(prompt, 10, key=key) for key, prompt in enumerate((50, 20, 20, 20))]
    scheduler.advance()
    pools = [scheduler.pool(row) for row in rows if row is not None]
    # 100 free tokens against 100, 40 against 100, 40 against 70, 40 against 40: of equals the first.
    assert pools == [0, 1, 1, 0]
    with pytest.raises(IndexError, match="no such row"):
        scheduler.pool(99)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 10)), min_size=1, max_size=25), st.integers(1, 4)
)
def test_no_pool_holds_more_than_fits(requests: list[tuple[int, int]], pools: int) -> None:
    scheduler = Scheduler(60, 20, pools=pools)
    charged = {
        row: sum(request)
        for key, request in enumerate(requests)
        if (row := scheduler.add(*request, key=key)) is not None
    }
    running: set[int] = set()
    for _ in range(300):
        joined = scheduler.advance()[1].tolist()
        free = [60 - sum(charged[row] for row in running if scheduler.pool(row) == p) for p in range(pools)]
        for row in joined:
            best = scheduler.pool(row)
            assert free[best] == max(free), "into the one with most room"
            free[best] -= charged[row]
        assert min(free) >= 0
        running |= set(joined)
        running -= set(scheduler.finish().tolist())
        scheduler.check_integrity()
    assert not running
