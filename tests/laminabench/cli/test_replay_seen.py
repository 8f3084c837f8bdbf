"""What is printed of a replay: what only a client saw, boards' memories, what ended early."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import convert, structs
from rich.console import Console

from laminabench.analysis.metrics import summarise
from laminabench.render.sheets.replay import _memory_lines, describe, render
from laminabench.runs.manifest import Partial
from laminabench.runs.status import FAILED
from laminabench.runs.summary import Amounts, HbmBytes, MeanAndMax, Memory
from laminabench.sim.outcome import Outcome
from laminabench.systems.modelled import prepared
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.json import to_json
from laminabench.workflows.replay import Replayed, Result
from laminabench.workflows.sweep.rows import row

PARTIAL = Partial(why="the server is [gone]", at_s=3.21)


@pytest.fixture
def result(stream: Any, seen: Callable[..., Outcome]) -> Result:
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
    request, model = SimpleNamespace(system="openai", mode="open"), SimpleNamespace(name="some")
    ready: Any = SimpleNamespace(backend="live", request=request, deployment="a url", model=model)
    return Result(ready, trace, Replayed(outcome, {}, summary), None, 22.0)


def changed(result: Result, summary: Mapping[str, Any], **replayed: Any) -> Result:
    """With another summary, or otherwise replayed."""
    other = structs.replace(result.replayed.summary, **summary)
    return replace(result, replayed=replace(result.replayed, summary=other, **replayed))


def printed(result: Result) -> list[str]:
    console = Console(file=io.StringIO(), width=400)
    render(console, result, result.wall_s)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def test_tokens_and_chunks_stand_beside_each_other(result: Result) -> None:
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


def test_what_was_dealt_evenly_was_not_late_or_ended_early_is_said(result: Result) -> None:
    chunks = structs.replace(result.replayed.summary.tokens_per_chunk, even_share=0.25)
    told = printed(changed(result, {"tokens_per_chunk": chunks, "lateness_ms": None}))
    assert any("25.0% of them dealt evenly" in line for line in told)
    assert not any("sent late" in line for line in told)
    assert told[0].startswith("made, ")
    first = printed(changed(result, {}, partial=PARTIAL))[0]
    assert first == "PARTIAL, it ended after 3.2 s: the server is [gone]"


def test_errors_are_no_columns_of_a_sweep(result: Result) -> None:
    names = row({"mode": "open"}, describe(result, result.wall_s))
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
def test_the_run_the_result_and_the_screen_say_it(as_json: Any, refused: Any, printed: Any) -> None:
    flags = ("replay", "--trace", "few.csv", "--system", "vllm", "-q")
    assert as_json(*flags, "--no-out")["partial"] == to_json(PARTIAL)
    out = printed(*flags, "--out", "run", "--plot", "over.svg")
    assert out.startswith("PARTIAL, it ended after 3.2 s")
    assert "modelled, PARTIAL" in Path("over.svg").read_text()
    facts = as_json("report", "run", "-o", "r.html")
    assert facts["runs"][0]["name"] == "vllm 4xh100 (PARTIAL)"
    assert as_json(*flags, "--out", "two")["partial"] == to_json(PARTIAL)
    found = as_json("compare", "run", "two")
    assert found["sides"][0]["label"] == "run (PARTIAL)"
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


GB = 1_000_000_000


def test_three_lines_say_it() -> None:
    memory = Memory(
        hbm_capacity_bytes=96 * GB,
        hbm_share=MeanAndMax(mean=0.71, max=0.76),
        hbm_bytes=HbmBytes(
            kv=MeanAndMax(mean=55 * GB, max=60 * GB),
            qkv=MeanAndMax(mean=10 * GB, max=0),
            fc=MeanAndMax(mean=6 * GB, max=0),
        ),
        lpddr_bytes=MeanAndMax(mean=230 * GB, max=240 * GB),
        wasted_bytes=MeanAndMax(mean=0.75 * GB, max=GB),
        mapping_changes=1234,
        changes_per_iteration=0.1,
        moved_bytes=Amounts(total=4000 * GB, per_iteration=0.39 * GB, max=4_200_000_000),
        compacted_bytes=Amounts(total=30 * GB, per_iteration=0.003 * GB, max=GB),
        moving_s=1.0,
        moving_share=0.021,
        hideable_share=0.25,
        hbm_busy_share=0.6,
        lpddr_busy_share=0.9,
    )
    assert dict(_memory_lines(memory)) == {
        "memory": "HBM 71.0% in use, 76.0% at most: 55 GB KV, 10 GB QKV weights, 6 GB FC weights; "
        "LPDDR 230 GB; 0.75 GB empty in pages",
        "busy": "HBM side 60.0%, LPDDR side 90.0% of the iterations' time",
        "moved": "4,000 GB in 1,234 changes of mapping, 0.39 GB an iteration, 4.2 GB at most; "
        "30 GB of KV copied together; that takes 2.1% of the time, 25.0% of that could pass while LPDDR is "
        "idle",
    }


def test_of_nothing_nothing_is_said() -> None:
    nothing = {"mean": None, "max": None}
    none_moved = {"total": 0, "per_iteration": None, "max": None}
    known = {
        "hbm_share": nothing,
        "hbm_bytes": dict.fromkeys(("kv", "qkv", "fc"), nothing),
        **dict.fromkeys(("lpddr_bytes", "wasted_bytes"), nothing),
        **dict.fromkeys(("moved_bytes", "compacted_bytes"), none_moved),
        "mapping_changes": 0,
        "moving_s": 0.0,
    }
    memory = convert({**dict.fromkeys(Memory.__struct_fields__), **known}, Memory)
    assert dict(_memory_lines(memory))["memory"].startswith("HBM - in use, - at most: - KV")
