"""Offering a trace to an engine by its clock: arrival times, and the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.analysis.metrics import summarise
from laminabench.sim.simulate import Offered
from laminabench.sim.timeline import bubbles, write_timeline
from laminabench.systems.live.lamina.loop import order_of, squeezed
from laminabench.systems.live.lamina.records import recorded
from laminabench.util.json import to_json

# 3 slices of 1 ms and 2 attentions of 2 ms between them.
ITERATION_S = 0.007


def test_saturate_submits_all_at_once_and_serves_in_order(
    made_up_engine: Any, trace_of: Any, play: Any
) -> None:
    engine = made_up_engine(most=2)
    replay = play(engine, trace_of([10] * 4, [3, 1, 2, 2]), Offered())
    rows = replay.log.tables.requests()
    assert rows["arrival_s"].tolist() == [0, 0, 0, 0]
    # 0 and 1 first; 2 takes 1's place, 3 comes when both 0 and 2 have ended.
    assert rows["first_iteration"].tolist() == [0, 0, 1, 3]
    assert rows["last_iteration"].tolist() == [2, 0, 2, 4]
    assert rows["finished_s"] == pytest.approx(
        [3 * ITERATION_S, ITERATION_S, 3 * ITERATION_S, 5 * ITERATION_S]
    )
    assert rows["first_token_s"] - rows["admitted_s"] == pytest.approx([ITERATION_S] * 4)
    assert replay.log.tables.iterations()["joined"].tolist() == [2, 1, 0, 1, 0]
    assert replay.log.tables.queue_empty_s == pytest.approx(3 * ITERATION_S)
    assert sorted(engine.requested) == [0, 1, 2, 3]  # so that the engine forgets them
    assert engine.slept == []


def test_open_waits_for_the_next_arrival_asleep(made_up_engine: Any, trace_of: Any, play: Any) -> None:
    engine = made_up_engine()
    replay = play(engine, trace_of([10] * 3, [1, 2, 1], [0.0, 0.003, 1.0]), Offered("open"))
    rows = replay.log.tables.requests()
    # When it was due, not when there was time to submit it.
    assert rows["arrival_s"].tolist() == [0.0, 0.003, 1.0]
    assert rows["admitted_s"] == pytest.approx([0.0, ITERATION_S, 1.0], abs=1e-6)
    assert len(engine.slept) == 1
    assert engine.slept[0] == pytest.approx(1.0 - 3 * ITERATION_S)


def test_closed_keeps_so_many_in_the_system(made_up_engine: Any, trace_of: Any, play: Any) -> None:
    replay = play(
        made_up_engine(most=10), trace_of([10] * 5, [2, 4, 2, 2, 1]), Offered("closed", concurrency=2)
    )
    sizes = replay.log.tables.iterations()["size"].tolist()
    assert max(sizes) == 2
    assert replay.log.tables.requests()["arrival_s"] == pytest.approx(
        [0, 0, 2 * ITERATION_S, 4 * ITERATION_S, 4 * ITERATION_S]
    )


def test_what_never_fits_is_rejected_and_the_rest_goes_on(
    made_up_engine: Any, trace_of: Any, play: Any, outcome_of: Any
) -> None:
    engine = made_up_engine(capacity=30)
    replay = play(engine, trace_of([10] * 4, [5, 21, 20, 5]), Offered("closed", concurrency=1))
    summary = to_json(
        summarise(outcome_of(engine, replay), replay.trace, mode="closed", slo_tbt_ms=10, usd_per_hour=None)
    )
    assert summary["requests"] == {"completed": 3, "rejected": 1, "unfinished": 0, "failed": 0}
    assert summary["tokens_generated"] == 30
    assert replay.log.why_refused == "31 tokens never fit"


def test_the_summary_is_the_simulators(
    made_up_engine: Any, trace_of: Any, play: Any, outcome_of: Any
) -> None:
    engine = made_up_engine(most=20)
    replay = play(engine, trace_of([10] * 40, [20] * 40), Offered())
    outcome = outcome_of(engine, replay)
    summary = to_json(summarise(outcome, replay.trace, mode="saturate", slo_tbt_ms=10, usd_per_hour=None))
    assert summary["throughput_tokens_per_s"] == pytest.approx(20 / ITERATION_S)
    assert summary["tbt_ms"]["max"] == pytest.approx(7)
    assert summary["slo"]["token_attainment"] == 1
    assert summary["bubbles"]["model"] == pytest.approx(4 / 7)
    assert summary["bubbles"]["attention"] == pytest.approx(3 / 7)
    shares = summary["time_shares"]
    assert shares["network"] is None
    assert shares["model"] == pytest.approx(3 / 7)
    assert shares["host"] == pytest.approx(0.5 / 7)
    assert sum(shares[part] for part in ("model", "attention", "host", "waiting")) - shares[
        "overlapped"
    ] == pytest.approx(1)
    assert summary["cost"] == {"usd_per_hour": None, "usd_per_million_tokens": None, "tokens_per_usd": None}


def test_the_timeline_has_a_lane_for_each_worker(
    made_up_engine: Any, tmp_path: Path, trace_of: Any, play: Any, outcome_of: Any
) -> None:
    engine = made_up_engine()
    replay = play(engine, trace_of([10] * 1, [10]), Offered())
    outcome, result = outcome_of(engine, replay), recorded(engine, replay.clock)
    _, _, window_s = result.drawn(outcome, None)
    assert window_s == pytest.approx((4 * ITERATION_S, 6 * ITERATION_S))
    # A moment early, so that no iteration begins right on the edge.
    drawn, lanes, _ = result.drawn(outcome, (4 * ITERATION_S - 0.0005, 6 * ITERATION_S - 0.0005))
    write_timeline(tmp_path / "t.json", drawn, lanes)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")]
    assert names == ["lamina on this machine", "model 0", "attention 0", "host, batch 0"]
    work = [event for event in events if event["ph"] == "X" and event["cat"] != "host"]
    assert [event["tid"] for event in work] == [1, 2, 1, 2, 1] * 2
    assert [event["ts"] for event in work[:3]] == pytest.approx([28_000, 29_000, 31_000])
    assert {event["dur"] for event in work if event["cat"] == "attention"} == {2000}
    assert bubbles(drawn, lanes) == pytest.approx({"model 0": 8 / 12, "attention 0": 4 / 12}, abs=0.1)
    chosen, _, _ = result.drawn(outcome, (0.0, 0.0015))
    assert len(chosen.timeline["start_s"]) == 2


def test_the_policys_keys_reach_the_engine(made_up_engine: Any, trace_of: Any, play: Any) -> None:
    outputs = [5, 2, 9, 1]
    for name, key in (("sjf", outputs.__getitem__), ("mine:Own", lambda row: outputs[row] * 10**6)):
        replay = play(made_up_engine(most=1), trace_of([10] * 4, outputs), Offered(), order_of(name, key, 4))
        admitted = replay.log.tables.requests()["admitted_s"]
        assert np.argsort(admitted).tolist() == [3, 1, 0, 2]


def test_known_keys_become_ranks() -> None:
    order = order_of("deadline", [2**60, 5, 2**60, -7].__getitem__, 4)
    assert order.key is not None
    assert [order.key(row) for row in range(4)] == [2, 1, 2, 0]


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_squeezed_keys_keep_their_order_within_the_engines_range(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert squeezed(low) <= squeezed(high)
    assert -(2**30) <= squeezed(low) <= squeezed(high) <= 2**30
    if high - low > max(abs(low), abs(high)) * 1e-6:
        assert squeezed(low) < squeezed(high)
