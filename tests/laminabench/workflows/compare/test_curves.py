"""Curves of a comparison: what their points are, and where they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from laminabench.cli.main import main
from laminabench.runs.read import read_run
from laminabench.workflows.compare.curves import RANGE, curve_of_run

TRACE = ("--trace", "profile:azure-conv", "--num-requests", "400")


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*arguments, "--json", "-q"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_a_point_is_the_replay_with_its_limit() -> None:
    (cell,) = run("compare", *TRACE, "--model", "llama3-70b", "--jobs", "1")["cells"]
    for name, points in cell["curves"].items():
        assert points[-1]["tokens_per_s"] == cell["throughput_tokens_per_s"][name]
        assert points[-1]["batch"] == cell["max_num_seqs"][name]
        assert cell["errors"][name] in cell["verdict"]["errors"].values()
        flags = ("--system", name, "--deployment", cell["deployment"][name], "--no-out")
        for point in (points[0], points[-2]):
            limit = ("--max-num-seqs", str(point["batch"]))
            alone = run("replay", *TRACE, "--model", "llama3-70b", *flags, *limit)
            assert point["requests"] == 400
            assert point["tokens_per_s"] == alone["throughput_tokens_per_s"]
            assert point["tbt_s"] == alone["tbt_ms"]["p99"] / 1000
            assert point["dollars_per_million"] == alone["cost"]["usd_per_million_tokens"]


def test_useful_points_under_every_load() -> None:
    mine = ("--deployment", "vllm=2xh100", "--max-num-seqs", "vllm=24", "--mode", "open")
    (cell,) = run("compare", *TRACE, "--model", "llama-33b", "--jobs", "1", *mine)["cells"]
    points = cell["curves"]["vllm"]
    assert [each["batch"] for each in points][-3:] == [20, 22, 24]
    assert [each["batch"] for each in points] == sorted(each["batch"] for each in points)
    dollars = [each["dollars_per_million"] for each in points]
    assert dollars == sorted(dollars, reverse=True)
    assert all(each <= RANGE * dollars[-1] for each in dollars[1:])
    # Arrivals are slower than what a saturated replay makes.
    assert points[-1]["tokens_per_s"] > cell["throughput_tokens_per_s"]["vllm"]


def test_several_models_have_no_curves() -> None:
    facts = run("compare", *TRACE, "--model", "llama3-70b", "--model", "llama-33b", "--jobs", "1")
    assert not any("curves" in cell for cell in facts["cells"])


def test_a_run_gives_the_curve_of_its_replay(tmp_path: Path) -> None:
    folder, flags = tmp_path / "run", ("--system", "vllm", "--mode", "open", "--request-rate", "5")
    run("replay", *TRACE, *flags, "--out", str(folder))
    stored = read_run(folder)
    curve = curve_of_run(stored)
    assert curve is not None
    assert (curve.system, curve.deployment) == ("vllm", "4xh100")
    assert curve.points[-1].tokens_per_s > (stored.manifest.summary.throughput_tokens_per_s or 0)
    # What the model gives now differs from what the Run says.
    summary = msgspec.structs.replace(stored.manifest.summary, throughput_tokens_per_s=1.0)
    other = msgspec.structs.replace(stored.manifest, summary=summary)
    assert curve_of_run(replace(stored, manifest=other)) is None
    assert curve_of_run(replace(stored, manifest=msgspec.structs.replace(other, backend="live"))) is None
    unnamed = msgspec.structs.replace(stored.manifest, request=None)
    assert curve_of_run(replace(stored, manifest=unnamed)) is None
