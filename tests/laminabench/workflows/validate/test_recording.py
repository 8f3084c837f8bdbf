"""Recordings: as files of numbers, as folders of LLMServingSim, as Runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.server_host import Steps, server_host
from laminabench.util.errors import UserError
from laminabench.workflows.replay import ReplayRequest, run
from laminabench.workflows.validate.recorded import host_of, judged
from laminabench.workflows.validate.recording import _COLUMNS, names, packaged_recording, read

SETTINGS: dict[str, Any] = {"model": "llama3.1-8b", "deployment": "1xrtx-4090", "costs": "vllm-0.19"}


def a_replay(folder: Path, **chosen: Any) -> ReplayRequest:
    """Of a modelled server that computes prompts, into folder/run."""
    return ReplayRequest(
        system="vllm",
        offline=True,
        mode="open",
        prefill="colocated",
        max_num_seqs=64,
        directory=str(folder / "run"),
        **SETTINGS,
        **chosen,
    )


def test_a_recording_is_written_and_read_back(made: Any, tmp_path: Path) -> None:
    target = tmp_path / "made.toml"
    saved = made(others={"another": {"ttft": [1.5, -2.0, 0.0, 3.0]}})
    saved.write(target)
    again = read(target)
    assert (again.name, again.about, again.others) == (saved.name, saved.about, saved.others)
    for name in _COLUMNS:
        assert getattr(again, name) == pytest.approx(getattr(saved, name), abs=5e-7)


def test_a_folder_of_the_benchmark_is_read_with_its_shared_prefixes(folder: Path) -> None:
    result = read(folder, **SETTINGS)
    assert result.arrival_s.tolist() == [0, 1, 2]
    # On the other clock the first arrival is where its request was queued.
    assert result.first_token_s.tolist() == [0.5, 1.5, 2.5]
    assert result.prompt_tokens.tolist() == [50, 40, 36]
    assert (result.like.tolist(), result.blocks.tolist()) == ([-1, -1, 0], [0, 0, 2])
    assert result.about["kv_tokens"] == 1600
    trace = result.trace()
    assert trace.prefix_blocks is not None
    rows = [trace.prefix_blocks[row].tolist() for row in range(3)]
    assert [len(row) for row in rows] == [3, 2, 2]
    assert rows[2] == rows[0][:2]
    assert not set(rows[1]) & set(rows[0])


def test_a_run_is_read_as_a_recording_and_predicted_by_what_made_it(tmp_path: Path) -> None:
    """A modelled Run that says it is live: its prediction is itself."""
    request = a_replay(
        tmp_path,
        trace="azure-code",
        num_requests=60,
        rate_scale=0.2,
        host_async=True,
        max_batched_tokens=512,
        scale_lengths=0.5,
    )
    directory = run(request).directory
    assert directory is not None
    with pytest.raises(UserError, match="validation-bad-recording"):
        read(directory, **SETTINGS)
    manifest = directory / "run.json"
    requested = json.loads(manifest.read_text()) | {"backend": "live"}
    del requested["crc32"]
    manifest.write_text(json.dumps(requested))
    result = read(directory, **SETTINGS)
    assert (result.about["max_num_seqs"], result.about["max_batched_tokens"]) == (64, 512)
    errors = judged([result])[0].errors()
    assert all(abs(error) < 1e-6 for metric in errors.values() for error in metric.values())


@pytest.mark.parametrize(
    ("stated", "given", "engine", "ahead", "host"),
    [
        ({}, {}, "vllm", True, None),
        ({"server": "lamina", "server_version": "0.2"}, {}, "lamina 0.2", True, None),
        ({"server": "vllm", "server_version": "0.18.0"}, {}, "vllm 0.18.0", True, ("0.18.0", True)),
        ({"server": "vllm", "server_version": "0.12.0"}, {}, "vllm 0.12.0", False, ("0.12.0", False)),
        (
            {"server": "vllm", "server_version": "0.12.0"},
            {"host_async": True, "graph_rows": 256},
            "vllm 0.12.0",
            True,
            ("0.12.0", True),
        ),
        ({}, {"server_version": "0.13.0"}, "vllm 0.13.0", False, ("0.13.0", False)),
    ],
)
def test_a_server_s_release_says_what_its_host_takes(
    tmp_path: Path, stated: Any, given: Any, engine: str, ahead: bool, host: tuple[str, bool] | None
) -> None:
    run(a_replay(tmp_path, trace="azure-code", num_requests=10, scale_lengths=0.1))
    manifest = tmp_path / "run" / "run.json"
    stored = json.loads(manifest.read_text()) | {"backend": "live"}
    stored["deployment"]["facts"] |= stated
    del stored["crc32"]
    manifest.write_text(json.dumps(stored))
    result = read(tmp_path / "run", **{**SETTINGS, "deployment": "2xh100:tp2", **given})
    assert (result.about["engine"], result.about["host_async"]) == (engine, ahead)
    assert result.about.get("graph_rows") == given.get("graph_rows")
    expected = host and server_host(host[0], "h100", Steps(host[1]))
    assert host_of(result) == expected


def test_a_server_s_run_has_the_prefixes_of_its_trace_where_that_is_here(tmp_path: Path) -> None:
    result = run(a_replay(tmp_path, trace="kimi-conv", num_requests=200, scale_lengths=0.1))
    trace, blocks = result.trace, result.trace.prefix_blocks
    assert blocks is not None
    manifest = tmp_path / "run" / "run.json"
    requested = json.loads(manifest.read_text())
    requested |= {"backend": "live", "system": "openai"}
    del requested["crc32"]
    manifest.write_text(json.dumps(requested))
    actual = read(tmp_path / "run", **SETTINGS)
    equal = np.flatnonzero(actual.like >= 0)
    assert len(equal) > 0
    done = np.flatnonzero(np.isfinite(result.replayed.outcome.requests["finished_s"]))
    for row in equal:
        one, other = blocks[done[row]], blocks[done[actual.like[row]]]
        common = int(np.cumprod(one[: len(other)] == other[: len(one)]).sum())
        tokens = min(common * trace.meta.block_tokens, actual.prompt_tokens[row])
        assert actual.blocks[row] == tokens // 16
    requested["request"] = requested["request"].replace("num-requests = 200", "num-requests = 100")
    manifest.write_text(json.dumps(requested))
    elsewhere = read(tmp_path / "run", **SETTINGS)
    assert "kimi-conv here is not" in elsewhere.about["prefixes"]
    assert (elsewhere.like == -1).all()


@pytest.mark.parametrize("name", names())
def test_the_packaged_recordings_say_where_they_are_from(name: str) -> None:
    result = packaged_recording(name)
    assert len(result) == 300
    assert "MIT" in result.about["source"]
    assert (result.first_token_s > result.arrival_s).all()
    assert (result.last_token_s > result.first_token_s).all()
    assert (result.like < np.arange(300)).all()


def test_no_recording_of_that_name() -> None:
    with pytest.raises(UserError, match="validation-unknown"):
        packaged_recording("rtx-4091")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("meta.json", "{}"),
        ("meta.json", "["),
        ("requests.jsonl", ""),
        ("requests.jsonl", '{"input_toks": 1}'),
        ("workload.jsonl", '{"input_tok_ids": [1]}\n{"input_tok_ids": [2]}\n{"input_tok_ids": [3]}'),
    ],
)
def test_a_folder_that_is_damaged_is_refused(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(UserError, match="validation-bad-recording"):
        read(folder, **SETTINGS)


def test_the_server_s_setup_is_requested(folder: Path) -> None:
    with pytest.raises(UserError, match=r"--model, --deployment, --costs"):
        read(folder)


def test_a_folder_says_model_device_limits_and_scheduling(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    meta |= {"model": "meta-llama/Llama-3.1-8B", "hardware": {"device_name": "NVIDIA GeForce RTX 4090"}}
    meta["vllm_version"] = "0.12.0"
    meta["engine_kwargs"]["tensor_parallel_size"] = 2
    (folder / "meta.json").write_text(json.dumps(meta))
    result = read(folder).about
    assert [result[name] for name in ("model", "deployment", "costs")] == [
        "llama3.1-8b",
        "2xrtx-4090",
        "vllm-0.19",
    ]
    assert result["host_async"] is False
    meta["resolved_config"] = {
        "scheduler_config": {"async_scheduling": True},
        "cache_config": {"enable_prefix_caching": False, "gpu_memory_utilization": 0.8},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    result = read(folder, model="llama3-8b").about
    assert (result["host_async"], result["prefix_caching"], result["memory_utilization"]) == (
        True,
        False,
        0.8,
    )
    assert result["model"] == "llama3-8b"


def test_a_file_that_is_none_is_refused(made: Any, tmp_path: Path) -> None:
    target = tmp_path / "made.toml"
    made().write(target)
    text = target.read_text()
    target.write_text(text.replace('output_tokens = "', 'output_tokens = "1 '))
    with pytest.raises(UserError, match="validation-bad-recording"):
        read(target)
    target.write_text(json.dumps(""))
    with pytest.raises(UserError, match="catalogue-file-not-toml"):
        read(target)


def test_a_unique_prompt_shares_nothing(made: Any, tmp_path: Path) -> None:
    target = tmp_path / "made.toml"
    made(blocks=np.ones(40, np.int32)).write(target)
    with pytest.raises(UserError, match="validation-bad-recording"):
        read(target)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "5"),
        ("costs", "[]"),
        ("deployment", '"h100"'),
        ("max_num_seqs", "nan"),
        ("max_num_seqs", "-1"),
        ("max_batched_tokens", '""'),
        ("kv_tokens", "[1, 2]"),
        ("prefix_caching", '"yes"'),
        ("memory_utilization", "2"),
        ("others", "-inf"),
        ("others", "{ another = 1 }"),
    ],
)
def test_a_server_that_cannot_be_is_refused(made: Any, tmp_path: Path, key: str, value: str) -> None:
    target = tmp_path / "made.toml"
    made().write(target)
    rest = [line for line in target.read_text().splitlines() if not line.startswith(f"{key} =")]
    target.write_text("\n".join([f"{key} = {value}", *rest]))
    with pytest.raises(UserError, match="validation-bad-recording"):
        read(target)


def test_switches_that_a_file_lacks_are_as_in_servers_of_today(made: Any, tmp_path: Path) -> None:
    target = tmp_path / "made.toml"
    made().write(target)
    text = target.read_text().replace("host_async = true\n", "").replace("prefix_caching = true\n", "")
    target.write_text(text)
    about = read(target).about
    assert (about["host_async"], about["prefix_caching"]) == (True, True)
