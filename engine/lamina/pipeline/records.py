"""Records of the work of workers, and checks against the schedule."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lamina.pipeline.partition import Schedule

Ints = NDArray[np.int64]
# Pieces of work that a worker records individually; older ones are only in sums.
RECORD_LIMIT = 1 << 17
NO_ENDS: Ints = np.empty((0, 2), np.int64)
_COLUMNS = ("batch", "iteration", "cycle", "slice", "start_ns", "end_ns")
# Rows per message, well below the limit of a control message.
_ROWS_A_MESSAGE = 1 << 17


class WorkRecords(msgspec.Struct, tag=True, frozen=True):
    """A part of a worker's records, sent to the front end."""

    rows: Ints  # pieces of work
    sums: Ints  # batch, iteration, nanoseconds
    busy_ns: int
    more: bool  # whether another part follows
    ends: Ints = NO_ENDS  # of an emulated device: see EmulatedDevice


class Recorder:
    def __init__(self, limit: int = RECORD_LIMIT) -> None:
        self._rows = np.zeros((limit, len(_COLUMNS)), np.int64)
        self._count = 0
        self._busy_ns = 0
        self._running: dict[int, list[int]] = {}  # by batch: iteration, busy_ns
        self._sums: list[tuple[int, int, int]] = []

    def now(self) -> int:
        """Return the time of CLOCK_MONOTONIC in nanoseconds."""
        return time.monotonic_ns()

    def wait(self, moment: int) -> None:
        """Wait until a moment has passed; on a CPU it has."""

    def note(self, batch: int, iteration: int, cycle: int, slice_: int, start_ns: int, end_ns: int) -> None:
        self._rows[self._count % len(self._rows)] = (batch, iteration, cycle, slice_, start_ns, end_ns)
        self._count += 1
        took = end_ns - start_ns
        self._busy_ns += took
        running = self._running.setdefault(batch, [iteration, 0])
        if running[0] != iteration:
            self._sums.append((batch, running[0], running[1]))
            running[:] = [iteration, 0]
        running[1] += took

    def forget(self) -> None:
        """Clear all records."""
        self._count = self._busy_ns = 0
        self._running.clear()
        self._sums.clear()

    def messages(self) -> Iterator[WorkRecords]:
        """Yield all records as messages, of which the last has `more` False."""
        split = self._count % len(self._rows) if self._count > len(self._rows) else 0
        rows = np.concatenate([self._rows[split:], self._rows[:split]])[: min(self._count, len(self._rows))]
        running = [(batch, *sums) for batch, sums in self._running.items()]
        sums = np.array([*self._sums, *running], np.int64).reshape(-1, 3)
        count = max(len(rows), len(sums))
        for first in range(0, max(count, 1), _ROWS_A_MESSAGE):
            last = first + _ROWS_A_MESSAGE
            yield WorkRecords(rows[first:last], sums[first:last], self._busy_ns, more=last < count)


@dataclass(frozen=True)
class Iterations:
    """The work of each iteration, sorted by batch and iteration."""

    batch: Ints
    iteration: Ints
    model_s: NDArray[np.float64]  # sum over replicas of the longest worker's
    attention_s: NDArray[np.float64]  # the longest attention worker's


@dataclass(frozen=True)
class Records:
    """The recorded work of an engine's workers: pieces as columns, each worker's in order."""

    workers: tuple[str, ...]
    replica_of: tuple[int, ...]  # replica or stage of a model worker; -1 for attention workers
    since: tuple[int, ...]  # first cycle of each: above 0 if it replaced another
    busy_s: NDArray[np.float64]  # by worker, since the start
    of_iterations: Iterations
    worker: Ints = field(repr=False)
    batch: Ints = field(repr=False)
    iteration: Ints = field(repr=False)
    cycle: Ints = field(repr=False)
    slice: Ints = field(repr=False)  # for attention: the slice before it
    start_ns: Ints = field(repr=False)  # of CLOCK_MONOTONIC
    end_ns: Ints = field(repr=False)
    # Iterations on emulated devices: how long the host waited for the end, and how late it continued.
    ends_ns: Ints = field(default_factory=lambda: NO_ENDS, repr=False)

    def __len__(self) -> int:
        return len(self.worker)

    def where(self, rows: NDArray[Any]) -> Records:
        """Return records with a selection of pieces; sums are unchanged."""
        columns = {name: getattr(self, name)[rows] for name in ("worker", *_COLUMNS)}
        others = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in columns}
        return Records(**others, **columns)

    def moved(self, instance: int, *, replicas: int, batches: int) -> Records:
        """Return records with names and numbers offset to be one of several engines."""
        return replace(
            self,
            workers=tuple(f"{instance}/{name}" for name in self.workers),
            replica_of=tuple(of if of < 0 else of + replicas for of in self.replica_of),
            of_iterations=replace(self.of_iterations, batch=self.of_iterations.batch + batches),
            batch=self.batch + batches,
        )

    def idle(self) -> dict[str, float | None]:
        """Return each worker's idle share of the recorded time; None if too little was recorded.

        The time is from when all workers have started to the first worker's last record.
        """
        own = [self.worker == number for number in range(len(self.workers))]
        working = [rows for rows in own if rows.any()]
        first = max((int(self.start_ns[rows].min()) for rows in working), default=0)
        last = min((int(self.end_ns[rows].max()) for rows in working), default=0)
        if last <= first:
            return dict.fromkeys(self.workers, None)
        inside = np.maximum(np.minimum(self.end_ns, last) - np.maximum(self.start_ns, first), 0)
        return {
            name: 1 - int(inside[rows].sum()) / (last - first)
            for name, rows in zip(self.workers, own, strict=True)
        }


