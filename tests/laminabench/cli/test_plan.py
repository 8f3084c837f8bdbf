"""`laminabench plan` as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.bench import plan as bench_plan
from laminabench.traces.table import TraceMeta, make_trace
from laminabench.workflows.plan.stored import read_plan

FEW = ("--devices", "h100,h20", "--budget", "20", "--model", "llama3-70b", "--jobs", "1", "-q")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file of 200 requests."""
    random = np.random.default_rng(0)
    rows = "\n".join(
        f"{i * 0.6:.1f},{random.integers(500, 3000)},{random.integers(20, 200)}" for i in range(200)
    )
    path = tmp_path / "mine.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    return str(path)


def test_the_winner_is_the_cheapest_on_the_front(as_json: Any, trace: str) -> None:
    result = as_json("plan", "--trace", trace, "--slo-tbt-p99-ms", "100", *FEW)
    assert (result["backend"], result["mode"], result["budget_usd_per_hour"]) == ("modelled", "saturate", 20)
    answer = result["answers"][0]
    assert answer["costs"] == "vllm-0.24"
    assert answer["winner"] == answer["front"][-1]
    assert answer["winner"]["tbt_p99_ms"] <= 100
    assert answer["winner"]["usd_per_hour"] <= 20
    costs = [row["usd_per_million_tokens"] for row in answer["front"]]
    assert costs == sorted(costs, reverse=True)
    gains = [row["throughput_gain"] for row in answer["binds"]]
    assert gains == sorted(gains, reverse=True)
    assert {row["device"] for row in answer["prices"]} == {"h20"}
    assert sum(answer["search"]["counts"].values()) == answer["search"]["considered"]
    assert answer["summary"]["throughput_tokens_per_s"] == answer["winner"]["tokens_per_s"]
    for row in answer["replayed"]:
        assert row["assumed_devices"] == (["h20"] if "h20" in row["deployment"] else [])


def test_boards_are_candidates_where_they_are_named(printed: Any, as_json: Any, trace: str) -> None:
    devices = ("--devices", "h100,h2m2", "--jobs", "1", "-q")
    call = ("plan", "--trace", trace, "--slo-tbt-p99-ms", "400", *devices)
    requests = (*call, "--budget", "16", "--systems", "vllm,h2m2", "--power-budget", "1000", "--top", "20")
    result = as_json(*requests)
    assert (result["power_budget_w"], result["weights_and_kv"]) == (1000, "bf16")
    (answer,) = result["answers"]
    # 1xh100 does not hold the model, and three boards draw too much.
    assert {row["deployment"] for row in answer["replayed"]} == {"1xh2m2", "2xh2m2"}
    assert {row["most_requests"] for row in answer["replayed"]} <= {16, 32, 64, 128, 256, 512, 1024}
    assert answer["winner"]["assumed_devices"] == ["h2m2"]
    assert answer["binds"][0]["resource"] in ("compute of the chips", "requests at once")
    out = printed(*requests)
    for message in (
        "at most $16.00 an hour and 1,000 W",
        "xh2m2*, ",
        "* h2m2: not measured, computed from the board's parameters",
        "weights and KV in int8, elsewhere in bf16",
        "assumed, as it is not published: $5.26 an hour and 450 W of h2m2",
    ):
        assert message in out


def test_every_one_replayed_has_the_same_winner(as_json: Any, trace: str) -> None:
    call = ("plan", "--trace", trace, "--slo-tbt-p99-ms", "70", *FEW)
    searched, every = as_json(*call), as_json(*call, "--exhaustive")
    assert searched["answers"][0]["winner"] == every["answers"][0]["winner"]
    assert searched["answers"][0]["front"] == every["answers"][0]["front"]


def test_the_plan_is_saved(as_json: Any, refused: Any, trace: str) -> None:
    call = ("plan", "--trace", trace, "--slo-tbt-p99-ms", "100", *FEW)
    result = as_json(*call)
    folder = Path(result["plan_dir"])
    assert folder.parent == Path("plans")
    saved = read_plan(folder)
    assert saved.command.startswith("laminabench")
    assert [each.candidate for each in saved.answers[0].replayed] == [
        row["candidate"] for row in result["answers"][0]["replayed"]
    ]
    assert as_json(*call)["plan_dir"] == str(folder)  # the same plan again
    assert as_json(*call, "--out", "mine")["plan_dir"] == "mine"
    assert [each.name for each in Path("plans").iterdir()] == [folder.name]
    assert as_json(*call, "--no-out")["plan_dir"] is None
    refused("contradict", *call, "--no-out", "--out", "mine")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    refused("is not a plan", *call, "--out", "full")


