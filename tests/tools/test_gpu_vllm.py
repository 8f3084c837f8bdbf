"""The engine beside a stand-in for vLLM, on a core: who takes turns, what is judged, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vllm_stand_in import vllm_runner

from gpu_window import vllm
from laminabench.bench.frame import Report
from laminabench.systems.live.vllm.process import VllmProcess


def run(python: Path | None, **more: Any) -> Report:
    loads = {"batches": (1, 2, 3), "contexts": (40,), "rounds": 2, "model": "llama-tiny", "on": "cpu"}
    return vllm.run(vllm_python=python, **loads | more)


def rows(report: Report) -> list[Mapping[str, Any]]:
    result = report.json()["rows"]
    assert isinstance(result, list)
    return result


def test_turns_are_taken_where_both_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Mapping[str, Any]] = []
    begin = VllmProcess.__init__

    def begun(self: VllmProcess, command: Any, environment: Any, order: Any, *rest: Any) -> None:
        requests.append(order)
        begin(self, command, environment, order, *rest)

    monkeypatch.setattr(VllmProcess, "__init__", begun)
    report = run(vllm_runner(tmp_path), contexts=(40, 10**12))
    *left_out, one, two, three = rows(report)
    assert [row["context"] for row in left_out] == [10**12] * 3
    assert all("skipped" in row for row in left_out)
    assert [row["batch"] for row in (one, two, three)] == [1, 2, 3]
    for row in (one, two, three):
        assert row["vllm_iteration_s"]["median"] == pytest.approx(0.01)
        ours, ratio = row["iteration_s"], row["ratio"]["median"]
        assert 0.0099 / ours["max"] <= ratio <= 0.0101 / ours["min"]
        assert row["met"] == (row["ratio"]["median"] >= vllm.TARGET_RATIO)
    assert report.facts["met"] == all(row["met"] for row in (one, two, three))
    [order] = requests  # one start for all loads
    assert (order["max_num_seqs"], order["max_model_len"]) == (3, 40 - vllm.OUTPUT // 2 + 33)


def test_measurements_before_vllm_ends_are_stored(tmp_path: Path) -> None:
    report = run(vllm_runner(tmp_path, breaks_at=2))
    one, two, three = rows(report)
    assert one["iteration_s"]["median"] > 0
    assert "it broke" in two["skipped"]
    assert "it broke" in three["skipped"]
    assert len(report.facts["refused"]) == 1  # type: ignore[arg-type]
