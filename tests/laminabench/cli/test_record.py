"""`laminabench record`, against a server in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laminabench.bench.endpoint import Load, mock_server
from laminabench.workflows.validate.recording import read

CHUNKS, REQUESTS = 4, 12
SET_UP = ("--deployment", "1xrtx-4090", "--max-num-seqs", "64", "--costs", "vllm-0.19")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with mock_server(Load(1.0, 1.0, 16, CHUNKS, 1, 0.002)) as (result, _):
        yield result


@pytest.fixture
def command(url: str) -> tuple[str, ...]:
    trace = ("--trace", "azure-code", "--offline", "--num-requests", str(REQUESTS), "--max-output", "4")
    return ("record", "--url", url, "--model", "mock", *trace, "--request-rate", "200", "-q")


def test_a_recording_is_kept_as_one_file_that_is_predicted(
    as_json: Any, command: tuple[str, ...], tmp_path: Path
) -> None:
    target = tmp_path / "mine.toml"
    facts = as_json(*command, *SET_UP, "--no-prefix-caching", "-o", str(target))
    assert facts["requests"] == REQUESTS
    assert 0 < facts["ttft_ms"] < facts["latency_ms"]
    result = read(target)
    assert (result.name, len(result), result.about["engine"]) == ("mine", REQUESTS, "openai")
    assert (result.about["max_num_seqs"], result.about["prefix_caching"]) == (64, False)
    (row,) = as_json("validate", "--recorded", str(target), "--model", "llama3.1-8b")["recorded"]
    assert (row["recording"], row["costs"]) == ("mine", "vllm-0.19")
    assert [path.name for path in Path().iterdir() if path.name == "runs"] == []


def test_what_is_missing_is_said_before_anything_is_sent(
    shell: Any, command: tuple[str, ...], tmp_path: Path
) -> None:
    for words, code in (
        (("-o", str(tmp_path / "mine.toml")), "validation-bad-recording"),
        (("-o", str(tmp_path / "file" / "mine.toml"), *SET_UP), "file-not-writable"),
    ):
        (tmp_path / "file").write_text("")
        exit_code, out, _ = shell(*command, *words, "--json")
        assert (exit_code, json.loads(out)["error"]["code"]) == (2, code)
    assert not (tmp_path / "mine.toml").exists()
