"""One question has one answer: compare, plan and sweep give what replay gives."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import laminabench as lb
from laminabench.cli.main import main

TRACE = ("--trace", "profile:azure-conv", "--num-requests", "400")
SYSTEMS = {"vllm": "4xh100", "lamina": "2xh100+4xh20", "afd": "4xh100+8xh20"}


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*arguments, "--json", "-q"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def replay(system: str, deployment: str, *more: str) -> dict[str, Any]:
    flags = ("--system", system, "--deployment", deployment, "--no-out", *more)
    return run("replay", *TRACE, "--model", "llama3-70b", *flags)


def test_a_cell_of_compare_is_the_replay() -> None:
    given = [word for name, where in SYSTEMS.items() for word in ("--deployment", f"{name}={where}")]
    cells = run("compare", *TRACE, "--model", "llama3-70b", "--systems", ",".join(SYSTEMS), *given)["cells"]
    assert len(cells) == 1
    for name, deployment in SYSTEMS.items():
        alone = replay(name, deployment)
        assert cells[0]["throughput_tokens_per_s"][name] == alone["throughput_tokens_per_s"]
        assert cells[0]["tbt_ms"][name] == alone["tbt_ms"]["p50"]


QUESTION = ("--devices", "h100,h20", "--most-devices", "8", "--systems", "vllm,lamina")


SEVERAL = ("--model", "llama3-8b", "--rate-scale", "40", "--systems", "vllm,lamina", "--mode", "open")


@pytest.mark.parametrize("more", [(), ("--slo-ttft-ms", "4000")], ids=["decoding", "prompts"])
def test_what_compare_chooses_is_the_winner_of_plan_and_the_replay(more: tuple[str, ...]) -> None:
    limit = ("--slo-tbt-ms", "120", *more)
    compared = run("compare", *TRACE, "--model", "llama3-70b", *QUESTION, *limit, "--jobs", "1")
    loads = compared["chosen"]["loads"]
    assert [load["mode"] for load in loads] == (["open"] if more else ["open", "saturate"])
    for load, cell in zip(loads, compared["cells"], strict=True):
        mode = ("--slo-tbt-p99-ms", "120", "--mode", load["mode"], *more, "--no-out")
        winner = run("plan", *TRACE, "--model", "llama3-70b", *QUESTION, *mode)["answers"][0]["winner"]
        assert load["winner"] == winner["system"]
        for name, chosen in load["systems"].items():
            assert name != winner["system"] or chosen["candidate"] == winner["candidate"]
            alone = run(*shlex.split(chosen["replay"])[1:], "--no-out")
            assert cell["deployment"][name] == alone["deployment"]
            assert cell["throughput_tokens_per_s"][name] == alone["throughput_tokens_per_s"]
            assert cell["tbt_ms"][name] == alone["tbt_ms"]["p50"]
            assert chosen["tbt_p99_ms"] == alone["tbt_ms"]["p99"]


def test_several_instances_that_plan_chooses_are_the_replay() -> None:
    limits = ("--devices", "h20", "--most-devices", "16", "--slo-tbt-ms", "20", "--jobs", "1")
    (load,) = run("compare", *TRACE, *SEVERAL, *limits)["chosen"]["loads"]
    assert max(each["instances"] for each in load["systems"].values()) > 1
    for chosen in load["systems"].values():
        alone = run(*shlex.split(chosen["replay"])[1:], "--no-out")
        assert chosen["tokens_per_s"] == alone["throughput_tokens_per_s"]
        assert chosen["tbt_p99_ms"] == alone["tbt_ms"]["p99"]


def test_the_api_has_the_numbers_of_the_command_line() -> None:
    few: Any = {"num_requests": 400, "model": "llama3-70b"}
    for system, deployment in SYSTEMS.items():
        result = lb.replay(TRACE[1], system=system, deployment=deployment, **few)
        assert result.throughput_tokens_per_s == replay(system, deployment)["throughput_tokens_per_s"]
    given = [word for name, where in SYSTEMS.items() for word in ("--deployment", f"{name}={where}")]
    flags = (*TRACE, "--model", "llama3-70b", "--systems", ",".join(SYSTEMS), *given)
    theirs = run("compare", *flags)["verdict"]
    judged = lb.compare(trace=TRACE[1], systems=tuple(SYSTEMS), deployments=SYSTEMS, jobs=1, **few).verdict
    assert judged.describe() == theirs


def test_sensitivity_starts_from_the_replays() -> None:
    pair = {name: SYSTEMS[name] for name in ("lamina", "vllm")}
    given = [word for name, where in pair.items() for word in ("--deployment", f"{name}={where}")]
    base = run("sensitivity", *TRACE, "--model", "llama3-70b", *given, "--jobs", "1")
    for name, deployment in pair.items():
        alone = replay(name, deployment)
        assert base["throughput_tokens_per_s"][name] == alone["throughput_tokens_per_s"]


@pytest.mark.parametrize("system", ["vllm", "lamina"])
def test_the_winner_of_plan_is_the_replay(system: str) -> None:
    question = ("--slo-tbt-p99-ms", "120", "--devices", "h100,h20", "--most-devices", "8")
    answers = run("plan", *TRACE, "--model", "llama3-70b", "--systems", system, *question, "--no-out")
    winner = answers["answers"][0]["winner"]
    batches = ("--batches", str(winner["batches"])) if system == "lamina" else ()
    alone = replay(system, winner["deployment"], *batches)
    assert winner["tokens_per_s"] == pytest.approx(alone["throughput_tokens_per_s"], rel=1e-12)


def test_a_point_of_sweep_is_the_replay(tmp_path: Path) -> None:
    vary = ("--vary", "system=vllm,lamina", "--out", str(tmp_path / "sweep"))
    points = run("sweep", *TRACE, "--model", "llama3-70b", *vary)["rows"]
    for point in points:
        alone = run("replay", *TRACE, "--model", "llama3-70b", "--system", point["system"], "--no-out")
        assert point["throughput_tokens_per_s"] == alone["throughput_tokens_per_s"]


@pytest.mark.parametrize("deployment", ["4xh100", "4xa100-80g", "16xl40s"])
@pytest.mark.parametrize("prefill", [(), ("colocated",), ("colocated", "--max-batched-tokens", "512")])
def test_every_command_has_vllm_s_limits(deployment: str, prefill: tuple[str, ...]) -> None:
    costs = () if deployment == "4xh100" else ("--costs", "vllm-0.24")
    prompts = ("--prefill", *prefill) if prefill else ()
    pair = ("--systems", "vllm,lamina", "--deployment", f"vllm={deployment}")
    result = run("compare", *TRACE, "--model", "llama3-70b", *pair, *prompts)["cells"][0]
    alone = replay("vllm", deployment, *prompts, *costs)
    assert alone["facts"]["max_num_seqs"] == result["max_num_seqs"]["vllm"]
    assert alone["throughput_tokens_per_s"] == result["throughput_tokens_per_s"]["vllm"]
    most = 1024 if deployment == "4xh100" else 256
    assert alone["facts"]["max_num_seqs"] == (min(most, 512) if "512" in prefill else most)
