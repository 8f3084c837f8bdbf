"""What workers did and when, by the one clock that all processes of a machine have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
# Pieces of work that a worker remembers one by one; of older ones it knows sums.
KEPT = 1 << 17
_COLUMNS = ("batch", "iteration", "cycle", "slice", "start_ns", "end_ns")
# Rows of one message: well below what a control message may have.
_ROWS_A_MESSAGE = 1 << 17


class WorkRecords(msgspec.Struct, tag=True, frozen=True):
    """A part of what a worker has recorded, as it is sent to the front end."""

    rows: Ints  # pieces of work
    sums: Ints  # batch, iteration, nanoseconds
    busy_ns: int
    more: bool  # whether another part follows


class Recorder:
    def __init__(self, kept: int = KEPT) -> None:
        self._rows = np.zeros((kept, len(_COLUMNS)), np.int64)
        self._count = 0
        self._busy_ns = 0
        self._running: dict[int, list[int]] = {}  # by batch: iteration, busy_ns
        self._sums: list[tuple[int, int, int]] = []

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

    def messages(self) -> Iterator[WorkRecords]:
        """All of it; the last message says so."""
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
    """Each iteration's work, in the order of batch and iteration."""

    batch: Ints
    iteration: Ints
    model_s: NDArray[np.float64]  # added up over the replicas that took part, of each the longest worker's
    attention_s: NDArray[np.float64]  # the longest attention worker's


@dataclass(frozen=True)
class Records:
    """What an engine's workers did: pieces of work as columns, each worker's in the order it did them."""

    workers: tuple[str, ...]
    replica_of: tuple[int, ...]  # of model workers the replica or stage, of attention workers -1
    since: tuple[int, ...]  # the cycle that each began with: later than 0 if it has taken over from another
    busy_s: NDArray[np.float64]  # by worker, since the start
    of_iterations: Iterations
    worker: Ints = field(repr=False)
    batch: Ints = field(repr=False)
    iteration: Ints = field(repr=False)
    cycle: Ints = field(repr=False)
    slice: Ints = field(repr=False)  # for attention: the slice before it
    start_ns: Ints = field(repr=False)  # of CLOCK_MONOTONIC
    end_ns: Ints = field(repr=False)

    def __len__(self) -> int:
        return len(self.worker)

    def where(self, rows: NDArray[Any]) -> Records:
        """Some pieces of work only; sums stay."""
        columns = {name: getattr(self, name)[rows] for name in ("worker", *_COLUMNS)}
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in columns}
        return Records(**kept, **columns)

    def idle(self) -> dict[str, float | None]:
        """Share of the recorded time that each worker had nothing to do: from when all of them had begun to
        when the first has nothing more on record. None where too little was recorded.
        """
        mine = [self.worker == number for number in range(len(self.workers))]
        working = [rows for rows in mine if rows.any()]
        first = max((int(self.start_ns[rows].min()) for rows in working), default=0)
        last = min((int(self.end_ns[rows].max()) for rows in working), default=0)
        if last <= first:
            return dict.fromkeys(self.workers, None)
        inside = np.maximum(np.minimum(self.end_ns, last) - np.maximum(self.start_ns, first), 0)
        return {
            name: 1 - int(inside[rows].sum()) / (last - first)
            for name, rows in zip(self.workers, mine, strict=True)
        }


def gather(
    workers: Iterable[str],
    replica_of: Iterable[int],
    reports: Iterable[Iterable[WorkRecords]],
    since: Iterable[int] = (),
) -> Records:
    rows: list[Ints] = []
    sums: list[Ints] = []
    busy: list[int] = []
    for number, messages in enumerate(reports):
        busy.append(0)
        for message in messages:
            busy[-1] = message.busy_ns
            rows.append(np.column_stack([np.full(len(message.rows), number), message.rows]))
            sums.append(np.column_stack([np.full(len(message.sums), number), message.sums]))
    table = np.concatenate(rows) if rows else np.empty((0, 1 + len(_COLUMNS)), np.int64)
    columns = dict(zip(("worker", *_COLUMNS), table.T, strict=True))
    replicas = tuple(replica_of)
    begun = tuple(since) or (0,) * len(replicas)
    return Records(
        tuple(workers), replicas, begun, np.array(busy) / 1e9, _iterations(sums, replicas), **columns
    )


def _iterations(sums: list[Ints], replica_of: tuple[int, ...]) -> Iterations:
    """The workers of a replica, and the attention workers, work side by side: the longest counts."""
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