def joined(parts: Sequence[Records]) -> Records:
    """Join the records of several engines; each has been `moved`."""
    first = np.cumsum([0, *(len(part.workers) for part in parts)])
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    iterations = {
        item.name: np.concatenate([getattr(part.of_iterations, item.name) for part in parts])
        for item in fields(Iterations)
    }
    return Records(
        tuple(name for part in parts for name in part.workers),
        tuple(of for part in parts for of in part.replica_of),
        tuple(since for part in parts for since in part.since),
        np.concatenate([part.busy_s for part in parts]),
        Iterations(**iterations),
        worker=np.concatenate([part.worker + at for part, at in zip(parts, first, strict=False)]),
        **columns,
        ends_ns=np.concatenate([part.ends_ns for part in parts]),
    )


def gather(
    workers: Iterable[str],
    replica_of: Iterable[int],
    reports: Iterable[Iterable[WorkRecords]],
    since: Iterable[int] = (),
) -> Records:
    rows: list[Ints] = []
    ends: list[Ints] = [NO_ENDS]
    sums: list[Ints] = []
    busy: list[int] = []
    for number, messages in enumerate(reports):
        busy.append(0)
        for message in messages:
            busy[-1] = message.busy_ns
            rows.append(np.column_stack([np.full(len(message.rows), number), message.rows]))
            ends.append(message.ends)
            sums.append(np.column_stack([np.full(len(message.sums), number), message.sums]))
    table = np.concatenate(rows) if rows else np.empty((0, 1 + len(_COLUMNS)), np.int64)
    columns = dict(zip(("worker", *_COLUMNS), table.T, strict=True))
    replicas = tuple(replica_of)
    begun = tuple(since) or (0,) * len(replicas)
    return Records(
        tuple(workers),
        replicas,
        begun,
        np.array(busy) / 1e9,
        _iterations(sums, replicas),
        **columns,
        ends_ns=np.concatenate(ends),
    )


def _iterations(sums: list[Ints], replica_of: tuple[int, ...]) -> Iterations:
    """Sum work by iteration; the longest counts among a replica's workers, and among attention workers."""
    table = np.concatenate(sums) if sums else np.empty((0, 4), np.int64)
    kinds = np.array(replica_of, np.int64)[table[:, 0]] if len(table) else table[:, 0]
    keys, place = np.unique(table[:, 1:3], axis=0, return_inverse=True)
    model, attention = np.zeros(len(keys)), np.zeros(len(keys))
    for replica in sorted(set(replica_of)):
        rows = kinds == replica
        longest = np.zeros(len(keys))
        np.maximum.at(longest, place.reshape(-1)[rows], table[rows, 3] / 1e9)
        if replica < 0:
            attention = longest
        else:
            model += longest
    return Iterations(keys[:, 0], keys[:, 1], model, attention)


# Limit per kind of violation.
MOST_REPORTED = 5


def check_schedule(records: Records, schedule: Schedule) -> list[str]:
    """Return one sentence for each violation of the schedule in the records.

    Checked are that no worker did two pieces at once, that each worked in the schedule's order and at its
    place, that no piece started before its inputs were ready, and that no iteration lacks a piece.
    """
    result: list[str] = []
    for number in range(len(records.workers)):
        own = records.where(records.worker == number)
        for check in (_overlaps, _out_of_order, _misplaced):
            result += list(check(own, number, schedule))[:MOST_REPORTED]
    result += list(_too_early(records, schedule))[:MOST_REPORTED]
    result += list(_incomplete(records, schedule))[:MOST_REPORTED]
    return result


def _overlaps(own: Records, number: int, _: Schedule) -> Iterator[str]:
    for row in np.flatnonzero(own.start_ns[1:] < own.end_ns[:-1]) + 1:
        yield f"{_piece(own, row)} began on {own.workers[number]} before {_piece(own, row - 1)} had ended"


def _out_of_order(own: Records, number: int, schedule: Schedule) -> Iterator[str]:
    for row in np.flatnonzero(np.diff(_order(own, schedule)) <= 0) + 1:
        yield f"{own.workers[number]} did {_piece(own, row)} after {_piece(own, row - 1)}"


