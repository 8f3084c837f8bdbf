"""What is printed of a replay: what only a client saw, boards' memories, what ended early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from laminabench.analysis.metrics import summarise
from laminabench.render.sheets.replay import describe
from laminabench.runs.manifest import Partial
from laminabench.runs.status import FAILED
from laminabench.sim.outcome import Outcome
from laminabench.systems.modelled import prepared
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.json import to_json
from laminabench.workflows.replay import Replayed, Result
from laminabench.workflows.sweep.rows import row

PARTIAL = Partial(why="the server is [gone]", at_s=3.21)


@pytest.fixture
def result(stream: Any, observed: Callable[..., Outcome]) -> Result:
    """The keys of a replay against an endpoint: three tokens a chunk, every 30 ms."""
    streams = [
        stream(i * 1.0, i + 0.004, [(i + 0.1 + 0.03 * k, 3) for k in range(20)], prompt_counted=9)
        for i in range(12)
    ]
    streams[2].attempts = 3
    streams += [
        stream(20.0, 20.0, [(20.5, 1)], FAILED, 2, 200, error="the [connection] was reset"),
        stream(20.0, 20.0, [], FAILED, 4, 503, error="503"),
        *(stream(20.0, 20.0, [], FAILED, 1, 400, error=f"error {i}") for i in range(5)),
    ]
    lengths = np.full(len(streams), 60, np.int32)
    outcome, trace = observed(streams), Trace(np.zeros(len(streams)), lengths, lengths, TraceMeta("made"))
    summary = summarise(outcome, trace, mode="open", slo_tbt_ms=25.0, usd_per_hour=None)
    request, model = SimpleNamespace(system="openai", mode="open"), SimpleNamespace(name="some")
    ready: Any = SimpleNamespace(backend="live", request=request, deployment="a url", model=model)
    return Result(ready, trace, Replayed(outcome, {}, summary), None, 22.0)


def test_errors_are_no_columns_of_a_sweep(result: Result) -> None:
    names = row({"mode": "open"}, describe(result, result.wall_s))
    assert names["attempts.retried"] == 6
    assert names["ttft_ms.p50"] == pytest.approx(96)
    assert not any("by_error" in name or "by_status" in name or "partial" in name for name in names)


# Commands that judge numbers refuse those of a Run that ended early


@pytest.fixture
def ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on = prepared.replay_on
    monkeypatch.setattr(prepared, "replay_on", lambda *a, **k: replace(replay_on(*a, **k), partial=PARTIAL))
    Path("few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,50,40\n1,90,30\n")


@pytest.mark.usefixtures("shell", "ends_early")
def test_the_run_the_result_and_the_screen_say_it(as_json: Any, refused: Any, printed: Any) -> None:
    flags = ("replay", "--trace", "few.csv", "--system", "vllm", "-q")
    assert as_json(*flags, "--no-out")["partial"] == to_json(PARTIAL)
    out = printed(*flags, "--out", "run", "--plot", "over.svg")
    assert out.startswith("PARTIAL, it ended after 3.2 s")
    assert "modelled, PARTIAL" in Path("over.svg").read_text()
    facts = as_json("report", "run", "-o", "r.html")
    assert facts["runs"][0]["name"] == "vllm 4xh100 (PARTIAL)"
    assert as_json(*flags, "--out", "two")["partial"] == to_json(PARTIAL)
    result = as_json("compare", "run", "two")
    assert result["sides"][0]["label"] == "run (PARTIAL)"
    refused("--fail-on judges whole Runs, and run is PARTIAL", "compare run two --fail-on 'throughput<0.5'")


@pytest.mark.usefixtures("shell", "ends_early")
def test_a_sweep_and_a_check_do_not_judge_it(shell: Any) -> None:
    flags = ("--trace", "few.csv", "--system", "vllm", "--vary", "max-num-seqs=4,8", "--jobs", "1")
    code, out, err = shell("sweep", *flags, "--out", "swept", "-q")
    assert "PARTIAL, it ended after 3.2 s" in out + err
    assert code != 0
    Path("cases.toml").write_text('[case.one]\ntrace = "few.csv"\nsystem = "vllm"\n')
    code, _, err = shell("check", "--cases", "cases.toml", "--jobs", "1", "--update")
    assert code != 0
    assert "cannot be judged, it is PARTIAL" in err
