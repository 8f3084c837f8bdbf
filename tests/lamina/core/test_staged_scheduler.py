"""Requests that are given memory first and join their batch when their KV is there."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina._native import Scheduler

TOKENS, SEQUENCES, BATCHES = 120, 12, 2


@dataclass
class Lives:
    """What every request must have gone through, kept beside the scheduler."""

    scheduler: Scheduler
    left: dict[int, int] = field(default_factory=dict)  # row -> tokens still to make
    admitted: set[int] = field(default_factory=set)  # have memory, and no KV yet
    ready: set[int] = field(default_factory=set)  # have KV, and have not joined
    running: dict[int, int] = field(default_factory=dict)  # row -> batch

    def add(self, prompt: int, output: int, width: int, key: int) -> None:
        row = self.scheduler.add(prompt, output, width=width, key=key)
        if row is not None:
            assert row not in self.left, "a row was given to two requests"
            self.left[row] = output

    def remove(self, row: int) -> None:
        self.scheduler.remove(row)
        del self.left[row]
        self.admitted.discard(row)
        self.ready.discard(row)
        self.running.pop(row, None)

    def get_ready(self, row: int) -> None:
        self.scheduler.ready(row)
        self.admitted.remove(row)
        self.ready.add(row)

    def iterate(self, batch: int) -> None:
        preempted, joined = self.scheduler.advance(batch)
        self.scheduler.check_integrity()
        for row in preempted.tolist():
            assert self.running.pop(row) == batch, "only who runs in this batch makes room for it"
        for row in joined.tolist():
            assert row in self.ready, "nobody joins without KV"
            self.ready.remove(row)
            self.running[row] = batch
        admitted = set(self.scheduler.admitted.tolist())
        assert not admitted & (self.admitted | self.ready | self.running.keys())
        assert admitted <= self.left.keys()
        self.admitted |= admitted
        for row, where in self.running.items():
            if where == batch:
                self.left[row] -= 1
        done = self.scheduler.finish(batch).tolist()
        self.scheduler.check_integrity()
        assert sorted(done) == sorted(row for row, tokens in self.left.items() if tokens == 0)
        for row in done:
            del self.left[row]
            del self.running[row]

    def check(self) -> None:
        self.scheduler.check_integrity()
        under_way = len(self.admitted) + len(self.ready) + len(self.running)
        assert self.scheduler.waiting == len(self.left) - under_way


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 40), st.integers(1, 4)),
        st.tuples(st.just("remove"), st.integers(0, 10)),
        st.tuples(st.just("ready"), st.integers(0, 10)),
        st.tuples(st.just("iterate"), st.integers(0, BATCHES - 1)),
    ),
    max_size=120,
)


@pytest.mark.parametrize("admission", ["reserve", "grow"])
@given(steps=STEPS)
def test_books_stay_right_whatever_comes_gets_ready_and_goes(
    admission: str, steps: list[tuple[str, int, int, int]]
) -> None:
    lives = Lives(Scheduler(TOKENS, SEQUENCES, batches=BATCHES, admission=admission, staged=True))
    for number, (kind, *arguments) in enumerate(steps):
        if kind == "add":
            prompt, output, width = arguments
            lives.add(prompt, output, width, key=number)
        elif kind == "remove" and lives.left:
            lives.remove(sorted(lives.left)[arguments[0] % len(lives.left)])
        elif kind == "ready" and lives.admitted:
            lives.get_ready(sorted(lives.admitted)[arguments[0] % len(lives.admitted)])
        elif kind == "iterate":
            lives.iterate(arguments[0])
        lives.check()
    # Whatever is left ends once its KV is there, also where they make room for each other.
    for _ in range(40 * (len(steps) + 1)):
        if not lives.left:
            break
        for row in sorted(lives.admitted):
            lives.get_ready(row)
        for batch in range(BATCHES):
            lives.iterate(batch)
    assert not lives.left
    assert lives.scheduler.free_tokens == TOKENS
    assert lives.scheduler.waiting == lives.scheduler.running == 0


def staged(tokens: int = 1000, sequences: int = 8, **options: int | str) -> Scheduler:
    return Scheduler(tokens, sequences, staged=True, **options)  # type: ignore[arg-type]


def added(scheduler: Scheduler, prompt: int, output: int, *, width: int = 1, key: int = 0) -> int:
    row = scheduler.add(prompt, output, width=width, key=key)
    assert row is not None
    return row


def test_who_is_admitted_holds_memory_and_waits_for_its_kv() -> None:
    scheduler = staged()
    row = added(scheduler, 10, 5, width=2)
    assert [rows.tolist() for rows in scheduler.advance()] == [[], []]
    assert scheduler.admitted.tolist() == [row]
    assert (scheduler.free_tokens, scheduler.waiting, scheduler.running, scheduler.size()) == (980, 0, 2, 0)
    scheduler.finish()
    assert [rows.tolist() for rows in scheduler.advance()] == [[], []]
    assert scheduler.admitted.tolist() == [], "told once"
    scheduler.ready(row)
    scheduler.finish()
    assert [rows.tolist() for rows in scheduler.advance()] == [[], [row]]
    assert scheduler.size() == 2


def test_whoever_is_ready_first_joins_first() -> None:
    scheduler = staged(batches=2)
    rows = [added(scheduler, 1, 5, key=key) for key in range(4)]
    scheduler.advance(0)
    assert scheduler.admitted.tolist() == rows, "for both batches, whichever goes on first"
    scheduler.finish(0)
    for row in reversed(rows):
        scheduler.ready(row)
    assert scheduler.advance(1)[1].tolist() == [rows[3], rows[1]]
    assert scheduler.advance(0)[1].tolist() == [rows[2], rows[0]]


@pytest.mark.parametrize("is_ready", [False, True])
def test_one_that_was_admitted_can_be_removed_before_it_joins(is_ready: bool) -> None:
    scheduler = staged(sequences=1)
    first, second = added(scheduler, 10, 5), added(scheduler, 20, 5, key=1)
    scheduler.advance()
    if is_ready:
        scheduler.ready(first)
    scheduler.remove(first)
    scheduler.check_integrity()
    assert (scheduler.free_tokens, scheduler.running) == (1000, 0)
    scheduler.finish()
    assert scheduler.advance()[1].tolist() == []
    assert scheduler.admitted.tolist() == [second], "there is room for the next one"


def test_those_without_kv_are_not_the_ones_who_make_room() -> None:
    scheduler = staged(tokens=30, admission="grow")
    old, young = added(scheduler, 10, 15), added(scheduler, 15, 10, key=1)
    scheduler.advance()
    assert scheduler.admitted.tolist() == [old, young]
    scheduler.ready(old)
    scheduler.finish()
    for _ in range(4):  # 11 and 16 tokens are promised, 3 are left to grow into
        assert scheduler.advance()[0].tolist() == []
        scheduler.finish()
    assert scheduler.advance()[0].tolist() == [old]
    scheduler.check_integrity()
    scheduler.ready(young)
    scheduler.finish()
    assert scheduler.advance()[1].tolist() == [young]


def test_only_who_was_admitted_gets_ready_and_once() -> None:
    scheduler = staged(sequences=1)
    row, waiting = added(scheduler, 1, 5), added(scheduler, 1, 5, key=1)
    refused = "only a request that was admitted can get ready, and once"
    for early in (row, waiting):
        with pytest.raises(ValueError, match=refused):
            scheduler.ready(early)
    scheduler.advance()
    scheduler.ready(row)
    with pytest.raises(ValueError, match=refused):
        scheduler.ready(row)
    scheduler.finish()
    scheduler.advance()
    with pytest.raises(ValueError, match=refused):
        scheduler.ready(row)
    with pytest.raises(IndexError, match="no request has this row"):
        scheduler.ready(99)


def test_without_stages_nobody_has_to_be_told_ready() -> None:
    scheduler = Scheduler(100, 4)
    row = added(scheduler, 10, 5)
    assert scheduler.advance()[1].tolist() == [row]
    assert scheduler.admitted.tolist() == []
    with pytest.raises(ValueError, match="only a request that was admitted"):
        scheduler.ready(row)
