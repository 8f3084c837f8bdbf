"""Timelines: valid JSON, one piece of work at a time in a lane, and bubbles that are worked out rightly."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_outcome import trace_of

from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Fleet, Spec, Timing
from laminabench.sim.timeline import bubbles, lanes_of, write_timeline
from laminabench.util.errors import UserError

LAYERS, MOST = 4, 12


def recorded(
    batches: int,
    record_s: tuple[float, float] = (0.0, 0.02),
    attention_us: float = 100,
    host_us: float = 0,
    **given: Any,
) -> tuple[Outcome, Spec]:
    trace = trace_of([5] * 12, [30] * 12)
    slice_s, nothing = np.full(MOST + 1, 100e-6), np.zeros(MOST + 1)
    timing = Timing(nothing, slice_s, slice_s, np.full(MOST + 1, attention_us * 1e-6), nothing)
    timing = replace(timing, host_fixed=host_us * 1e-6)
    replicas = max(1, batches - 1)
    spec = Spec(
        LAYERS,
        timing,
        tokens_per_pool=10_000,
        max_requests=MOST,
        batches=batches,
        pipelining="rotational" if batches > 1 else "serial",
        replica_names=tuple(f"replica {replica}" for replica in range(replicas)),
        **given,
    )
    return simulate(trace, spec, Offered(), record_s=record_s), spec


def events_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    events: list[dict[str, Any]]
    events = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["traceEvents"]
    return events


def written(path: Path, batches: int, **given: Any) -> tuple[Outcome, Spec, list[dict[str, Any]]]:
    """What was recorded, and the timeline's events as they are in the file."""
    outcome, spec = recorded(batches, **given)
    write_timeline(path, outcome, lanes_of(outcome, Fleet((spec,))))
    return outcome, spec, events_of(path)


def work_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def test_attention_of_replicas_that_do_their_own_is_in_their_lanes() -> None:
    _, one = recorded(2)
    names = ("stage 0", "stage 1")
    staged = replace(one, pipelining="fixed", own_attention=True, shared_devices=True, replica_names=names)
    fleet = Fleet((replace(staged, copies=2),))
    trace = trace_of([5] * 12, [30] * 12)
    outcome = simulate(trace, fleet, Offered(), record_s=(0.0, 0.02))
    lanes = lanes_of(outcome, fleet)
    assert lanes.names == ("stage 0 0", "stage 1 0", "stage 0 1", "stage 1 1")
    assert set(lanes.of.tolist()) == {0, 1, 2, 3}
    assert lanes.of.tolist() == outcome.timeline["batch"].tolist(), "each batch stays with its replica"


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_a_lane_does_one_thing_at_a_time(tmp_path: Path, batches: int, name: str) -> None:
    outcome, spec, events = written(tmp_path / name, batches)
    work = work_in(events)
    assert len(work) == len(outcome.timeline["batch"]) > 0
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(lanes.values()) == [*spec.replica_names, "attention workers"]
    by_lane = defaultdict(list)
    for event in work:
        # Ticks, so that a sum of microseconds is not a matter of rounding.
        start, length = round(event["ts"] * 10_000), round(event["dur"] * 10_000)
        by_lane[event["tid"]].append((start, start + length))
    assert by_lane.keys() == lanes.keys()
    for pieces in by_lane.values():
        pieces.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(pieces))


def test_the_hosts_work_on_each_batch_has_its_lane(tmp_path: Path) -> None:
    _, _, events = written(tmp_path / "t.json", 3, host_us=50)
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    host = [event for event in events if event.get("cat") == "host"]
    assert {event["tid"] for event in host} == {lanes[f"host, batch {batch}"] for batch in range(3)}
    assert all(event["dur"] == 50 for event in host)
    for event in host:
        first = next(
            piece
            for piece in events
            if piece.get("cat") == "slice" and piece["args"] == {**event["args"], "slice": 0}
        )
        assert first["ts"] >= event["ts"] + 50


def test_times_are_exact_microseconds(tmp_path: Path) -> None:
    work = work_in(written(tmp_path / "t.json", 1, attention_us=33.3333)[2])[:4]
    assert [event["dur"] for event in work] == [0, 33.3333, 100, 33.3333]
    assert [event["ts"] for event in work] == [0, 0, 33.3333, 133.3333]


def test_attention_on_the_models_devices_shares_their_lane(tmp_path: Path) -> None:
    outcome, spec, events = written(tmp_path / "t.json", 1, shared_devices=True)
    assert {event["tid"] for event in work_in(events)} == {1}
    assert bubbles(outcome, lanes_of(outcome, Fleet((spec,)))) == {"replica 0": 0}


def test_equal_timelines_are_equal_files(tmp_path: Path) -> None:
    for name in ("one.json.gz", "two.json.gz"):
        written(tmp_path / name, 2)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_a_window_without_work_is_refused(tmp_path: Path) -> None:
    outcome, spec = recorded(2, record_s=(0.0, 0.0))
    with pytest.raises(UserError, match="timeline-empty-window"):
        write_timeline(tmp_path / "t.json", outcome, lanes_of(outcome, Fleet((spec,))))
    assert not list(tmp_path.iterdir())
    assert bubbles(outcome, lanes_of(outcome, Fleet((spec,)))) == {
        "replica 0": None,
        "attention workers": None,
    }


@pytest.mark.parametrize("name", ["timeline.txt", "timeline.gz", "timeline"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="timeline-bad-suffix"):
        written(tmp_path / name, 1)
    assert not list(tmp_path.iterdir())


def test_bubbles_by_hand() -> None:
    # One batch: attention waits for the slice and the slice for attention, 100 us each.
    outcome, spec = recorded(1)
    assert bubbles(outcome, lanes_of(outcome, Fleet((spec,)))) == {
        "replica 0": pytest.approx(0.5, abs=0.02),
        "attention workers": pytest.approx(0.5, abs=0.02),
    }
    # Attention of 50 us for slices of 100 us and two batches: attention is what waits.
    outcome, spec = recorded(2, attention_us=50)
    result = bubbles(outcome, lanes_of(outcome, Fleet((spec,))))
    assert result["replica 0"] == pytest.approx(0, abs=0.07)
    assert result["attention workers"] == pytest.approx(0.5, abs=0.05)


def test_bubbles_do_not_count_what_began_before_the_window() -> None:
    # The window opens and closes during work; in a steady rotation of two no worker is idle.
    timeline = {
        "batch": np.array([0, 1, 0, 1]),
        "worker": np.array([0, -1, 0, -1]),
        "iteration": np.zeros(4, np.int64),
        "slice": np.array([1, 1, 2, 2]),
        "start_s": np.array([1.0, 1.5, 2.0, 2.5]),
        "end_s": np.array([2.0, 2.5, 3.0, 3.5]),
    }
    outcome, spec = recorded(2)
    cut = replace(outcome, timeline=timeline)
    assert bubbles(cut, lanes_of(cut, Fleet((spec,)))) == {"replica 0": 0, "attention workers": 0}
