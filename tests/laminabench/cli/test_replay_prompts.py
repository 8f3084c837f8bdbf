"""`laminabench replay --prefill colocated`, as a person uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.runs.read import read_run

AsJson = Callable[..., dict[str, Any]]
TRACE = ("--trace", "azure-code", "--offline", "--num-requests", "300", "-q")
VLLM = ("--system", "vllm")
OPEN = (*TRACE, "--mode", "open", "--rate-scale", "0.5", "--prefill", "colocated")


@pytest.mark.parametrize("system", ["vllm", "lamina", "lamina-v1", "afd"])
def test_a_replay_with_prompts_says_how_long_first_tokens_take(as_json: AsJson, system: str) -> None:
    facts = as_json("replay", *OPEN, "--system", system, "--slo-ttft-ms", "2000")
    assert facts["requests"]["completed"] == 300
    assert facts["facts"]["prefill"] == "colocated"
    assert 0 < facts["ttft_ms"]["p50"] <= facts["ttft_ms"]["p99"] <= facts["e2e_ms"]["max"]
    run = read_run(Path(facts["run_dir"]))
    requests, prompts = run.outcome.requests, run.outcome.prompts
    assert prompts is not None
    # Every prompt is computed once, and what was lost again.
    assert prompts["prompt_tokens"].sum() >= run.prompt_tokens.sum()
    assert run.outcome.iterations["size"].sum() == run.output_tokens.sum()
    # In the window of arrivals, as the summary has them.
    first, came = requests["first_token_s"], requests["arrival_s"]
    inside = (first > facts["window"]["start_s"]) & (first <= facts["window"]["end_s"])
    waited = np.sort((first - came)[inside])
    assert facts["ttft_ms"]["max"] == pytest.approx(waited[-1] * 1000)
    assert facts["slo"]["ttft_attainment"] == pytest.approx(np.mean(waited <= 2))
    assert facts["slo"]["joint_attainment"] <= facts["slo"]["request_attainment"]
    assert {"prompts", "gemm", "attention"} <= {row["term"] for row in run.manifest.coefficients}


def test_prompts_cost_what_decoding_alone_does_not_show(as_json: AsJson) -> None:
    alone = as_json("replay", *TRACE, "--system", "vllm", "--no-out")
    off = as_json("replay", *TRACE, "--system", "vllm", "--no-out", "--prefill", "off")
    assert off["throughput_tokens_per_s"] == alone["throughput_tokens_per_s"]
    assert "ttft_ms" not in alone
    whole = as_json("replay", *TRACE, "--system", "vllm", "--no-out", "--prefill", "colocated")
    assert whole["throughput_tokens_per_s"] < alone["throughput_tokens_per_s"] / 3
    assert whole["tokens_generated"] == alone["tokens_generated"]


def test_a_smaller_budget_delays_first_tokens_and_spares_the_others(as_json: AsJson) -> None:
    small, large = (
        as_json("replay", *OPEN, "--system", "vllm", "--no-out", "--max-batched-tokens", str(budget))
        for budget in (512, 8192)
    )
    assert small["tbt_ms"]["max"] < large["tbt_ms"]["max"]
    assert small["ttft_ms"]["p99"] > large["ttft_ms"]["p99"]
    assert (small["facts"]["max_num_seqs"], large["facts"]["max_num_seqs"]) == (512, 1024)


def test_marked_prefixes_are_computed_once(as_json: AsJson) -> None:
    kimi = ("--trace", "kimi-conv", "--offline", "--num-requests", "200", "-q", "--no-out")
    saved, again = (
        as_json("replay", *kimi, "--system", "vllm", "--prefill", "colocated", *flag)
        for flag in ((), ("--no-prefix-sharing",))
    )
    assert saved["throughput_tokens_per_s"] > again["throughput_tokens_per_s"] * 1.1
