"""Benchmarks judge themselves by their own numbers. How fast this machine is, no test can know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laminabench.bench import attention, sim, slab
from laminabench.systems.modelled.h2m2.mapping import dynamic_trace
from laminabench.traces.resolve import resolve as resolved

Facts = Callable[..., dict[str, Any]]
Shell = Callable[..., tuple[int, str, str]]


def test_slab_reports_every_call_and_judges_by_the_median(facts: Facts) -> None:
    rows = facts("slab", "--seconds", "0.01")["rows"]
    assert {row["operation"] for row in rows} == {"allocate", "extend", "release", "fork"}
    for row in rows:
        rates = row["allocations_per_s"]
        assert 0 < rates["min"] <= rates["median"] <= rates["max"]
        assert row["met"] == (rates["median"] >= slab.TARGET_PER_S if row["judged"] else None)


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes some ten seconds to start; test_bench_attention_vllm.py has it."""
    monkeypatch.delenv("LAMINABENCH_VLLM", raising=False)
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path))


@pytest.mark.usefixtures("no_vllm")
def test_attention_judges_by_the_median_share(facts: Facts) -> None:
    result = facts("attention", "--seconds", "0.01", "--kv-mb", "1")
    rows = result["rows"]
    assert {row["order"] for row in rows} == {"consecutive", "interleaved", "random"}
    for row in rows:
        share = row["share"]
        assert 0 < share["min"] <= share["median"] <= share["max"]
        rounded = row["kv_dtype"] != "auto"
        judged = row["dtype"] == "bfloat16" and row["order"] != "random" and not (row["latent"] or rounded)
        assert row["met"] == (share["median"] >= attention.TARGET_SHARE if judged else None)
        assert row["over_other_prefetch"]["median"] > 0
        assert (row["over_unrounded"]["median"] > 0) if rounded else row["over_unrounded"] is None
    assert result["prefetch"] in attention.PREFETCHES
    assert {(row["case"], row["head_dim"]) for row in rows if row["judged"]} == {
        (case, head_dim) for case in ("MHA", "GQA 4", "GQA 8") for head_dim in (64, 128)
    }
    assert result["met"] == all(row["met"] for row in rows if row["judged"])


def test_attention_counts_a_latent_vector_once_and_every_heads_arithmetic() -> None:
    v3 = next(case for case in attention.CASES if case.latent and case.heads == 128)
    assert v3.arena.token_bytes == 576 * 2
    assert v3.token_flops == 2 * 128 * (576 + 512)


def test_traces_measures_both_files(facts: Facts) -> None:
    result = facts("traces", "--csv-rows", "2000", "--parquet-rows", "3000", "--repeats", "1", "-q")
    csv, parquet = result["csv"], result["parquet"]
    assert (csv["rows"], parquet["rows"]) == (2000, 3000)
    assert csv["seconds"]["median"] > 0
    assert parquet["peak_bytes"] > 10e6


def test_the_replay_is_compared_with_imports_in_turns(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(sim, "_run", lambda command: commands.append(" ".join(command)))
    monkeypatch.setattr(sim, "resolve", lambda name, **_: resolved(name, offline=True).first(8))
    row = facts("sim", "--repeats", "2")["rows"][-1]
    assert row["target_ratio"] == 0.8
    assert row["met"] == (row["ratio"]["median"] <= 0.8)
    assert (row["trace_source"], bool(row["cpu"])) == (resolved("azure-conv", offline=True).meta.source, True)
    # Once that is not counted, then in turns.
    assert ["laminabench replay" in command for command in commands] == [True, False] * 3
    assert commands[1].endswith("-c import pandas, pyarrow.parquet, numpy")


def test_every_row_of_boards_is_judged_by_its_own_numbers(
    facts: Facts, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few lengths, and a few requests instead of an hour of them.
    monkeypatch.setattr(sim, "LENGTHS", range(512, 2049, 512))
    monkeypatch.setattr(sim, "resolve", lambda name, *, offline: dynamic_trace(1, iterations=8))
    result = facts("h2m2", "--repeats", "2")
    rows = result["rows"]
    assert [row["target_s"] for row in rows] == [sim.DECISION_TARGET_S] * 2 + [sim.SCENARIO_TARGET_S, None]
    for row, judged in zip(rows, ("max", "max", "median", None), strict=True):
        seconds = row["seconds"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert row["met"] == (None if judged is None else seconds[judged] <= row["target_s"])
    assert result["met"] == all(row["met"] is not False for row in rows)
    code, out, _ = shell("h2m2", "--repeats", "1")
    assert code == 0
    assert "the dynamic scenario: 128 iterations of 32 requests" in out


def test_all_that_was_offered_is_counted(facts: Facts) -> None:
    result = facts("endpoint", "--request-rate", "100", "--seconds", "1", "--prompt-tokens", "8",
                   "--output-tokens", "10", "--gap-ms", "5")  # fmt: skip
    assert [row["tokens_a_chunk"] for row in result["loads"]] == [1, 5]
    for row in result["loads"]:
        assert (row["requests"], row["failed"]) == (100, 0)
        assert row["lateness_ms"]["p50"] <= row["lateness_ms"]["p99"] <= row["lateness_ms"]["max"]
        assert row["client_cpu_us_per_chunk"] > 0
        assert row["server_cpu_us_per_chunk"] >= 0
        assert row["offered_tokens_per_s"] == 1000
    assert result["met"] == all(row["met"] for row in result["loads"])
