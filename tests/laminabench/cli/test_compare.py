"""`laminabench compare` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]

ONE_CELL = ("compare", "--model", "llama3-70b", "--trace", "few.csv", "--costs", "roofline", "--jobs", "1")


@pytest.fixture(autouse=True)
def few(shell: Shell) -> None:
    """A small trace, where the shell is."""
    del shell  # it has changed the folder
    rows = [f"{i / 10},{100 + 37 * i % 900},{10 + 7 * i % 50}" for i in range(60)]
    Path("few.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")


@pytest.fixture
def runs(shell: Shell) -> tuple[str, str]:
    for name, system in (("first", "lamina"), ("second", "vllm")):
        code, _, err = shell("replay", "--trace", "few.csv", "--system", system, "--out", name, "-q")
        assert code == 0, err
    return "first", "second"


def test_runs_side_by_side(shell: Shell, as_json: AsJson, runs: tuple[str, str]) -> None:
    summaries = [json.loads(Path(name, "run.json").read_text())["summary"] for name in runs]
    rates = [summary["throughput_tokens_per_s"] for summary in summaries]
    facts = as_json("compare", *runs)
    assert facts["base"] == "lamina 2xh100+4xh20"
    assert facts["slo_tbt_ms"] == 100.0
    for side, summary in zip(facts["sides"], summaries, strict=True):
        assert side["metrics"]["throughput"] == {
            "value": summary["throughput_tokens_per_s"],
            "exact": True,
            "interval": None,
        }
        assert side["metrics"]["joules_per_token"]["value"] == summary["energy"]["joules_per_token"]
    assert facts["sides"][1]["ratios"]["throughput"]["value"] == pytest.approx(rates[1] / rates[0])
    code, out, err = shell("compare", *runs)
    assert (code, err) == (0, "")
    assert "lamina 2xh100+4xh20 (modelled)" in out
    assert f"{rates[1] / rates[0]:.3f}" in out


def test_another_base_and_one_limit(as_json: AsJson, runs: tuple[str, str]) -> None:
    facts = as_json("compare", *runs, "--base", "second", "--slo-tbt-ms", "1")
    assert facts["base"] == "vllm 4xh100"
    assert facts["sides"][0]["metrics"]["token_attainment"]["value"] == 0.0


def test_gates_decide_the_exit_code(shell: Shell, runs: tuple[str, str]) -> None:
    gate = ("--fail-on", "throughput<1000", "--fail-on", "tbt_p50>0.001", "--fail-on", "mean_batch<0")
    code, out, err = shell("compare", *runs, *gate, "-q")
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("failed")]
    assert [line.split()[1] for line in failed] == ["throughput<1000:", "tbt_p50>0.001:"]
    assert "check failed: a gate failed: throughput<1000: vllm 4xh100 has" in err
    assert err.rstrip().endswith("and 1 more")
    code, out, _ = shell("compare", *runs, *gate, "--json")
    assert code == 1
    assert len(json.loads(out)["failed"]) == 2
    assert shell("compare", *runs, "--fail-on", "throughput<0")[0] == 0


def test_systems_on_one_trace(shell: Shell, as_json: AsJson) -> None:
    facts = as_json(*ONE_CELL)
    (cell,) = facts["cells"]
    rate = cell["throughput_tokens_per_s"]
    assert (facts["backend"], facts["base"]) == ("modelled", "vllm")
    assert cell["gain"]["lamina"] == pytest.approx(rate["lamina"] / rate["vllm"] - 1)
    assert cell["usd_per_hour"] == {"lamina": pytest.approx(40.64), "vllm": pytest.approx(44.24)}
    assert [side["label"] for side in cell["compared"]["sides"]] == ["lamina", "vllm"]
    assert "2xh100+4xh20 of lamina for $40.64 and 4xh100 of vllm for $44.24" in facts["notes"][0]
    code, out, _ = shell(*ONE_CELL, "--equal-cost")
    assert code == 0
    assert "throughput at the base's cost" in out


def test_a_grid_is_laid_out_as_figure_10(shell: Shell, as_json: AsJson) -> None:
    asked = (*ONE_CELL, "--costs", "vllm-0.14", "--model", "llama-33b", "--equal-cost", "-q")
    facts = as_json(*asked)
    assert [(cell["costs"], cell["model"]) for cell in facts["cells"]] == [
        (costs, model) for costs in ("roofline", "vllm-0.14") for model in ("llama3-70b", "llama-33b")
    ]
    code, out, err = shell(*asked, "--markdown", "grid.md", "--plot", "grid.svg")
    assert (code, err) == (0, "")
    for cell in facts["cells"]:
        assert f"{cell['gain']['lamina']:+.1%} ({cell['gain_per_dollar']['lamina']:+.1%})" in out
    assert "the paper measured" in out
    written = Path("grid.md").read_text()
    assert "| model | costs | few |" in written
    assert "vllm / lamina, modelled" in written
    assert "tokens/s" in Path("grid.svg").read_text()


def test_a_deployment_that_was_replaced_is_told(shell: Shell) -> None:
    code, out, err = shell(*ONE_CELL, "--deployment", "lamina=2xh200+4xh20", "--equal-cost")
    assert code == 0
    assert "took the place of vllm's 4xh100 (llama3-70b on few)" in err
    assert "vllm 4xh100" not in out


def test_markdown_has_notes_and_gates(shell: Shell) -> None:
    code, _, _ = shell(*ONE_CELL, "--fail-on", "throughput<99", "--markdown", "out.md", "-q")
    assert code == 1
    written = Path("out.md").read_text()
    assert "- prices an hour differ" in written
    assert "- **failed** throughput&lt;99: lamina has" in written
    assert "| --- | --: | --: | --: |" in written


def test_runs_as_a_picture(shell: Shell, runs: tuple[str, str]) -> None:
    code, _, err = shell("compare", *runs, "--plot", "bars.svg")
    assert code == 0, err
    assert "vllm 4xh100" in Path("bars.svg").read_text()


def test_any_systems_and_their_prices(as_json: AsJson) -> None:
    facts = as_json(
        *(
            "compare",
            "--trace",
            "few.csv",
            "--model",
            "llama-33b",
            "--costs",
            "roofline",
            "--jobs",
            "1",
            "-q",
        ),
        *("--systems", "lamina-v1,lamina", "--deployment", "lamina-v1=2xa100-80g+8xrtx-3090"),
        *("--price", "rtx-3090=0.5", "--slo-tbt-ms", "50", "--host-async", "both"),
    )
    (cell,) = facts["cells"]
    assert facts["base"] == "lamina-v1"
    assert facts["host_async"] == ["lamina-v1", "lamina"]
    assert cell["gain"].keys() == {"lamina"}
    assert cell["deployment"]["lamina-v1"] == "2xa100-80g+8xrtx-3090"
    assert cell["usd_per_hour"]["lamina-v1"] > 8 * 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs/none", "runs/other"), "[run-not-a-run]"),
        (("few.csv",), "is a file"),
        (("runs/one",), "[compare-too-few]"),
        (("a", "b", "--trace", "few.csv"), "[compare-flag-not-applicable]"),
        (("a", "b", "--num-requests", "5"), "[compare-flag-not-applicable]"),
        (("--no-group",), "[compare-flag-not-applicable]"),
        (("none", "./none"), "[compare-run-twice]"),
        (("--tolerance", "0.2"), "[compare-flag-not-applicable]"),
        (("--devices", "h100"), "[compare-flag-not-applicable]"),
        (("--equal-cost", "--tolerance", "nan"), "nan is not a number"),
        (("--slo-tbt-ms", "nan"), "nan is not a number"),
        (("--host-async", "lamina-v1"), "[compare-host-async]"),
        (("--deployment", "vllm=4xh100", "--deployment", "vllm=8xh100"), "[compare-deployment-twice]"),
        (("--trace", "few.csv"), "[compare-name-twice]"),
        (("--costs", "roofline", "--costs", "roofline"), "[compare-name-twice]"),
        (("--systems", "lamina,sglang"), "no system named 'sglang'"),
        (("--systems", "lamina"), "[compare-too-few]"),
        (("--deployment", "4xh100"), "[compare-deployment-syntax]"),
        (("--base", "lamina-v1"), "[compare-base-unknown]"),
        (("--fail-on", "speed<1"), "[gate-metric-unknown]"),
        (("--plot", "bars.txt"), "cannot draw bars.txt"),
        (
            ("--equal-cost", "--tolerance", "0.01", "--devices", "h100", "--model", "llama3-70b"),
            "[compare-no-equal-deployment]",
        ),
    ],
)
def test_wrong_use_is_told_in_a_sentence(shell: Shell, arguments: tuple[str, ...], words: str) -> None:
    asked = ("--trace", "few.csv") if arguments[0].startswith("--") and "--no-group" not in arguments else ()
    code, out, err = shell("compare", *arguments, *asked, "-v")
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_real_traces_give_the_documented_gains(as_json: AsJson, real_traces: Path) -> None:
    asked = ("--model", "llama3-70b", "--trace", "azure-conv", "--trace", "azure-code", "--equal-cost", "-q")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAMINABENCH_TRACES", str(real_traces))
        facts = as_json("compare", *asked, "--offline")
    gains = {(cell["costs"], cell["trace"]): cell["gain"]["lamina"] for cell in facts["cells"]}
    assert gains["vllm-0.14", "azure-conv"] == pytest.approx(0.127, abs=0.001)
    assert gains["vidur-2024", "azure-conv"] == pytest.approx(0.023, abs=0.001)
