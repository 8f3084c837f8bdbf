"""Runs as files of the tools: keys and types of files that they really wrote, and back without loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.interchange.calls import Calls, calls_of
from laminabench.interchange.exporting import exported, notes_of, target_of, write
from laminabench.interchange.importing import Given, imported
from laminabench.interchange.tools import TOOLS, read
from laminabench.runs.manifest import Partial
from laminabench.runs.read import Run, read_run
from laminabench.runs.status import DONE, FAILED, UNFINISHED
from laminabench.runs.write import write_run
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError
from laminabench.workflows.replay import ReplayRequest
from laminabench.workflows.replay import run as replay


def run_in(directory: Path, **choices: Any) -> Run:
    """A modelled Run of a few requests."""
    trace = directory / "few.csv"
    rows = "".join(f"{row * 0.5},{100 + 40 * row},{20 + row}\n" for row in range(12))
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    requested = {"system": "vllm", "deployment": "4xh100", "model": "llama3-70b", "mode": "open"} | choices
    replay(ReplayRequest(trace=str(trace), directory=str(directory / "run"), **requested))
    return read_run(directory / "run")


@pytest.fixture
def modelled(tmp_path: Path) -> Run:
    return run_in(tmp_path, prefill="colocated")


@pytest.fixture
def client_run(tmp_path: Path, stream: Any, observed: Any, manifest_of: Any) -> Run:
    """Of a client: pieces of several tokens, one that failed in the middle, one that was stopped."""
    streams = [
        stream(0.0, 0.001, [(0.1, 1), (0.2, 3)], completion_counted=4, prompt_counted=1),
        stream(0.5, 0.75, [(1.0, 1)], FAILED, 1, 503, error="the connection was reset"),
        stream(0.6, 0.8, [(1.1, 1), (1.2, 1)], UNFINISHED),
        stream(0.7, 0.9, [(1.3, 1), (1.4, 1), (1.7, 1)], prompt_counted=9),
    ]
    lengths = np.array([4, 4, 4, 3], np.int32)
    trace = Trace(np.zeros(4), lengths + 5, lengths, TraceMeta("small"))
    write_run(
        tmp_path / "run", observed(streams, 2.0), trace, manifest_of(trace, backend="live", system="openai")
    )
    return read_run(tmp_path / "run")


def files_of(run: Run, tool: str, folder: Path) -> Path:
    """Written where it goes."""
    target = target_of(run, tool, folder / f"out{'' if TOOLS[tool].folder else '.json'}")
    write(exported(run, tool)[0], target, folder=TOOLS[tool].folder)
    return target


def documents(path: Path) -> list[Any]:
    """All that is in a file, or in the files of a folder by their names."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# Like what they wrote


def kind(value: Any) -> str:
    """What JSON calls it; a number is a number."""
    return {dict: "object", list: "list", bool: "flag", str: "text", type(None): "null"}.get(
        type(value), "number"
    )


def unlike(real: Any, ours: Any, where: str = "") -> list[str]:
    """Where ours has another type than the tool's, at keys that both have; of lists the first element."""
    if isinstance(real, dict) and isinstance(ours, dict):
        both = real.keys() & ours.keys()
        return [result for key in both for result in unlike(real[key], ours[key], f"{where}.{key}")]
    if isinstance(real, list) and isinstance(ours, list):
        return unlike(real[0], ours[0], f"{where}[0]") if real and ours else []
    kinds = {kind(real), kind(ours)}
    return [] if len(kinds) == 1 or "null" in kinds else [f"{where}: {kind(real)} and {kind(ours)}"]


def test_keys_and_types_are_those_of_real_files(
    tool: str, result: Path, modelled: Run, tmp_path: Path
) -> None:
    real, ours = documents(result), documents(files_of(modelled, tool, tmp_path))
    for one, other in zip((real[0], real[-1]), (ours[0], ours[-1]), strict=True):
        # Of vLLM's a number or "inf".
        assert [actual for actual in unlike(one, other) if not actual.startswith(".request_rate")] == []


def test_vllm_bench_has_every_key(modelled: Run, written: Any, tmp_path: Path) -> None:
    (real,), (ours,) = (
        documents(written("vllm-rate.json")),
        documents(files_of(modelled, "vllm-bench", tmp_path)),
    )
    assert real.keys() - ours.keys() == {"gpu"}
    lists = (
        "ttfts",
        "itls",
        "start_times",
        "input_lens",
        "output_lens",
        "errors",
        "generated_texts",
        "latencies",
    )
    assert {len(ours[name]) for name in lists} == {12}


# A model's numbers are not taken for a measurement's


def test_a_modelled_run_says_so_in_name_and_content(modelled: Run, tool: str, tmp_path: Path) -> None:
    path = files_of(modelled, tool, tmp_path)
    assert "MODELLED" in path.name
    assert "MODELLED" in target_of(modelled, tool, None).name
    assert target_of(modelled, tool, Path("a-modelled-run.x")).name == "a-modelled-run.x"
    (label,) = {
        "vllm-bench": lambda message: [message[0]["label"]],
        "aiperf": lambda message: [message[-1]["run_info"]["run_label"]],
        "guidellm": lambda message: [message[0]["config"]["metadata"]["labels"]["name"]],
    }[tool](documents(path))
    assert label.startswith("MODELLED, not measured: computed by laminabench")
    assert '"laminabench_backend":"modelled"' in "".join(each.read_text() for each in _files(path))
    assert notes_of(modelled, tool)[0].startswith("this Run is modelled")


