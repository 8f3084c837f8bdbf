"""What a GPU's steps measure, where it can be computed without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tiny_models import tiny

from gpu_window import engine, workers
from lamina.serve.local_core import LocalCore
from laminabench.bench.frame import Report


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
