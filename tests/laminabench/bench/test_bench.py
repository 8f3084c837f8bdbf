"""Benchmarks of allocator, attention, traces and simulator judge themselves by their own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laminabench.bench import attention, sim, slab, traces
from laminabench.traces.resolve import resolve as resolved

Facts = Callable[..., dict[str, Any]]


def test_slab_reports_every_call_and_judges_by_the_median(facts: Facts) -> None:
    rows = facts("slab", "--seconds", "0.01")["rows"]
    assert {row["operation"] for row in rows} == {"allocate", "extend", "release", "fork"}
    for row in rows:
        rates = row["allocations_per_s"]
        assert 0 < rates["min"] <= rates["median"] <= rates["max"]
        assert row["met"] == (rates["median"] >= slab.TARGET_PER_S if row["judged"] else None)


def test_attention_judges_by_the_median_share(facts: Facts) -> None:
    result = facts("attention", "--seconds", "0.01", "--kv-mb", "1")
    rows = result["rows"]
    assert {row["order"] for row in rows} == {"consecutive", "interleaved", "random"}
    for row in rows:
        share = row["share"]
        assert 0 < share["min"] <= share["median"] <= share["max"]
        judged = row["dtype"] == "bfloat16" and row["order"] != "random"
        assert row["met"] == (share["median"] >= attention.TARGET_SHARE if judged else None)
    assert result["met"] == all(row["met"] for row in rows if row["judged"])


def test_traces_measures_both_files(facts: Facts) -> None:
    result = facts("traces", "--csv-rows", "2000", "--parquet-rows", "3000", "--repeats", "1", "-q")
    csv, parquet = result["csv"], result["parquet"]
    assert (csv["rows"], parquet["rows"]) == (2000, 3000)
    assert csv["seconds"]["median"] > 0
    assert parquet["peak_bytes"] > 10e6


@pytest.mark.parametrize(("ratio", "words"), [(2.0, "2.0 times slower"), (0.5, "2.0 times faster")])
def test_pandas_is_called_what_it_is(ratio: float, words: str) -> None:
    assert traces.than_ours(ratio) == f"{words} than ours"


def test_the_whole_replay_is_held_against_imports_in_turns(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(sim, "_run", lambda command: commands.append(" ".join(command)))
    monkeypatch.setattr(sim, "resolve", lambda name, **_: resolved(name, offline=True).first(8))
    row = facts("sim", "--repeats", "2")["rows"][4]
    assert row["target_ratio"] == 0.8
    assert row["met"] == (row["ratio"]["median"] <= 0.8)
    assert (row["trace_source"], bool(row["cpu"])) == (resolved("azure-conv", offline=True).meta.source, True)
    # Once that is not counted, then in turns.
    assert ["laminabench replay" in command for command in commands] == [True, False] * 3
    assert commands[1].endswith("-c import pandas, pyarrow.parquet, numpy")


@pytest.mark.parametrize(
    "arguments",
    [
        ["slab", "--seconds", "0.01"],
        ["attention", "--seconds", "0.01", "--kv-mb", "1"],
        ["traces", "--csv-rows", "1000", "--parquet-rows", "1000", "--repeats", "1"],
    ],
)
def test_people_see_the_targets(arguments: list[str], shell: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = shell(*arguments)
    assert code == 0
    assert "target" in out