def _misplaced(own: Records, number: int, schedule: Schedule) -> Iterator[str]:
    replica = own.replica_of[number]
    if replica < 0:
        return
    columns = (own.batch.tolist(), own.cycle.tolist(), own.slice.tolist())
    for row, turn in enumerate(zip(*columns, strict=True)):
        if (place := schedule.place(*turn)) != replica:
            yield f"{_piece(own, row)} is for place {place} and was run on {own.workers[number]}"


def _too_early(records: Records, schedule: Schedule) -> Iterator[str]:
    """Check that attention waited for q, slices for attention, and iterations for tokens."""
    # Records of lost workers are missing for earlier cycles.
    records = records.where(records.cycle >= max(records.since, default=0))
    attention = np.array(records.replica_of, np.int64)[records.worker] < 0
    keys = (records.batch * (records.cycle.max(initial=0) + 1) + records.cycle) * schedule.slices
    keys = keys + records.slice
    slices, attentions = records.where(~attention), records.where(attention)
    slice_keys, attention_keys = keys[~attention], keys[attention]
    starts = _of_each(slice_keys, slices.start_ns, np.minimum)
    for row, start in _matched(attention_keys, starts):
        if attentions.start_ns[row] < start:
            yield f"attention of {_piece(attentions, row)} began before its slice"
    # One of several ranks may continue while attention computes for another.
    latest = _of_each(slice_keys, slices.start_ns, np.maximum)
    for row, start in _matched(attention_keys + 1, latest):
        if attentions.end_ns[row] > start:
            yield f"what comes after it began before the attention of {_piece(attentions, row)} had ended"
    # More than any iteration's number, so that batches do not overlap.
    width = records.iteration.max(initial=0) + 2
    first, last = slices.where(slices.slice == 0), slices.where(slices.slice == schedule.slices - 1)
    ended = _of_each(last.batch * width + last.iteration + 1, last.end_ns, np.minimum)
    for row, end in _matched(first.batch * width + first.iteration, ended):
        if first.start_ns[row] < end:
            yield f"{_piece(first, row)} began before the batch's last iteration had ended"


def _incomplete(records: Records, schedule: Schedule) -> Iterator[str]:
    """Check that iterations recorded from before their first slice to after their last are complete."""
    if not len(records):
        return
    of_attention = np.array(records.replica_of, np.int64)[records.worker] < 0
    ranks = sum(replica >= 0 for replica in records.replica_of) // schedule.places
    # A worker's records are complete from one of its turns on.
    order = _order(records, schedule)
    since = max(int(order[records.worker == number].min()) for number in np.unique(records.worker))
    since = max(since, schedule.clock(0, max(records.since, default=0), 0) * schedule.batches)
    newest = dict(
        zip(*(item.tolist() for item in _of_each(records.batch, records.cycle, np.maximum)), strict=True)
    )
    ends = records.where((records.slice == schedule.slices - 1) & ~of_attention)
    ended = set(zip(ends.batch.tolist(), ends.cycle.tolist(), strict=True))
    # One key for all model workers together, and one for each attention worker.
    kind = np.where(of_attention, records.worker, -1)
    keys, counts = np.unique(
        np.column_stack([records.batch, records.cycle, kind]), axis=0, return_counts=True
    )
    for (batch, cycle, key), count in zip(keys.tolist(), counts.tolist(), strict=True):
        begins = schedule.clock(batch, cycle, 0) * schedule.batches + batch
        if begins < since or (cycle == newest[batch] and (batch, cycle) not in ended):
            continue
        wanted = schedule.slices * ranks if key < 0 else schedule.slices - 1
        if count != wanted:
            name = "model workers" if key < 0 else records.workers[key]
            yield f"in cycle {cycle} the {name} did {count} pieces of work for batch {batch}, not {wanted}"


def _order(own: Records, schedule: Schedule) -> NDArray[np.int64]:
    """Return clock and batch as one number by which turns are ordered."""
    ticks = np.array([schedule.clock(0, 0, slice_) for slice_ in range(schedule.slices)], np.int64)
    cycle, batch = (schedule.clock(*one, 0) - ticks[0] for one in ((0, 1), (1, 0)))
    clocks = own.cycle * cycle + own.batch * batch + ticks[own.slice]
    order: NDArray[np.int64] = clocks * schedule.batches + own.batch
    return order


def _of_each(
    keys: NDArray[np.int64], values: NDArray[np.int64], reduce: np.ufunc
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return unique keys with the least or largest of their values."""
    order = np.argsort(keys, kind="stable")
    unique, first = np.unique(keys[order], return_index=True)
    return unique, reduce.reduceat(values[order], first) if len(unique) else values[:0]


def _matched(
    keys: NDArray[np.int64], known: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> Iterator[tuple[int, int]]:
    unique, values = known
    if not len(unique):
        return
    places = np.minimum(np.searchsorted(unique, keys), len(unique) - 1)
    for row in np.flatnonzero(unique[places] == keys).tolist():
        yield row, int(values[places[row]])


def _piece(records: Records, row: int | np.intp) -> str:
    batch, cycle, slice_ = (int(getattr(records, name)[row]) for name in ("batch", "cycle", "slice"))
    return f"slice {slice_} of batch {batch} in cycle {cycle}"
