"""The engine's scheduler: requests that come, leave early, grow and make room for each other.

Staged, they are given memory first and join their batch when their KV is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina._native import LiveScheduler

TOKENS, SEQUENCES, BATCHES = 120, 12, 2


@dataclass
class Lives:
    """What every request must have gone through, kept beside the scheduler."""

    scheduler: LiveScheduler
    staged: bool
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
            assert row in self.left
            assert row not in self.running
            assert row in self.ready or not self.staged, "nobody joins without KV"
            self.ready.discard(row)
            self.running[row] = batch
        admitted = set(self.scheduler.admitted.tolist())
        assert not admitted & (self.admitted | self.ready | self.running.keys())
        assert admitted <= self.left.keys()
        if self.staged:
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
        if self.staged:  # others wait, to us, until their batch's turn has come
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


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("admission", ["reserve", "grow"])
@given(steps=STEPS)
def test_bookkeeping_is_consistent_for_any_sequence_of_events(
    admission: str, stages: bool, steps: list[tuple[str, int, int, int]]
) -> None:
    scheduler = LiveScheduler(
        TOKENS, SEQUENCES, batches=BATCHES, admission=admission, staged=stages, min_batch=3 if stages else 1
    )
    lives = Lives(scheduler, stages)
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
    # Whatever is left ends by itself, once its KV is there, and then everything is free again.
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


def test_removing_in_the_middle_of_an_iteration_gives_back_the_room_for_its_token() -> None:
    scheduler = LiveScheduler(100, 4, admission="grow")
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
    scheduler = LiveScheduler(10_000, 4)
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


def _served(scheduler: LiveScheduler) -> list[int]:
    """Return the rows that wait, in the order in which they are served one by one."""
    rows = []
    while scheduler.waiting:
        rows += scheduler.advance()[1].tolist()
        scheduler.finish()
    return rows


def test_smaller_keys_are_served_first() -> None:
    scheduler = LiveScheduler(1000, 1)
    rows = [scheduler.add(1, 1, key=key) for key in (5, 3, 4)]
    assert _served(scheduler) == [rows[1], rows[2], rows[0]]


def test_one_of_the_waiting_can_be_removed_wherever_it_stands() -> None:
    scheduler = LiveScheduler(1000, 1)
    rows = [scheduler.add(1, 1, key=key) for key in (2, 1, 5, 4, 3)]
    for lost in (rows[1], rows[2]):
        assert lost is not None
        scheduler.remove(lost)
    assert _served(scheduler) == [rows[0], rows[4], rows[3]]
    with pytest.raises(IndexError, match="no request has this row"):
        scheduler.remove(rows[1])


def _joined(scheduler: LiveScheduler) -> list[int]:
    """How many sequences each batch has once all had their turn."""
    for batch in range(3):
        scheduler.advance(batch)
    return [scheduler.size(batch) for batch in range(3)]


def test_as_many_batches_take_turns_as_have_enough_each() -> None:
    scheduler = LiveScheduler(10_000, 64, batches=3, min_batch=4)
    rows = [scheduler.add(1, 9, key=key) for key in range(7)]
    assert _joined(scheduler) == [7, 0, 0]
    rows += [scheduler.add(1, 9, key=key) for key in range(7, 12)]
    # The eighth begins another one, which then is the emptiest; the twelfth a third.
    assert _joined(scheduler) == [7, 4, 1]
    # It is decided anew with whoever comes: with few left, the fullest gets them, and the others run empty.
    for row in rows[:7]:
        assert row is not None
        scheduler.remove(row)
    scheduler.add(1, 9, key=12)
    assert _joined(scheduler) == [0, 5, 1]
    scheduler.check_integrity()


def test_a_request_of_several_sequences_counts_as_many() -> None:
    scheduler = LiveScheduler(10_000, 64, batches=3, min_batch=4)
    for key in range(3):
        scheduler.add(1, 9, width=4, key=key)
    assert _joined(scheduler) == [4, 4, 4]


def test_requests_that_never_fit_are_refused_at_once() -> None:
    scheduler = LiveScheduler(100, 4)
    assert scheduler.add(60, 41, key=0) is None
    assert scheduler.add(60, 40, key=0) is not None
    assert scheduler.add(10, 30, width=4, key=0) is None
    assert scheduler.add(1, 1, width=5, key=0) is None


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="'reserve' or 'grow', not 'hope'"):
        LiveScheduler(1, 1, admission="hope")
    with pytest.raises(ValueError, match="at least 1"):
        LiveScheduler(0, 1)
    with pytest.raises(ValueError, match="at least 1"):
        LiveScheduler(1, 1, min_batch=0)
    with pytest.raises(IndexError, match="no such batch"):
        LiveScheduler(1, 1).advance(1)
    with pytest.raises(ValueError, match="at least one token of prompt"):
        LiveScheduler(1, 1).add(0, 1, key=0)


def test_a_row_is_in_the_pool_that_had_most_room_when_it_joined() -> None:
    scheduler = LiveScheduler(100, 8, pools=2)
    rows = [scheduler.add(prompt, 10, key=key) for key, prompt in enumerate((50, 20, 20, 20))]
    scheduler.advance()
    pools = [scheduler.pool(row) for row in rows if row is not None]
    # 100 free tokens against 100, 40 against 100, 40 against 70, 40 against 40: of equals the first.
    assert pools == [0, 1, 1, 0]
    with pytest.raises(IndexError, match="no request has this row"):
        scheduler.pool(99)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 10)), min_size=1, max_size=25), st.integers(1, 4)
)
def test_no_pool_holds_more_than_fits(requests: list[tuple[int, int]], pools: int) -> None:
    scheduler = LiveScheduler(60, 20, pools=pools)
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


def staged(tokens: int = 1000, sequences: int = 8, **options: int | str) -> LiveScheduler:
    return LiveScheduler(tokens, sequences, staged=True, **options)  # type: ignore[arg-type]


def added(scheduler: LiveScheduler, prompt: int, output: int, *, width: int = 1, key: int = 0) -> int:
    row = scheduler.add(prompt, output, width=width, key=key)
    assert row is not None
    return row


def test_admitted_requests_reserve_memory_and_wait_for_kv() -> None:
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


def test_ready_requests_join_in_order_of_readiness() -> None:
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


def test_requests_without_kv_are_not_preempted() -> None:
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


def test_only_admitted_requests_become_ready_once() -> None:
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


def test_without_stages_requests_are_ready_at_once() -> None:
    scheduler = LiveScheduler(100, 4)
    row = added(scheduler, 10, 5)
    assert scheduler.advance()[1].tolist() == [row]
    assert scheduler.admitted.tolist() == []
    with pytest.raises(ValueError, match="only a request that was admitted"):
        scheduler.ready(row)
