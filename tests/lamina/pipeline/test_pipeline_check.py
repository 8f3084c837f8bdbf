"""Schedules held against what workers recorded: silence where all is well, a sentence for all that is not."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.pipeline import Recorder, Records, Schedule, check_schedule
from lamina.pipeline.partition import Pipelining
from lamina.pipeline.records import gather

SLICES, CYCLES = 4, 6


@dataclass
class Cluster:
    """Workers that do their turns as soon as they can, each turn as long as is drawn."""

    schedule: Schedule
    ranks: int = 1
    attention_workers: int = 1
    limit: int = 10_000
    away: frozenset[tuple[int, int]] = frozenset()  # (batch, cycle) that a batch sits out
    seed: int = 0
    free: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # by worker, and by batch

    def run(self, cycles: int = CYCLES) -> Records:
        """The records of so many cycles."""
        schedule, draw = self.schedule, np.random.default_rng(self.seed)
        model_workers = schedule.places * self.ranks
        recorders = [Recorder(self.limit) for _ in range(model_workers + self.attention_workers)]
        ready: dict[int, int] = defaultdict(int)
        done: dict[int, int] = defaultdict(int)  # iterations, by batch
        left = cycles * schedule.batches * schedule.slices
        for turn in schedule.turns():
            if not left:
                break
            if turn.cycle >= cycles:  # of a batch that is ahead: stages
                continue
            left -= 1
            if (turn.batch, turn.cycle) not in self.away:
                what = (turn.batch, done[turn.batch], turn.cycle, turn.slice)
                ranks = range(turn.place * self.ranks, (turn.place + 1) * self.ranks)
                ends = [self._work(recorders, each, what, ready[turn.batch], draw) for each in ranks]
                ready[turn.batch] = max(ends)
                if turn.slice < schedule.slices - 1:
                    workers = range(model_workers, len(recorders))
                    ends = [self._work(recorders, each, what, max(ends), draw) for each in workers]
                    ready[turn.batch] = max(ends)
                else:
                    done[turn.batch] += 1
        names = [f"model {number}" for number in range(model_workers)]
        names += [f"attention {number}" for number in range(self.attention_workers)]
        replicas = [number // self.ranks for number in range(model_workers)]
        replicas += [-1] * self.attention_workers
        return gather(names, replicas, [list(recorder.messages()) for recorder in recorders])

    def _work(
        self,
        recorders: list[Recorder],
        worker: int,
        what: tuple[int, int, int, int],
        ready: int,
        draw: np.random.Generator,
    ) -> int:
        start = max(ready, self.free[worker])
        self.free[worker] = start + int(draw.integers(1, 50))
        recorders[worker].note(*what, start, self.free[worker])
        return self.free[worker]


def row_of(records: Records, worker: str, batch: int, cycle: int, slice_: int) -> int:
    number = records.workers.index(worker)
    (row,) = np.flatnonzero(
        (records.worker == number)
        & (records.batch == batch)
        & (records.cycle == cycle)
        & (records.slice == slice_)
    )
    return int(row)


def moved(records: Records, row: int, **values: int) -> Records:
    """The records with one piece of work told otherwise."""
    columns = {name: getattr(records, name).copy() for name in values}
    for name, value in values.items():
        columns[name][row] = value
    return replace(records, **columns)


def without(records: Records, row: int) -> Records:
    return records.where(np.arange(len(records)) != row)


KINDS = [
    ("serial", 1, 1),
    ("rotational", 1, 1),
    *(("rotational", batches, 1) for batches in (2, 3, 4, 5)),
    *(("fixed", batches, 1) for batches in (1, 2, 3)),
    *(("fixed", stages, stages) for stages in (2, 3)),
]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    kind, batches, stages = draw(st.sampled_from(KINDS))
    pipelining: Pipelining = kind
    schedule = Schedule(pipelining, batches, draw(st.integers(max(2, stages + 1), 7)), stages)
    every = st.tuples(st.integers(0, batches - 1), st.integers(0, CYCLES))
    away = draw(st.frozensets(every, max_size=6))
    ranks, workers = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Cluster(schedule, ranks, workers, draw(st.integers(1, 80)), away, draw(st.integers(0, 2**30)))


@settings(deadline=None, max_examples=60)
@given(clusters())
def test_scheduled_work_passes_with_any_record_limit(cluster: Cluster) -> None:
    assert check_schedule(cluster.run(), cluster.schedule) == []


def test_nothing_recorded_is_nothing_wrong() -> None:
    cluster = Cluster(Schedule("rotational", 3, SLICES))
    assert check_schedule(cluster.run(cycles=0), cluster.schedule) == []


@settings(deadline=None, max_examples=30)
@given(clusters(), st.data())
def test_any_piece_lost_in_the_middle_is_missed(cluster: Cluster, data: st.DataObject) -> None:
    cluster.limit = 10_000
    cluster.away = frozenset()
    records = cluster.run()
    # Neither a cycle that a worker may have forgotten, nor one that may not have ended.
    inside = np.flatnonzero((records.cycle > 1) & (records.cycle < CYCLES - 1))
    row = data.draw(st.sampled_from(inside.tolist()))
    result = check_schedule(without(records, row), cluster.schedule)
    batch, cycle, worker = int(records.batch[row]), int(records.cycle[row]), int(records.worker[row])
    attends = records.replica_of[worker] < 0
    name = records.workers[worker] if attends else "model workers"
    expected = cluster.schedule.slices - 1 if attends else cluster.schedule.slices * cluster.ranks
    lost = f"in cycle {cycle} the {name} did {expected - 1} pieces of work for batch {batch}, not {expected}"
    # An attention worker may have none of a batch's requests, and so no piece of it.
    assert result == ([lost] if expected > 1 else [])


@pytest.fixture(params=KINDS, ids=str)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    kind, batches, stages = request.param
    return Cluster(Schedule(kind, batches, SLICES, stages), ranks=2, attention_workers=2)


def someone(cluster: Cluster, slice_: int, rank: int = 0, batch: int = 0) -> str:
    """The model worker that runs this slice of a batch in cycle 2."""
    return f"model {cluster.schedule.place(batch, 2, slice_) * cluster.ranks + rank}"


def reported(cluster: Cluster, records: Records, sentence: str) -> None:
    result = check_schedule(records, cluster.schedule)
    assert any(re.fullmatch(sentence, one) for one in result), result


def test_overlapping_work_is_a_violation(cluster: Cluster) -> None:
    records = cluster.run()
    row = row_of(records, someone(cluster, 1), 0, 2, 1)
    assert records.worker[row + 1] == records.worker[row]
    later = moved(records, row, end_ns=int(records.start_ns[row + 1]) + 1)
    reported(
        cluster, later, rf".* began on {someone(cluster, 1)} before slice 1 of batch 0 in cycle 2 had ended"
    )
    on_end = moved(records, row, end_ns=int(records.start_ns[row + 1]))
    assert not any("began on" in one for one in check_schedule(on_end, cluster.schedule))


@pytest.mark.parametrize("worker", ["model", "attention 1"])
def test_work_in_another_order_is_a_violation(cluster: Cluster, worker: str) -> None:
    records = cluster.run()
    if worker == "model":
        worker = someone(cluster, 1)
    row = row_of(records, worker, 0, 2, 1)
    order = np.arange(len(records))
    order[[row, row + 1]] = order[[row + 1, row]]
    swapped = records.where(order)
    reported(cluster, swapped, rf"{worker} did slice 1 of batch 0 in cycle 2 after slice \d of .*")
    twice = records.where(np.sort(np.append(np.arange(len(records)), row)))
    piece = "slice 1 of batch 0 in cycle 2"
    reported(cluster, twice, f"{worker} did {piece} after {piece}")


@pytest.mark.parametrize("pipelining", ["rotational", "fixed"])
def test_work_at_another_place_is_a_violation(pipelining: Pipelining) -> None:
    cluster = Cluster(Schedule(pipelining, 3, SLICES))
    records = cluster.run()
    place = cluster.schedule.place(1, 2, 1)
    row = row_of(records, f"model {place}", 1, 2, 1)
    other = 1 - place
    elsewhere = moved(records, row, worker=other)
    reported(
        cluster, elsewhere, f"slice 1 of batch 1 in cycle 2 is for place {place} and was run on model {other}"
    )


def test_attention_before_its_slice_is_a_violation(cluster: Cluster) -> None:
    records = cluster.run()
    starts = [records.start_ns[row_of(records, someone(cluster, 1, rank), 0, 2, 1)] for rank in range(2)]
    row = row_of(records, "attention 1", 0, 2, 1)
    early = moved(records, row, start_ns=int(min(starts)) - 1)
    reported(cluster, early, "attention of slice 1 of batch 0 in cycle 2 began before its slice")
    # With q in hand it may begin before the slice has ended.
    at_once = moved(records, row, start_ns=int(min(starts)))
    assert not any("before its slice" in one for one in check_schedule(at_once, cluster.schedule))


def test_a_slice_before_its_attention_is_a_violation(cluster: Cluster) -> None:
    records = cluster.run()
    sentence = "what comes after it began before the attention of slice 1 of batch 0 in cycle 2 had ended"
    row = row_of(records, "attention 0", 0, 2, 1)
    nexts = [row_of(records, someone(cluster, 2, rank), 0, 2, 2) for rank in range(2)]
    late = moved(records, row, end_ns=int(max(records.start_ns[each] for each in nexts)) + 1)
    reported(cluster, late, sentence)
    on_time = moved(records, row, end_ns=int(max(records.start_ns[each] for each in nexts)))
    assert not any("comes after" in one for one in check_schedule(on_time, cluster.schedule))


def test_an_iteration_before_its_tokens_is_a_violation(cluster: Cluster) -> None:
    cluster.away = frozenset({(0, 3)})  # so that the cycle before is not the iteration before
    records = cluster.run()
    lasts = [row_of(records, someone(cluster, SLICES - 1, rank), 0, 2, SLICES - 1) for rank in range(2)]
    place = cluster.schedule.place(0, 4, 0)
    row = row_of(records, f"model {place * 2 + 1}", 0, 4, 0)
    ended = int(min(records.end_ns[each] for each in lasts))
    early = moved(records, row, start_ns=ended - 1)
    reported(
        cluster, early, "slice 0 of batch 0 in cycle 4 began before the batch's last iteration had ended"
    )
    assert check_schedule(records, cluster.schedule) == []


def test_violations_of_a_kind_are_limited() -> None:
    cluster = Cluster(Schedule("rotational", 2, SLICES))
    records = cluster.run(cycles=20)
    wrong = replace(records, end_ns=records.end_ns + 10**9)
    result = check_schedule(wrong, cluster.schedule)
    assert sum("began on model 0" in one for one in result) == 5
    assert len(result) <= 5 * (3 * len(records.workers) + 2)


def test_an_attention_worker_that_has_none_of_a_batchs_requests_may_leave_it_out() -> None:
    cluster = Cluster(Schedule("rotational", 2, SLICES), attention_workers=2)
    records = cluster.run()
    own = (records.worker == records.workers.index("attention 1")) & (records.batch == 1)
    assert check_schedule(records.where(~own), cluster.schedule) == []
