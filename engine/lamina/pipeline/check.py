"""Whether workers kept to the schedule, from what they recorded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline.records import Records
from lamina.pipeline.schedule import Schedule

# Of each kind: one is enough to know, some help to find out why.
MOST_TOLD = 5


def check_schedule(records: Records, schedule: Schedule) -> list[str]:
    """One sentence for each thing found wrong; nothing if all is as defined.

    That no worker did two things at once, that each did its work in the schedule's order and at its place,
    that nothing began before what it needs was done, and that no iteration lacks a part.
    """
    result: list[str] = []
    for number in range(len(records.workers)):
        mine = records.where(records.worker == number)
        for check in (_overlaps, _out_of_order, _misplaced):
            result += list(check(mine, number, schedule))[:MOST_TOLD]
    result += list(_too_early(records, schedule))[:MOST_TOLD]
    result += list(_incomplete(records, schedule))[:MOST_TOLD]
    return result


def _overlaps(mine: Records, number: int, _: Schedule) -> Iterator[str]:
    for row in np.flatnonzero(mine.start_ns[1:] < mine.end_ns[:-1]) + 1:
        yield f"{_piece(mine, row)} began on {mine.workers[number]} before {_piece(mine, row - 1)} had ended"


def _out_of_order(mine: Records, number: int, schedule: Schedule) -> Iterator[str]:
    for row in np.flatnonzero(np.diff(_order(mine, schedule)) <= 0) + 1:
        yield f"{mine.workers[number]} did {_piece(mine, row)} after {_piece(mine, row - 1)}"


def _misplaced(mine: Records, number: int, schedule: Schedule) -> Iterator[str]:
    replica = mine.replica_of[number]
    if replica < 0:
        return
    columns = (mine.batch.tolist(), mine.cycle.tolist(), mine.slice.tolist())
    for row, turn in enumerate(zip(*columns, strict=True)):
        if (place := schedule.place(*turn)) != replica:
            yield f"{_piece(mine, row)} is for place {place} and was run on {mine.workers[number]}"


def _too_early(records: Records, schedule: Schedule) -> Iterator[str]:
    """Attention needs q, the next slice what attention gave, the next iteration the tokens."""
    # Of earlier ones the records of workers that were lost are lacking.
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
    # Of several ranks one may have its part back, and go on, while attention is at another one's.
    latest = _of_each(slice_keys, slices.start_ns, np.maximum)
    for row, start in _matched(attention_keys + 1, latest):
        if attentions.end_ns[row] > start:
            yield f"what comes after it began before the attention of {_piece(attentions, row)} had ended"
    # More than any iteration's number, so that one batch's last is not another's first.
    width = records.iteration.max(initial=0) + 2
    first, last = slices.where(slices.slice == 0), slices.where(slices.slice == schedule.slices - 1)
    ended = _of_each(last.batch * width + last.iteration + 1, last.end_ns, np.minimum)
    for row, end in _matched(first.batch * width + first.iteration, ended):
        if first.start_ns[row] < end:
            yield f"{_piece(first, row)} began before the batch's last iteration had ended"


def _incomplete(records: Records, schedule: Schedule) -> Iterator[str]:
    """Of iterations that are on record from before their first slice to after their last."""
    if not len(records):
        return
    of_attention = np.array(records.replica_of, np.int64)[records.worker] < 0
    ranks = sum(replica >= 0 for replica in records.replica_of) // schedule.places
    # A worker that has forgotten has forgotten everything before one of its turns.
    order = _order(records, schedule)
    since = max(int(order[records.worker == number].min()) for number in np.unique(records.worker))
    since = max(since, schedule.clock(0, max(records.since, default=0), 0) * schedule.batches)
    newest = dict(
        zip(*(item.tolist() for item in _of_each(records.batch, records.cycle, np.maximum)), strict=True)
    )
    ends = records.where((records.slice == schedule.slices - 1) & ~of_attention)
    ended = set(zip(ends.batch.tolist(), ends.cycle.tolist(), strict=True))
    # One kind of key for all model workers together, and one for each attention worker.
    kind = np.where(of_attention, records.worker, -1)
    keys, counts = np.unique(
        np.column_stack([records.batch, records.cycle, kind]), axis=0, return_counts=True
    )
    for (batch, cycle, who), count in zip(keys.tolist(), counts.tolist(), strict=True):
        begins = schedule.clock(batch, cycle, 0) * schedule.batches + batch
        if begins < since or (cycle == newest[batch] and (batch, cycle) not in ended):
            continue
        wanted = schedule.slices * ranks if who < 0 else schedule.slices - 1
        if count != wanted:
            whose = "model workers" if who < 0 else records.workers[who]
            yield f"in cycle {cycle} the {whose} did {count} pieces of work for batch {batch}, not {wanted}"


def _order(mine: Records, schedule: Schedule) -> NDArray[np.int64]:
    """Clock and batch as one number: what has a smaller one comes first."""
    ticks = np.array([schedule.clock(0, 0, slice_) for slice_ in range(schedule.slices)], np.int64)
    cycle, batch = (schedule.clock(*one, 0) - ticks[0] for one in ((0, 1), (1, 0)))
    clocks = mine.cycle * cycle + mine.batch * batch + ticks[mine.slice]
    order: NDArray[np.int64] = clocks * schedule.batches + mine.batch
    return order


def _of_each(
    keys: NDArray[np.int64], values: NDArray[np.int64], reduce: np.ufunc
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each key once, with the least or largest of its values."""
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
