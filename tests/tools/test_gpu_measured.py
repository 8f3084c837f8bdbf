"""What a GPU's steps measure, where it can be computed without one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny

from gpu_window import card, engine, workers
from lamina.serve.local_core import LocalCore
from laminabench.bench.frame import Report, spread


def _facts(report: Report) -> list[Mapping[str, Any]]:
    rows = report.facts["rows"]
    assert isinstance(rows, list)
    return [row.facts for row in rows]


def test_loads_are_measured_or_reported_as_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("Llama")
    monkeypatch.setattr(engine, "free_bytes", lambda _: 10_000_000)
    report = engine.run(1e9, batches=(1, 3), contexts=(40, 100_000), steps=4, config=config, device="cpu")
    small, more, *large = _facts(report)
    assert [row["batch"] for row in (small, more)] == [1, 3]
    assert all("skipped" in row and row["context"] == 100_000 for row in large)
    weights, token = report.facts["weight_bytes"], report.facts["kv_token_bytes"]
    assert isinstance(weights, int)
    assert isinstance(token, int)
    read = report.facts["weight_bytes_read"]
    # The table of embeddings, which decoding does not read, is no part of the bound.
    assert read == weights - config.vocab_size * config.hidden_size * 2
    for row in (small, more):
        assert read / 1e9 < row["bound_s"] <= (read + 3 * 44 * token) / 1e9
        assert row["tokens_per_s"] == row["batch"] / row["iteration_s"].median
        assert row["share"] == row["bound_s"] / row["iteration_s"].median


@pytest.mark.usefixtures("emulated")
def test_both_ways_run_on_a_gpu() -> None:
    report = engine.run(1e9, batches=(1, 3), contexts=(6,), steps=1, config=tiny("Llama"))
    rows = [(row["backend"], row["batch"], row["iteration_s"].median > 0) for row in _facts(report)]
    assert rows == [(way, batch, True) for way in ("python", "cudagraph") for batch in (1, 3)]
    assert report.facts["refused"] == {}


def test_no_load_begins_after_its_time() -> None:
    report = engine.run(1e9, batches=(1,), contexts=(40,), seconds=-1, config=tiny("Llama"), device="cpu")
    assert [row["skipped"] for row in _facts(report)] == ["no time was left"]


def test_a_card_is_described_by_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '580.1, 1980 MHz, 1980 MHz, 3201 MHz, 700.00 W, 31'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(card.torch.cuda, "current_device", lambda: 0)
    result = card.settings()
    assert result["driver_version"] == "580.1"
    assert result["clocks.mem"] == "3201 MHz"
    tool.unlink()
    assert card.settings() == {}
    report = card.report("one", result, spread([4e12]), spread([7e14, 8e14, 9e14]))
    assert report.json()["product_flops"] == {"median": 8e14, "min": 7e14, "max": 9e14}


def test_measurements_before_a_failure_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: LocalCore, batch: int) -> None:
        if len(self._rows) == 2:
            raise RuntimeError("an illegal address\nwas read")
        return land(self, batch)  # type: ignore[return-value]

    land = LocalCore.land
    monkeypatch.setattr(LocalCore, "land", fails)
    report = engine.run(1e9, batches=(1, 2, 3), contexts=(40,), steps=4, config=tiny("Llama"), device="cpu")
    one, two, three = _facts(report)
    assert one["tokens_per_s"] > 0
    assert two["skipped"] == "RuntimeError: an illegal address"
    assert three["skipped"] == "an earlier one failed"
    assert report.facts["refused"] == {"python": "RuntimeError: an illegal address\nwas read"}


@pytest.mark.long
@pytest.mark.usefixtures("emulated")
def test_layouts_are_measured_and_failures_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: Any, way: str, *rest: Any) -> Any:
        if "in turn" in way:
            raise RuntimeError("no\nroom")
        return once(config, way, *rest)

    once = workers._measured
    monkeypatch.setattr(workers, "_measured", measured)
    report = workers.run(batches=(2, 3), context=20, steps=6, config=tiny("Llama"))
    rows = _facts(report)
    assert [row.get("batch") for row in rows] == [2, 3, 2, 3, 4, 6, None, 2, 3, 4, 6]
    assert rows[0]["layout"] == "one process"
    assert rows[6]["skipped"] == "RuntimeError: no"
    assert all(row["tokens_per_s"].min > 0 for row in rows if "skipped" not in row)
    assert report.facts["mps"] is False
    assert list(report.facts["refused"]) == ["two on the GPU, in turn"]


@pytest.mark.parametrize("starts", [True, False])
def test_mps_runs_as_long_as_it_is_needed(
    starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = tmp_path / "report"
    tool = tmp_path / "nvidia-cuda-mps-control"
    script = f'if [ $# = 0 ]; then read -r line; fi\necho "$*$line $CUDA_MPS_PIPE_DIRECTORY" >> {reported}'
    tool.write_text(f"#!/bin/sh\n{script}\n{'' if starts else 'exit 1'}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    with workers.mps() as shared:
        assert shared is starts
    first, *end = reported.read_text().splitlines()
    assert first.startswith("-d /")
    assert [words.partition(" /")[0] for words in end] == ["quit -t 3"] * starts
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
