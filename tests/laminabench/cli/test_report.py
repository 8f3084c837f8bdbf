"""`laminabench report` as a person uses it."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def stored_run(printed: Any) -> Path:
    rows = "".join(f"0,{100 + i},{5 + i % 7}\n" for i in range(80))
    Path("small.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    printed("replay", "--trace", "small.csv", "--system", "vllm", "--out", "run", "-q")
    return Path("run")


def test_report_writes_a_page_and_says_so(as_json: Any, printed: Any, stored_run: Path) -> None:
    facts = as_json(
        "report", str(stored_run), "-o", "deep/report.html", "--title", "A & B", "--slo-tbt-ms", "40"
    )
    page = Path("deep/report.html").read_text(encoding="utf-8")
    assert facts["bytes"] == len(page.encode())
    assert "<title>A &amp; B</title>" in page
    manifest = json.loads((stored_run / "run.json").read_text())
    (run,) = facts["runs"]
    assert run["throughput_tokens_per_s"] == manifest["summary"]["throughput_tokens_per_s"]
    assert run["slo"]["tbt_ms"] == 40
    assert any("worked out again for 40 ms" in sentence for sentence in facts["caveats"])
    assert printed("report", str(stored_run), "-o", "report.html", "-q").startswith("report.html: 1 Run, ")


def test_the_window_of_the_timeline(as_json: Any, refused: Any, stored_run: Path) -> None:
    facts = as_json("report", str(stored_run), "-o", "r.html", "--window", "0.01:")
    manifest = json.loads((stored_run / "run.json").read_text())
    assert facts["window_s"] == [0.01, manifest["summary"]["duration_s"]]
    refused("[report-window]", "report", str(stored_run), "-o", "r.html", "--window", "1e6:", "-v")


def test_without_the_extra_it_says_how_to_get_it(
    refused: Any, stored_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("plotly"):
            raise ModuleNotFoundError("No module named 'plotly'", name="plotly")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    refused("pip install 'laminabench[report]'", "report", str(stored_run), "-o", "r.html")


def test_two_long_runs_stay_below_eight_megabytes(
    as_json: Any, real_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINABENCH_TRACES", str(real_traces))
    for system in ("lamina", "vllm"):
        as_json("replay --trace azure-conv --num-requests 20000 --system", system, "--out", system)
    assert as_json("report", "lamina", "vllm", "-o", "r.html")["bytes"] < 8e6