def test_nothing_meets_the_limit(shell: Any, printed: Any, trace: str) -> None:
    call = ("plan", "--trace", trace, "--slo-tbt-p99-ms", "2", *FEW, "--costs", "vllm-0.14")
    code, out, err = shell(*call, "--json")
    assert code == 1
    assert json.loads(out)["answers"][0]["winner"] is None
    nearest = json.loads(out)["answers"][0]["nearest"]
    assert f"nearest is {nearest['system']} {nearest['deployment']}" in err
    assert nearest["assumed_devices"] == ["h20"]
    printed = shell(*call, "--top", "2")[1]
    assert "* h20: not measured" in printed
    assert f"{nearest['tbt_p99_ms'] / 2 - 1:.1%} over" in err


def test_open_the_deployment_has_to_keep_up(as_json: Any, shell: Any, trace: str) -> None:
    call = ("plan", "--trace", trace, "--slo-tbt-p99-ms", "60", *FEW, "--mode", "open")
    answer = as_json(*call)["answers"][0]
    assert answer["winner"]["keeps_up"]
    assert answer["winner"]["queueing_p99_s"] <= 1
    code, _, err = shell(*call, "--rate-scale", "1000", "--slo-queueing-p99-s", "0.001")
    assert code == 1
    assert "a queueing p99 of 1 ms; nearest is vllm" in err


def test_with_a_limit_of_ttft_prompts_are_computed(as_json: Any, printed: Any, trace: str) -> None:
    call = ("plan", "--trace", trace, "--slo-tbt-p99-ms", "150", "--slo-ttft-ms", "4000", *FEW)
    call = (*call, "--budget", "45", "--max-batched-tokens", "1024")
    result = as_json(*call)
    assert (result["mode"], result["prefill"]) == ("open", "any")
    assert (result["slo_ttft_p99_ms"], result["slo_queueing_p99_s"]) == (4000, 4)
    (answer,) = result["answers"]
    winner = answer["winner"]
    assert winner["ttft_p50_ms"] <= winner["ttft_p99_ms"] <= 4000
    assert winner["max_batched_tokens"] == 1024
    assert winner["instances"] >= 1
    assert winner["prefill"] == "colocated" or winner["prefill"].startswith("pool:")
    without = answer["prompts"]["without"]
    assert "ttft_p99_ms" not in without
    cost = winner["usd_per_million_tokens"] - without["usd_per_million_tokens"]
    assert answer["prompts"]["usd_per_million_tokens"] == pytest.approx(cost)
    assert "prompt computation" in {row["resource"] for row in answer["binds"]}
    assert all("ttft_p99_gain" in row for row in answer["binds"])
    out = printed(*call)
    for message in ("open, prompts any", "TTFT p99 of at most 4000 ms", "prompts cost $"):
        assert message in out


def test_no_first_token_is_soon_enough(shell: Any, trace: str) -> None:
    limits = ("--slo-tbt-p99-ms", "150", "--slo-ttft-ms", "150", "--slo-queueing-p99-s", "9")
    code, _, err = shell("plan", "--trace", trace, *limits, *FEW, "--max-batched-tokens", "2048")
    assert code == 1
    assert "a TTFT p99 of 150 ms" in err


def test_another_price_is_taken(as_json: Any, shell: Any, trace: str) -> None:
    result = as_json("plan", "--trace", trace, "--slo-tbt-p99-ms", "100", "--price", "h20=0.01", *FEW)
    prices = {row["name"]: row["price"]["usd"] for row in result["devices"]}
    assert prices["h20"] == 0.01
    assert "h20" in result["answers"][0]["winner"]["deployment"]
    code, out, err = shell(
        *("plan", "--trace", trace, "--slo-tbt-p99-ms", "100", *FEW, "--devices", "h20"),
        *("--price", "h20=0", "--plot", "p.svg"),
    )
    assert (code, err) == (0, "")
    assert "at $0.00 same winner, $0.000/M" in out
    assert "winner" in Path("p.svg").read_text()


def test_bench_plan_judges_by_its_median(as_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    prompt, output = (random.integers(low, 10 * low, 100).astype(np.int32) for low in (200, 20))
    trace = make_trace(np.arange(100.0), prompt, output, TraceMeta("small"))
    monkeypatch.setattr(bench_plan, "resolve", lambda *_, **__: trace)
    monkeypatch.setattr(bench_plan, "MODULES", ["vllm", "lamina"])
    monkeypatch.setattr(bench_plan, "DEVICES", "h100")
    result = as_json("bench", "plan", "--repeats", "2", "--jobs", "1")
    rates, ratios = result["candidates_per_s"], result["times_faster_than_grid"]
    assert 0 < rates["min"] <= rates["median"] <= rates["max"]
    assert 0 < ratios["min"] <= ratios["median"] <= ratios["max"]
    assert result["same_winner"] is result["same_front"] is True
    assert result["met"] == (rates["median"] >= result["target_per_s"])
