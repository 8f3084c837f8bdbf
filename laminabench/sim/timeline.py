"""A recorded window of a replay as a Perfetto (Chrome) trace, and how much of it each worker idled."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from laminabench.sim.outcome import ATTENTION, Outcome
from laminabench.sim.spec import TICKS_PER_S, Fleet, ticks
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

SUFFIXES = (".json", ".json.gz")
# chrome://tracing's reserved names, one a batch. Perfetto goes by the event's name instead and leaves its
# digits out, so the name ends in the batch's letter.
COLOURS = (
    *("thread_state_running", "rail_animation", "thread_state_iowait", "rail_response"),
    *("cq_build_passed", "rail_load", "cq_build_failed", "generic_work"),
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TICKS_PER_US = TICKS_PER_S // 1_000_000
_DECIMALS = len(str(_TICKS_PER_US)) - 1
_EVENTS_AT_A_TIME = 1 << 14


class Lanes(msgspec.Struct, frozen=True):
    """The lanes of a timeline, and the lane of each recorded piece of work."""

    process: str
    names: tuple[str, ...]
    of: NDArray[np.int64]  # one number for each row of the outcome's timeline
    batches: int


def lanes_of(outcome: Outcome, fleet: Fleet) -> Lanes:
    """Return the virtual cluster's lanes: the replicas, and then the attention workers, which move as one.

    On shared devices attention is work of the batch's replica, where each does its own, or of the only one.
    """
    several = len(fleet.batches) > 1
    names: list[str] = []
    attention: list[str] = []
    first: list[int] = []  # replica of each instance
    for spec in fleet.specs:
        for _ in range(spec.copies):
            number = f" {len(first)}" if several else ""
            first.append(len(names))
            names += [f"{name}{number}" for name in spec.replica_names]
            if not spec.shared_devices:
                attention.append(f"{spec.attention_name}{number}")
    batch = outcome.timeline["batch"]
    instance = np.repeat(np.arange(len(first)), fleet.batches)[batch]
    specs = [spec for spec in fleet.specs for _ in range(spec.copies)]
    own = np.concatenate([np.arange(spec.batches) * spec.own_attention for spec in specs])[batch]
    worker = outcome.timeline["worker"].astype(np.int64)
    of_attention = len(names) + instance if attention else np.asarray(first, np.int64)[instance] + own
    worker = np.where(worker == ATTENTION, of_attention, worker)
    return Lanes("virtual cluster", (*names, *attention), worker, sum(fleet.batches))


def write_timeline(path: Path, outcome: Outcome, lanes: Lanes) -> None:
    """Write a lane for each worker, or pool that moves as one, and one for the host's work on each batch.

    Each slice, each attention and each stretch of host time is a piece of work, coloured by its batch.
    """
    check_suffix(path)
    if not len(outcome.timeline["start_s"]):
        raise UserError(
            "timeline-empty-window",
            f"no work begins in the window of {path}; the replay ends at {outcome.end_s:.3f} s",
        )
    with replacing(path) as temporary, temporary.open("wb") as file:
        if path.name.endswith(".gz"):
            # No name and no time inside: equal timelines are equal files.
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                _write(packed, outcome, lanes)
        else:
            _write(file, outcome, lanes)


def check_suffix(path: Path) -> None:
    """Raise a UserError unless the name says that it is a timeline."""
    if not path.name.endswith(SUFFIXES):
        raise UserError(
            "timeline-bad-suffix",
            f"cannot write the timeline {path}: the name must end in {' or '.join(SUFFIXES)}",
        )


def two_iterations(outcome: Outcome, middle_s: float | None = None) -> tuple[float, float]:
    """Return a window around the middle of the replay, or another moment, that covers an iteration."""
    middle, rows = outcome.end_s / 2 if middle_s is None else middle_s, outcome.iterations
    if not len(rows["start_s"]):
        return middle, middle
    at = min(int(np.searchsorted(rows["start_s"], middle)), len(rows["start_s"]) - 1)
    lasts = float(rows["duration_s"][at])
    return max(0.0, middle - lasts), middle + lasts


def bubbles(outcome: Outcome, lanes: Lanes) -> dict[str, float | None]:
    """Return each worker's idle share of the recorded time; None where too little was recorded.

    Only work that begins in the window is recorded. So the time looked at starts when every worker (that
    works at all) has begun a recorded piece, and ends when the first of them has ended its last.
    """
    start, end = ticks(outcome.timeline["start_s"]), ticks(outcome.timeline["end_s"])
    rows_of = [lanes.of == lane for lane in range(len(lanes.names))]
    working = [rows for rows in rows_of if rows.any()]
    first = max((int(start[rows].min()) for rows in working), default=0)
    last = min((int(end[rows].max()) for rows in working), default=0)
    if last <= first:
        return dict.fromkeys(lanes.names, None)
    inside = np.maximum(np.minimum(end, last) - np.maximum(start, first), 0)
    return {
        name: 1 - int(inside[rows].sum()) / (last - first)
        for name, rows in zip(lanes.names, rows_of, strict=True)
    }


def _write(file: IO[bytes] | gzip.GzipFile, outcome: Outcome, lanes: Lanes) -> None:
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    file.write(",\n".join(json.dumps(event) for event in _names(outcome, lanes)).encode())
    for lines in itertools.chain(_events(outcome, lanes.of), [_host_events(outcome, len(lanes.names))]):
        if lines:
            file.write((",\n" + ",\n".join(lines)).encode())
    file.write(b"\n]}\n")


def _names(outcome: Outcome, lanes: Lanes) -> Iterator[dict[str, object]]:
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": lanes.process}}
    hosts = [f"host, batch {batch}" for batch in range(lanes.batches)] if _host_rows(outcome).any() else []
    for lane, name in enumerate([*lanes.names, *hosts]):
        thread = {"ph": "M", "pid": 1, "tid": lane + 1}
        yield {**thread, "name": "thread_name", "args": {"name": name}}
        yield {**thread, "name": "thread_sort_index", "args": {"sort_index": lane}}


def _events(outcome: Outcome, lane_of: NDArray[np.int64]) -> Iterator[list[str]]:
    """Return events as JSON, some thousands at a time, in the order they were recorded in."""
    timeline = outcome.timeline
    for first in range(0, len(lane_of), _EVENTS_AT_A_TIME):
        rows = slice(first, first + _EVENTS_AT_A_TIME)
        start = ticks(timeline["start_s"][rows])
        length = ticks(timeline["end_s"][rows]) - start
        yield [
            _event(*event)
            for event in zip(
                *(timeline[name][rows].tolist() for name in ("batch", "worker", "iteration", "slice")),
                lane_of[rows].tolist(),
                start.tolist(),
                length.tolist(),
                strict=True,
            )
        ]


def _host_rows(outcome: Outcome) -> NDArray[np.bool_]:
    """Return the iterations whose host time begins while work is recorded."""
    rows, recorded = outcome.iterations, outcome.timeline
    if not len(recorded["start_s"]):
        return np.zeros(len(rows["start_s"]), bool)
    begins = (rows["start_s"] >= recorded["start_s"].min()) & (rows["start_s"] < recorded["end_s"].max())
    inside: NDArray[np.bool_] = begins & (rows["host_s"] > 0)
    return inside


def _host_events(outcome: Outcome, workers: int) -> list[str]:
    rows, inside = outcome.iterations, _host_rows(outcome)
    return [
        _piece("host", batch, workers + batch, start, length, iteration=iteration)
        for batch, iteration, start, length in zip(
            rows["batch"][inside].tolist(),
            rows["iteration"][inside].tolist(),
            ticks(rows["start_s"][inside]).tolist(),
            ticks(rows["host_s"][inside]).tolist(),
            strict=True,
        )
    ]


def _event(batch: int, worker: int, iteration: int, place: int, lane: int, start: int, length: int) -> str:
    what = "attention" if worker == ATTENTION else "slice"
    return _piece(what, batch, lane, start, length, iteration=iteration, **{what: place})


def _piece(what: str, batch: int, lane: int, start: int, length: int, **facts: int) -> str:
    number = f" {facts[what]}" if what in facts else ""
    name = f"batch {batch} · {what}{number} · {LETTERS[batch % len(LETTERS)]}"
    arguments = "".join(f',"{key}":{value}' for key, value in facts.items())
    return (
        f'{{"ph":"X","pid":1,"tid":{lane + 1},"ts":{_us(start)},"dur":{_us(length)},"name":"{name}",'
        f'"cat":"{what}","cname":"{COLOURS[batch % len(COLOURS)]}","args":{{"batch":{batch}{arguments}}}}}'
    )


def _us(time: int) -> str:
    """Return ticks as microseconds, exactly."""
    return f"{time // _TICKS_PER_US}.{time % _TICKS_PER_US:0{_DECIMALS}d}"
