"""Runs of the engine beside the modelled cluster: which runs, of which costs, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from gpu_window import predicted
from laminabench.bench.frame import Report
from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.catalog.cost_keys import DtypeKey
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices
from laminabench.catalog.step import model_step

SHAPE = model("llama3.1-8b")
CARD = "NVIDIA H100 80GB HBM3"


def measured(way: str, batch: int, context: int, seconds: float = 0.01) -> dict[str, Any]:
    took = {"median": seconds, "min": seconds, "max": seconds}
    return {"backend": way, "batch": batch, "context": context, "iteration_s": took}


def left(folder: Path, *rows: dict[str, Any], card: str = CARD) -> None:
    (folder / "gpu.json").write_text(json.dumps({"device": card}))
    (folder / "engine.json").write_text(json.dumps({"model": SHAPE.name, "rows": rows}))


def kernels(folder: Path, times: float = 1.0) -> None:
    """As if the card was so many times as fast as the catalogue's H100."""
    costs = load_costs("vllm-0.14")
    h100 = load_devices()["h100"]
    own = predicted.Device(
        "measured-h100",
        "here",
        {name: rate * times for name, rate in h100.flops.items()},
        h100.memory_bytes,
        h100.bandwidth_bytes_per_s * times,
        *(1e9, 1e9, None, "here"),
    )
    saved = {
        "gemm": {DtypeKey(own.name, dtype): cost for (on, dtype), cost in costs.gemm.items() if on == "h100"},
        **{
            name: {own.name: getattr(costs, name)["h100"]}
            for name in ("attention", "prompt_attention", "elementwise")
        },
    }
    made = with_fields(costs, name=own.name, devices={own.name: own}, allreduce={}, borrowed={}, **saved)
    write_costs(made, folder / predicted.KERNELS)


def rows(report: Report) -> list[dict[str, Any]]:
    result = report.json()["rows"]
    assert isinstance(result, list)
    return result


def test_runs_by_graphs_are_predicted_from_both(tmp_path: Path) -> None:
    left(
        tmp_path,
        measured("python", 1, 1024),
        measured("cudagraph", 1, 1024),
        measured("cudagraph", 64, 1024),
        {"backend": "cudagraph", "batch": 256, "context": 8192, "skipped": "no room"},
    )
    kernels(tmp_path, 2.0)
    report = predicted.run(tmp_path)
    result = rows(report)
    assert [(row["source"][:9], row["batch"]) for row in result] == [
        ("kernels m", 1), ("kernels m", 64), ("catalogue", 1), ("catalogue", 64)
    ]  # fmt: skip
    for row in result:
        assert row["measured_s"] == 0.01
        assert row["modelled_over_measured"] == pytest.approx(row["modelled_s"] / 0.01)
    # What takes no bytes is as long on both.
    assert 0.5 < result[1]["modelled_s"] / result[3]["modelled_s"] < 0.9
    assert report.facts["missing"] == []


def test_an_iteration_is_its_slices_and_attention_without_a_host() -> None:
    costs, on = load_costs("vllm-0.14"), load_devices()["h100"]
    source = predicted.Source("catalogue", costs, on)
    whole = predicted.iteration_s(source, SHAPE, 16, 1024)
    step = float(model_step(costs, SHAPE, on, 1, 16).total_s)
    attention = float(costs.attention_seconds(SHAPE, on, 16 * 1024, 16))
    assert whole == pytest.approx(step + attention, rel=0.01)


@pytest.mark.parametrize(
    ("card", "name"),
    [
        (CARD, "h100"), ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-80g-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80g"), ("NVIDIA A100-PCIE-40GB", "a100-40g"), ("NVIDIA T4", None),
    ],
)  # fmt: skip
def test_a_card_is_looked_up_in_the_catalogue(card: str, name: str | None) -> None:
    assert predicted.catalogue_name(card) == name
