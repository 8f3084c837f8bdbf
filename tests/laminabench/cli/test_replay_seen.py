"""What is printed of a replay that only a client saw or that ended early, and who refuses the latter."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from rich.console import Console

from laminabench.analysis.metrics import summarise
from laminabench.json_safe import to_json
from laminabench.present.replay import ReplayResult, render
from laminabench.runs.manifest import Partial
from laminabench.runs.status import FAILED
from laminabench.sim.outcome import Outcome
from laminabench.sweeps.rows import row
from laminabench.systems.modelled import prepared
from laminabench.traces.table import Trace, TraceMeta

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
PARTIAL = Partial(why="the server is [gone]", at_s=3.21)


@pytest.fixture
def result(stream: Any, seen: Callable[..., Outcome]) -> ReplayResult:
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
    outcome, trace = seen(streams), Trace(np.zeros(len(streams)), lengths, lengths, TraceMeta("made"))
    summary = summarise(outcome, trace, mode="open", slo_tbt_ms=25.0, usd_per_hour=None)
    return ReplayResult(
        "live", "openai", "a url", "some", "open", trace.meta, len(streams), summary, {}, wall_s=22.0
    )


def printed(result: ReplayResult) -> list[str]:
    console = Console(file=io.StringIO(), width=400)
    render(console, result)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def test_tokens_and_chunks_stand_beside_each_other(result: ReplayResult) -> None:
    lines = {line[:15].strip(): line[15:] for line in printed(result)[1:]}
    assert lines["ITL in ms"].startswith("mean 30, p50 30,")
    assert lines["ITL in ms"].endswith(": between chunks of 3 tokens, 3 at most")
    assert lines["TBT in ms"].startswith("mean 9.66, p50 0, p90 30,")
    assert lines["sent late by"] == "p50 4, p99 4, max 4 ms: this client's own doing"
    assert lines["TTFT in ms"].startswith("mean 96, p50 96,")
    assert lines["requests"] == "12 completed, 7 failed"
    assert lines["attempts"] == "25 sent, 6 of them again; answered: 13 with 200, 5 with 400, 1 with 503"
    assert lines["lengths"] == "12 prompts had another length by the server's count"
    assert lines["failed"] == "for 3 other reasons, see --json"
    assert any("1: the [connection] was reset" in line for line in printed(result))
    for word in ("KV", "idle", "bubbles", "a token's time", "energy", "cost"):
        assert not any(word in line for line in printed(result))


def test_what_was_dealt_evenly_is_said(result: ReplayResult) -> None:
    chunks = structs.replace(result.summary.tokens_per_chunk, even_share=0.25)
    result.summary = structs.replace(result.summary, tokens_per_chunk=chunks)
    assert any("25.0% of them dealt evenly" in line for line in printed(result))


def test_a_replay_without_timestamps_was_not_late(result: ReplayResult) -> None:
    result.summary = structs.replace(result.summary, lateness_ms=None)
    assert not any("sent late" in line for line in printed(result))


def test_a_partial_replay_says_so_first(result: ReplayResult) -> None:
    assert printed(result)[0].startswith("made, ")
    result.partial = PARTIAL
    assert printed(result)[0] == "PARTIAL, it ended after 3.2 s: the server is [gone]"


def test_errors_are_no_columns_of_a_sweep(result: ReplayResult) -> None:
    names = row({"mode": "open"}, result.describe())
    assert names["attempts.retried"] == 6
    assert names["ttft_ms.p50"] == pytest.approx(96)
    assert not any("by_error" in name or "by_status" in name or "partial" in name for name in names)


# Whoever judges numbers refuses those of a Run that ended early


@pytest.fixture
def ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on = prepared.replay_on
    monkeypatch.setattr(prepared, "replay_on", lambda *a, **k: replace(replay_on(*a, **k), partial=PARTIAL))
    Path("few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,50,40\n1,90,30\n")


@pytest.mark.usefixtures("shell", "ends_early")
def test_the_run_the_result_and_the_screen_say_it(as_json: AsJson, shell: Shell) -> None:
    flags = ("replay", "--trace", "few.csv", "--system", "vllm", "-q")
    assert as_json(*flags, "--no-out")["partial"] == to_json(PARTIAL)
    code, out, _ = shell(*flags, "--out", "run", "--plot", "over.svg")
    assert code == 0
    assert out.startswith("PARTIAL, it ended after 3.2 s")
    assert "modelled, PARTIAL" in Path("over.svg").read_text()
    facts = as_json("report", "run", "-o", "r.html")
    assert facts["runs"][0]["name"] == "vllm 4xh100 (PARTIAL)"
    assert as_json(*flags, "--out", "two")["partial"] == to_json(PARTIAL)
    found = as_json("compare", "run", "two")
    assert found["sides"][0]["label"] == "run (PARTIAL)"
    code, _, err = shell("compare", "run", "two", "--fail-on", "throughput<0.5")
    assert code == 2
    assert "--fail-on judges whole Runs, and run is PARTIAL" in err


@pytest.mark.usefixtures("shell", "ends_early")
def test_a_sweep_has_an_error_there(shell: Shell) -> None:
    flags = ("--trace", "few.csv", "--system", "vllm", "--vary", "max-num-seqs=4,8", "--jobs", "1")
    code, out, err = shell("sweep", *flags, "--out", "swept", "-q")
    assert "PARTIAL, it ended after 3.2 s" in out + err
    assert code != 0


@pytest.mark.usefixtures("shell", "ends_early")
def test_a_check_does_not_judge_it(shell: Shell) -> None:
    Path("cases.toml").write_text('[case.one]\ntrace = "few.csv"\nsystem = "vllm"\n')
    code, _, err = shell("check", "--cases", "cases.toml", "--jobs", "1", "--update")
    assert code != 0
    assert "cannot be judged, it is PARTIAL" in err