def _files(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else [path]


def test_a_measured_one_does_not(client_run: Run, tool: str, tmp_path: Path) -> None:
    path = files_of(client_run, tool, tmp_path)
    assert "MODELLED" not in path.name + "".join(each.read_text() for each in _files(path))


# The numbers


@pytest.mark.parametrize(
    "choices",
    [
        {"prefill": "colocated"},
        {"prefill": "off"},
        {"mode": "saturate", "admission": "grow", "kv_tokens": 900},
        {"system": "lamina", "deployment": "2xh100+4xh20", "prefill": "pool:2xh100"},
        {
            "system": "lamina",
            "deployment": "2xh100+4xh20",
            "instances": 2,
            "mode": "closed",
            "concurrency": 4,
        },
    ],
    ids=["colocated", "off", "preempted", "pool", "instances"],
)
def test_every_token_of_an_engine_is_a_piece(tmp_path: Path, choices: Any) -> None:
    run = run_in(tmp_path, **choices)
    calls = calls_of(run)
    assert calls.output_tokens.tolist() == run.output_tokens.tolist()
    assert calls.pieces.tokens.max() == 1
    start = run.outcome.requests["arrival_s"].min()
    first_s, last_s = (run.outcome.requests[name] - start for name in ("first_token_s", "finished_s"))
    np.testing.assert_allclose(calls.first_s, first_s, atol=1e-9)
    np.testing.assert_allclose(calls.last_s, last_s, atol=1e-9)
    # The summary's own mean of all gaps is that of the pieces.
    whole = run.manifest.summary.whole_run
    assert whole is not None
    assert 1e3 * calls.pieces.gaps()[1].mean() == pytest.approx(whole.tbt_ms.mean, rel=1e-9)
    if "preempted" in tmp_path.name:
        assert run.outcome.requests["preemptions"].sum() > 0


def test_statistics_are_by_the_tools_definitions(modelled: Run, tmp_path: Path) -> None:
    calls = calls_of(modelled)
    waits, gaps = 1e3 * calls.waited_s(), 1e3 * calls.pieces.gaps()[1]
    (message,) = documents(files_of(modelled, "vllm-bench", tmp_path))
    assert message["p99_ttft_ms"] == pytest.approx(np.percentile(waits, 99))
    assert message["mean_itl_ms"] == pytest.approx(gaps.mean())
    assert message["output_throughput"] == pytest.approx(calls.output_tokens.sum() / message["duration"])
    assert sum(map(len, message["itls"])) == calls.output_tokens.sum() - 12
    message = documents(files_of(modelled, "aiperf", tmp_path))[-1]
    per_request = 1e3 * (calls.last_s - calls.first_s) / (calls.output_tokens - 1)
    assert message["inter_token_latency"]["p50"] == pytest.approx(np.percentile(per_request, 50))
    assert message["inter_chunk_latency"]["count"] == len(gaps)
    message = documents(files_of(modelled, "guidellm", tmp_path))[0]["benchmarks"][0]["metrics"]
    assert message["inter_token_latency_ms"]["successful"]["mean"] == pytest.approx(gaps.mean())
    # A value that occurred, and not one between two.
    p90 = message["time_to_first_token_ms"]["successful"]["percentiles"]["p90"]
    assert p90 == pytest.approx(np.sort(waits)[10])
    assert message["output_tokens_per_second"]["successful"]["count"] == calls.output_tokens.sum()


# And back


def back(run: Run, tool: str, folder: Path) -> Run:
    """Exported and imported."""
    path = files_of(run, tool, folder)
    (result,) = read(path)
    assert result.differences() == []
    imported(result, path, Given()).write(folder / "back")
    return read_run(folder / "back")


EVERYONE = ("prompt_tokens", "output_tokens", "status")


def require_same(before: Calls, after: Calls, names: tuple[str, ...]) -> None:
    for name in names:
        one, other = getattr(before, name), getattr(after, name)
        if name.endswith("_s"):
            np.testing.assert_allclose(other, one, atol=2e-6, err_msg=name)
        else:
            assert other.tolist() == one.tolist(), name


def test_of_a_modelled_run_nothing_is_lost(modelled: Run, tool: str, tmp_path: Path) -> None:
    run = back(modelled, tool, tmp_path)
    before, after = calls_of(modelled), calls_of(run)
    require_same(before, after, (*EVERYONE, "sent_s", "first_s", "last_s"))
    if tool != "guidellm":
        np.testing.assert_allclose(after.pieces.at_s, before.pieces.at_s, atol=2e-6)
        assert not after.even.any()
    # What was computed is not taken for measured on the way back.
    assert (run.manifest.backend, run.manifest.system) == ("modelled", "vllm")
    workload = modelled.manifest.workload
    assert (run.manifest.workload.mode, run.manifest.workload.concurrency) == (
        workload.mode,
        workload.concurrency,
    )
    whole, again = modelled.manifest.summary.whole_run, run.manifest.summary.whole_run
    assert whole is not None
    assert again is not None
    assert again.throughput_tokens_per_s == pytest.approx(whole.throughput_tokens_per_s, rel=1e-4)
    assert again.tbt_ms.mean == pytest.approx(whole.tbt_ms.mean, rel=1e-4)
    assert run.manifest.summary.ttft_ms.mean is not None


@pytest.mark.parametrize(("mode", "concurrency"), [("closed", 3), ("saturate", None), ("open", None)])
def test_how_requests_were_offered_comes_back(
    tmp_path: Path, tool: str, mode: str, concurrency: int | None
) -> None:
    run = back(run_in(tmp_path, mode=mode, concurrency=concurrency), tool, tmp_path)
    if mode == "saturate" and tool == "aiperf":  # which knows only so many at once
        mode, concurrency = "closed", 12
    assert (run.manifest.workload.mode, run.manifest.workload.concurrency) == (mode, concurrency)


def test_of_what_a_client_saw_what_both_know_comes_back(client_run: Run, tool: str, tmp_path: Path) -> None:
    before, after = calls_of(client_run), calls_of(back(client_run, tool, tmp_path))
    assert before.status.tolist() == [DONE, FAILED, UNFINISHED, DONE]
    # vLLM knows only requests that were answered and those that failed.
    ends = [DONE, FAILED, FAILED if tool == "vllm-bench" else UNFINISHED, DONE]
    assert after.status.tolist() == ends
    done = before.done
    np.testing.assert_allclose(after.sent_s, before.sent_s, atol=2e-6)
    for name in ("first_s", "last_s", "output_tokens"):
        np.testing.assert_allclose(getattr(after, name)[done], getattr(before, name)[done], atol=2e-6)
    assert after.prompt_tokens.tolist() == before.prompt_tokens.tolist()
    assert after.error.tolist()[1] == "the connection was reset"
    counted = before.prompt_counted.tolist() if tool == "aiperf" else [-1] * 4
    assert after.prompt_counted.tolist() == counted


def test_what_was_imported_is_exported_as_it_was(tool: str, result: Path, tmp_path: Path) -> None:
    (actual,) = read(result)
    imported(actual, result, Given()).write(tmp_path / "one")
    run = read_run(tmp_path / "one")
    again = back(run, tool, tmp_path)
    names = (
        "sent_s",
        "first_s",
        "last_s",
        *EVERYONE,
        "even",
        "prompt_counted",
        "completion_counted",
        "error",
    )
    require_same(calls_of(run), calls_of(again), names)
    np.testing.assert_allclose(again.outcome.end_s, run.outcome.end_s, atol=2e-6)
    began = [each.manifest.deployment.facts["imported"]["began_at_s"] for each in (run, again)]
    assert began[0] == pytest.approx(began[1], abs=1e-5) or tool == "vllm-bench"


# What is refused


def test_a_run_without_iterations(tmp_path: Path, tool: str) -> None:
    run = run_in(tmp_path, mode="saturate", iterations=False)
    with pytest.raises(UserError, match="export-no-iterations"):
        exported(run, tool)


def test_a_run_in_which_nothing_was_answered(
    tmp_path: Path, stream: Any, observed: Any, manifest_of: Any, tool: str
) -> None:
    lengths = np.array([4], np.int32)
    trace = Trace(np.zeros(1), lengths, lengths, TraceMeta("small"))
    for name, one, code in (
        ("failed", stream(0.0, 0.5, [], FAILED, 1, 503, error="503"), "export-nothing-done"),
        ("never", stream(np.nan, np.nan, [], UNFINISHED, 0, -1), "export-nothing-sent"),
    ):
        write_run(
            tmp_path / name,
            replace(observed([one], 2.0), queue_empty_s=0.0),
            trace,
            manifest_of(trace, backend="live"),
        )
        with pytest.raises(UserError, match=code):
            exported(read_run(tmp_path / name), tool)


def test_a_foreign_folder_is_left_alone(modelled: Run, tmp_path: Path) -> None:
    target = tmp_path / "modelled-mine"
    files, _ = exported(modelled, "aiperf")
    write(files, target, folder=True)
    write(files, target, folder=True)  # an export of ours is replaced
    (target / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="output-exists"):
        write(files, target, folder=True)
    assert (target / "notes.txt").read_text() == "mine"


def test_a_run_that_ended_early_says_so(modelled: Run, tool: str, tmp_path: Path) -> None:
    from msgspec import structs

    partial = Partial(why="the server is gone", at_s=3.2)
    run = replace(modelled, manifest=structs.replace(modelled.manifest, partial=partial))
    path = files_of(run, tool, tmp_path)
    assert "PARTIAL, it ended after 3.2 s" in "".join(each.read_text() for each in _files(path))
    assert any("PARTIAL" in note for note in notes_of(run, tool))
