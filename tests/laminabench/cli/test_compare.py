"""`laminabench compare` as a person uses it: GPUs, and boards beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("few")
BOTH = ("--systems", "lamina,vllm", "--trace", "few.csv", "--jobs", "1")
ONE_CELL = ("compare", "--model", "llama3-70b", *BOTH, "--costs", "roofline")


@pytest.fixture
def runs(printed: Any) -> tuple[str, str]:
    for name, system in (("first", "lamina"), ("second", "vllm")):
        printed("replay", "--trace", "few.csv", "--system", system, "--out", name, "-q")
    return "first", "second"


def test_runs_side_by_side(shell: Any, as_json: Any, runs: tuple[str, str]) -> None:
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


def test_gates_decide_the_exit_code(shell: Any, runs: tuple[str, str]) -> None:
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


def test_systems_on_one_trace(printed: Any, as_json: Any) -> None:
    facts = as_json(*ONE_CELL)
    (cell,) = facts["cells"]
    rate = cell["throughput_tokens_per_s"]
    assert (facts["backend"], facts["base"]) == ("modelled", "vllm")
    assert cell["gain"]["lamina"] == pytest.approx(rate["lamina"] / rate["vllm"] - 1)
    assert cell["usd_per_hour"] == {"lamina": pytest.approx(40.64), "vllm": pytest.approx(44.24)}
    assert [side["label"] for side in cell["compared"]["sides"]] == ["lamina", "vllm"]
    assert "2xh100+4xh20 of lamina for $40.64 and 4xh100 of vllm for $44.24" in facts["notes"][0]
    out = printed(*ONE_CELL, "--equal-cost")
    assert "throughput at the base's cost" in out


PROMPTS = ("--prefill", "colocated", "--mode", "open", "--slo-ttft-ms", "400", "--slo-tbt-ms", "200")


def test_with_prompts_the_first_token_has_a_limit_too(printed: Any, as_json: Any) -> None:
    facts = as_json(*ONE_CELL, *PROMPTS, "--max-batched-tokens", "1024", "--equal-cost")
    assert facts["max_batched_tokens"] == 1024
    compared = facts["cells"][0]["compared"]
    assert (compared["slo_tbt_ms"], compared["slo_ttft_ms"]) == (200, 400)
    for side in compared["sides"]:
        metrics = {name: each["value"] for name, each in side["metrics"].items()}
        assert metrics["ttft_p50"] <= metrics["ttft_p99"]
        assert metrics["joint_attainment"] <= min(metrics["ttft_attainment"], metrics["request_attainment"])
        assert metrics["request_goodput"] is not None
        assert side["ratios"]["ttft_p99"]["value"] > 0
    out = printed(*ONE_CELL, *PROMPTS)
    assert "TTFT p99, ms" in out
    assert "first tokens within 400 ms" in out
    assert "TTFT p99 ms" in printed(*ONE_CELL, *PROMPTS, "--costs", "vllm-0.14")
    assert "ttft" not in json.dumps(
        as_json(*ONE_CELL)["cells"][0]["compared"]["sides"][0]["ratios"]["tbt_p50"]
    )


def test_devices_for_prompts_are_a_replays(as_json: Any, printed: Any) -> None:
    pool = ("--prefill", "pool:4xh100", *PROMPTS[2:])
    facts = as_json(*ONE_CELL, *pool, "--equal-cost")
    assert facts["prefill"] == "pool:4xh100"
    (cell,) = facts["cells"]
    for name, decoding in (("lamina", "2xh100+4xh20"), ("vllm", "4xh100")):
        own = as_json(
            "replay", "--trace", "few.csv", "--system", name, "--costs", "roofline", *pool, "--no-out"
        )
        assert cell["deployment"][name] == own["deployment"] == f"{decoding}, prompts on 4xh100"
        assert cell["usd_per_hour"][name] == own["cost"]["usd_per_hour"]
        assert cell["throughput_tokens_per_s"][name] == own["throughput_tokens_per_s"]
    assert "prompts on 4xh100" in printed(*ONE_CELL, *pool)


def test_runs_with_prompts_under_one_limit(as_json: Any, printed: Any) -> None:
    for name, limit in (("one", "300"), ("two", "600")):
        flags = ("--prefill", "colocated", "--slo-ttft-ms", limit, "--mode", "open")
        printed("replay", "--trace", "few.csv", "--system", "vllm", *flags, "--out", name, "-q")
    own = as_json("compare", "one", "two")
    assert "slo_ttft_ms" not in own
    assert any("first token" in note for note in own["notes"])
    result = as_json("compare", "one", "two", "--slo-ttft-ms", "1")
    assert result["slo_ttft_ms"] == 1
    assert [side["metrics"]["ttft_attainment"]["value"] for side in result["sides"]] == [0, 0]


def test_several_instances_are_a_replays(as_json: Any, printed: Any) -> None:
    several = ("--instances", "2", "--router", "least-kv", "--queue", "global")
    facts = as_json(*ONE_CELL, *several, "--equal-cost")
    assert (facts["router"], facts["queue"]) == ("least-kv", "global")
    (cell,) = facts["cells"]
    for name, each in (("lamina", "2xh100+4xh20"), ("vllm", "4xh100")):
        own = as_json("replay --trace few.csv --costs roofline --no-out --system", name, *several)
        assert own["instances"]["requests"]
        assert cell["deployment"][name] == own["deployment"] == f"2 of {each}"
        assert cell["usd_per_hour"][name] == own["cost"]["usd_per_hour"]
        assert cell["power_w"][name] == own["energy"]["rated_w"]
        assert cell["throughput_tokens_per_s"][name] == own["throughput_tokens_per_s"]
    assert "2 of 4xh100" in printed(*ONE_CELL, *several)
    of_sizes = ("--deployment", "vllm=4xh100,8xh100", "--router", "fit")
    (cell,) = as_json(*ONE_CELL, *of_sizes)["cells"]
    assert cell["deployment"] == {"lamina": "2xh100+4xh20", "vllm": "1 of 4xh100 and 1 of 8xh100"}
    assert "router" not in as_json(*ONE_CELL)


def test_every_board_of_every_instance_counts(as_json: Any) -> None:
    boards = (
        "--systems",
        "vllm,h2m2",
        "--instances",
        "2",
        "--deployment",
        "h2m2=3xh2m2",
        "--costs",
        "vllm-0.14",
    )
    (cell,) = as_json("compare --model llama3-70b --trace few.csv --jobs 1", *boards)["cells"]
    rate, paid = cell["throughput_tokens_per_s"], cell["usd_per_hour"]
    assert cell["deployment"]["h2m2"] == "2 of 3xh2m2"
    assert cell["break_even_usd_per_board_hour"]["h2m2"]["vllm"] == pytest.approx(
        rate["h2m2"] / rate["vllm"] * paid["vllm"] / 6
    )


def test_a_grid_is_laid_out_as_figure_10(shell: Any, as_json: Any) -> None:
    requests = (*ONE_CELL, "--costs", "vllm-0.14", "--model", "llama-33b", "--equal-cost", "-q")
    facts = as_json(*requests)
    assert [(cell["costs"], cell["model"]) for cell in facts["cells"]] == [
        (costs, model) for costs in ("roofline", "vllm-0.14") for model in ("llama3-70b", "llama-33b")
    ]
    code, out, err = shell(*requests, "--markdown", "grid.md", "--plot", "grid.svg")
    assert (code, err) == (0, "")
    for cell in facts["cells"]:
        assert f"{cell['gain']['lamina']:+.1%} ({cell['gain_per_dollar']['lamina']:+.1%})" in out
    assert "the paper measured" in out
    written = Path("grid.md").read_text()
    assert "| model | costs | few |" in written
    assert "vllm / lamina, modelled" in written
    assert "tokens/s" in Path("grid.svg").read_text()


def test_any_systems_and_their_prices(as_json: Any) -> None:
    facts = as_json(
        "compare --trace few.csv --model llama-33b --costs roofline --jobs 1 -q",
        *("--systems", "lamina-v1,lamina", "--deployment", "lamina-v1=2xa100-80g+8xrtx-3090"),
        *("--price", "rtx-3090=0.5", "--slo-tbt-ms", "50", "--host-async", "both"),
    )
    (cell,) = facts["cells"]
    assert facts["base"] == "lamina-v1"
    assert facts["host_async"] == ["lamina-v1", "lamina"]
    assert cell["gain"].keys() == {"lamina"}
    assert cell["deployment"]["lamina-v1"] == "2xa100-80g+8xrtx-3090"
    assert cell["usd_per_hour"]["lamina-v1"] > 8 * 0.5


def test_real_traces_give_the_documented_gains(as_json: Any, real_traces: Path) -> None:
    requests = (
        "--model",
        "llama3-70b",
        "--trace",
        "azure-conv",
        "--trace",
        "azure-code",
        "--equal-cost",
        "-q",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAMINABENCH_TRACES", str(real_traces))
        facts = as_json("compare", *requests, "--offline", "--era", "vllm-2024", "--era", "vllm-2026")
        costs = ("--costs", "vllm-0.14", "--costs", "vidur-2024", "--systems", "lamina,vllm")
        before = as_json("compare", *requests[:4], "--offline", "-q", *costs)
    gains = [cell["gain"]["lamina"] for cell in facts["cells"] if cell["trace"] == "azure-conv"]
    # vllm-2024 at 5 and 13 ms, the same with Lamina's host as slow, and vllm-2026.
    assert gains == pytest.approx([0.039, 0.222, 0.076, 0.189, -0.017], abs=0.001)
    assert [cell["gain"]["lamina"] for cell in before["cells"]] == pytest.approx([0.127, 0.023], abs=0.001)


CELL = ("compare", "--model", "llama3-70b", "--trace", "few.csv", "--jobs", "1", "-q", "--systems")


def test_equal_power_chooses_by_watts_and_says_so(printed: Any, as_json: Any) -> None:
    requests = (*CELL, "vllm,h2m2", "--costs", "vllm-0.14", "--equal-power", "--power", "h2m2=700")
    facts = as_json(*requests)
    assert (facts["equal_cost"], facts["equal_power"]) == (None, {"tolerance": 0.1})
    (cell,) = facts["cells"]
    assert cell["deployment"]["h2m2"] == "4xh2m2"
    assert cell["power_w"] == {"vllm": 2800, "h2m2": 2800}
    assert "$5.26 an hour of h2m2" in cell["assumed"][0]
    message = " ".join(facts["notes"])
    assert "at equal power 4xh2m2 for 2,800 W took the place of h2m2's 1xh2m2" in message
    assert "--equal-cost holds them together" not in message
    out = printed(*requests)
    assert "throughput at the base's" in out


IN_ERAS = ("compare", "--model", "llama-33b", *BOTH, "-q")


def test_eras_are_replayed_where_nothing_else_says_what_systems_are(as_json: Any, shell: Any) -> None:
    assert [(each["era"], each["costs"]) for each in as_json(*IN_ERAS)["cells"]] == [
        ("vllm-2026", "vllm-0.24")
    ]
    facts = as_json(*IN_ERAS, "--era", "vllm-2024", "--era", "vllm-2026")
    assert [era["name"] for era in facts["eras"]] == ["vllm-2024", "vllm-2026"]
    assert [(cell["era"], cell["costs"]) for cell in facts["cells"]] == [
        *[("vllm-2024", "vidur-2024")] * 4,
        ("vllm-2026", "vllm-0.24"),
    ]
    assert as_json(*IN_ERAS, "--costs", "roofline")["eras"] == []
    assert as_json(*IN_ERAS, "--host", "vllm=5ms")["eras"] == []
    # Nothing had 8 bits then.
    narrow = ("compare", "--model", "llama3-70b@fp8", *IN_ERAS[3:])
    assert [cell["era"] for cell in as_json(*narrow)["cells"]] == ["vllm-2026"]
    requests = ("--era", "vllm-2024", "--costs", "roofline", "--host", "lamina=4ms")
    facts = as_json(*IN_ERAS, *requests, "--equal-cost", "--markdown", "eras.md")
    assert {(cell["era"], cell["costs"]) for cell in facts["cells"]} == {("vllm-2024", "roofline")}
    assert facts["cells"][0]["host"]["lamina"]["per_step_ms"] == pytest.approx(4)
    assert "| model | era | few |" in Path("eras.md").read_text()
    code, out, _ = shell("costs", "eras")
    assert code == 0
    assert "RFC 6854" in out


def test_a_host_is_of_one_system(as_json: Any) -> None:
    usual, slow = as_json(*ONE_CELL), as_json(*ONE_CELL, "--host", "vllm=7ms")
    (before,), (after,) = usual["cells"], slow["cells"]
    assert after["tbt_ms"]["vllm"] - before["tbt_ms"]["vllm"] == pytest.approx(7, abs=0.001)
    assert after["tbt_ms"]["lamina"] == before["tbt_ms"]["lamina"]
    assert slow["host"]["vllm"]["origin"]["kind"] == "given"
    assert usual["host"] == {}
