"""What boards held and moved, held to a slow look at every iteration and to a case worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_outcome import outcome_of, trace_of

from laminabench.analysis.memory import PARTS, memory_of, memory_over_time
from laminabench.analysis.metrics import summarise
from laminabench.runs.schema import MEMORY
from laminabench.runs.summary import Window
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Spec, Timing
from laminabench.util.json import to_json

OnBoards = Callable[..., Outcome]
GB = 10**9


def iterations_of(spans: list[list[tuple[int, int]]]) -> Outcome:
    """Of boards whose iterations begin and last so many milliseconds, in the order of their starts."""
    rows = sorted(
        (start, board, number, lasts)
        for board, own in enumerate(spans)
        for number, (start, lasts) in enumerate(own)
    )
    starts, boards, numbers, lasts = (list(column) for column in zip(*rows, strict=True))
    columns = {"batch": boards, "iteration": numbers, "start_s": np.array(starts) * 1e-3}
    return outcome_of(np.array(lasts) * 1e-3, columns=columns, replica_busy_s=np.ones(len(spans)))


@st.composite
def boards(draw: st.DrawFn) -> Outcome:
    spans = []
    for _ in range(draw(st.integers(1, 3))):
        now, own = 0, []
        for _ in range(draw(st.integers(1, 7))):
            now += draw(st.sampled_from((0, 0, 3)))
            own.append((now, lasts := draw(st.integers(1, 9))))
            now += lasts
        spans.append(own)
    return iterations_of(spans)


@settings(max_examples=60)
@given(outcome=boards(), seed=st.integers(0, 99), ends=st.tuples(st.integers(0, 30), st.integers(0, 60)))
def test_the_summary_is_what_a_slow_look_finds(
    on_boards: OnBoards, outcome: Outcome, seed: int, ends: tuple[int, int]
) -> None:
    outcome = on_boards(outcome, seed)
    memory, rows = outcome.memory, outcome.iterations
    assert memory is not None
    window = Window(start_s=ends[0] * 1e-3, end_s=ends[1] * 1e-3, kind="arrivals")
    starts, lasts = (np.rint(rows[name] * 1e3).astype(int).tolist() for name in ("start_s", "duration_s"))
    inside = [i for i in range(len(starts)) if ends[0] < starts[i] + lasts[i] <= ends[1]]
    result, time = to_json(memory_of(outcome, window)), sum(lasts[i] for i in inside)

    def mean(values: Any) -> Any:
        return pytest.approx(float(Fraction(sum(int(values[i]) * lasts[i] for i in inside), time)))

    for part, column in PARTS.items():
        value = result["hbm_bytes"][part]
        if not inside:
            assert value == {"mean": None, "max": None}
            continue
        assert value == {"mean": mean(memory[column]), "max": max(memory[column][i] for i in inside)}
    changes = 0
    for i in inside:
        before = [j for j in range(i) if rows["batch"][j] == rows["batch"][i]]
        mapping = [(memory["qkv_heads"][j], memory["attention_groups"][j], memory["fc_heads"][j])
                   for j in (*before[-1:], i)]  # fmt: skip
        changes += mapping[0] != mapping[-1]
    assert result["mapping_changes"] == changes
    assert result["moved_bytes"]["total"] == sum(int(memory["moved_bytes"][i]) for i in inside)
    if inside:
        assert result["changes_per_iteration"] == changes / len(inside)
        busy = sum(memory["lpddr_busy_s"][i] for i in inside)
        assert result["lpddr_busy_share"] == pytest.approx(busy / (time * 1e-3), abs=1e-5)
        assert result["hbm_share"]["mean"] == pytest.approx(
            sum(result["hbm_bytes"][part]["mean"] for part in PARTS) / 96e9
        )
    json.dumps(result, allow_nan=False)


@settings(max_examples=60)
@given(outcome=boards(), seed=st.integers(0, 99), slices=st.integers(1, 9))
def test_slices_of_time_leave_nothing_out(
    on_boards: OnBoards, outcome: Outcome, seed: int, slices: int
) -> None:
    outcome = on_boards(outcome, seed)
    memory, rows = outcome.memory, outcome.iterations
    assert memory is not None
    result = memory_over_time(outcome, slices)
    # By asking at very many moments what each board holds.
    moments = (np.arange(4000 * slices) + 0.5) / (4000 * slices) * outcome.end_s
    for part, column in PARTS.items():
        level = np.zeros(len(moments))
        for board in range(len(outcome.replica_busy_s)):
            own = np.flatnonzero(rows["batch"] == board)
            place = np.searchsorted(rows["start_s"][own], moments, side="right") - 1
            there = (place >= 0) & (moments < (rows["start_s"] + rows["duration_s"])[own[-1]])
            level += np.where(there, memory[column][own][place], 0)
        means = level.reshape(slices, -1).mean(axis=1)
        assert result.stored_bytes[part] == pytest.approx(means, rel=2e-3, abs=96e6)
    width_s = outcome.end_s / slices
    assert result.moved_bytes_per_s.sum() * width_s == pytest.approx(memory["moved_bytes"].sum())


def by_hand() -> Outcome:
    """Two iterations of 10 and 30 ms on a board, whose mapping changes for the second."""
    outcome = iterations_of([[(0, 10), (10, 30)]])
    values: dict[str, tuple[float, float]] = {
        "qkv_heads": (5, 5), "attention_groups": (9, 8), "fc_heads": (3, 3),
        "hbm_qkv_bytes": (10 * GB, 10 * GB), "hbm_kv_bytes": (40 * GB, 60 * GB),
        "hbm_fc_bytes": (6 * GB, 6 * GB),
        "hbm_free_bytes": (44 * GB, 24 * GB), "lpddr_bytes": (200 * GB, 240 * GB), "wasted_bytes": (0, GB),
        "moved_bytes": (0, 4 * GB), "compacted_bytes": (0, GB), "moving_s": (0.0, 0.008),
        "hidden_s": (0.0, 0.002),
        "hbm_busy_s": (0.009, 0.015), "lpddr_busy_s": (0.01, 0.026),
    }  # fmt: skip
    memory = {column.name: np.array(values[column.name]) for column in MEMORY}
    for name in values:
        if not name.endswith("_s"):
            memory[name] = memory[name].astype(np.int64)
    return replace(outcome, memory=memory)


def test_a_case_by_hand() -> None:
    result = to_json(memory_of(by_hand(), Window(start_s=0.0, end_s=0.04, kind="queue_never_empty")))
    assert result == {
        "hbm_capacity_bytes": 100 * GB,
        "hbm_share": {"mean": pytest.approx(0.71), "max": 0.76},
        "hbm_bytes": {
            "kv": {"mean": 55 * GB, "max": 60 * GB},
            "qkv": {"mean": 10 * GB, "max": 10 * GB},
            "fc": {"mean": 6 * GB, "max": 6 * GB},
        },
        "lpddr_bytes": {"mean": 230 * GB, "max": 240 * GB},
        "wasted_bytes": {"mean": 0.75 * GB, "max": GB},
        "mapping_changes": 1,
        "changes_per_iteration": 0.5,
        "moved_bytes": {"total": 4 * GB, "per_iteration": 2 * GB, "max": 4 * GB},
        "compacted_bytes": {"total": GB, "per_iteration": 0.5 * GB, "max": GB},
        "moving_s": 0.008,
        "moving_share": pytest.approx(0.2),
        "hideable_share": pytest.approx(0.25),
        "hbm_busy_share": pytest.approx(0.6),
        "lpddr_busy_share": pytest.approx(0.9),
    }
    late = to_json(memory_of(by_hand(), Window(start_s=0.01, end_s=0.04, kind="arrivals")))
    assert late["mapping_changes"] == 1  # the mapping before it was before the window
    assert late["hbm_bytes"]["kv"]["mean"] == 60 * GB


def test_nothing_ran() -> None:
    outcome = by_hand()
    assert outcome.memory is not None
    empty = replace(
        outcome,
        iterations={name: values[:0] for name, values in outcome.iterations.items()},
        memory={name: values[:0] for name, values in outcome.memory.items()},
        end_s=0.0,
    )
    assert to_json(memory_of(empty, Window(start_s=0.0, end_s=0.0, kind="whole_run")))["hbm_share"] == {
        "mean": None,
        "max": None,
    }
    assert memory_over_time(empty, 4).stored_bytes["free"].tolist() == [0.0] * 4


def test_only_a_replay_on_boards_has_the_key(on_boards: OnBoards) -> None:
    trace, flat = trace_of([5] * 60, [7] * 60), np.full(9, 1e-3)
    spec = Spec(2, Timing(flat, flat, flat, flat, flat * 1e-3), tokens_per_pool=60, max_requests=8)
    outcome = simulate(trace, spec, Offered())
    facts: Any = {"mode": "saturate", "slo_tbt_ms": 100, "usd_per_hour": None}
    assert "memory" not in to_json(summarise(outcome, trace, **facts))
    result = to_json(summarise(on_boards(outcome), trace, **facts))["memory"]
    rows, window_end = outcome.iterations, outcome.queue_empty_s
    in_window = int(np.count_nonzero(rows["start_s"] + rows["duration_s"] <= window_end + 1e-12))
    assert 10 <= in_window < len(rows["start_s"])
    assert result["moved_bytes"]["total"] / result["moved_bytes"]["per_iteration"] == pytest.approx(in_window)
