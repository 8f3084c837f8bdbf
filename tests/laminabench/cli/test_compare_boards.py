"""`laminabench compare` across kinds of hardware: boards beside GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
CELL = ("compare", "--model", "llama3-70b", "--trace", "few.csv", "--jobs", "1", "-q", "--systems")
THREE = (*CELL, "h2m2,lamina,vllm", "--costs", "vllm-0.14", "--deployment", "h2m2=8xh2m2")


@pytest.fixture(autouse=True)
def few(shell: Shell) -> None:
    """A small trace, where the shell is."""
    del shell  # it has changed the folder
    rows = [f"{i / 10},{100 + 37 * i % 900},{10 + 7 * i % 50}" for i in range(60)]
    Path("few.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")


def test_a_table_says_what_is_assumed_and_when_a_board_breaks_even(shell: Shell, as_json: AsJson) -> None:
    facts = as_json(*THREE, "--equal-cost")
    (cell,) = facts["cells"]
    usd = cell["break_even_usd_per_board_hour"]["h2m2"]["vllm"]
    rate, paid = cell["throughput_tokens_per_s"], cell["usd_per_hour"]
    assert usd == pytest.approx(rate["h2m2"] / rate["vllm"] * paid["vllm"] / 8)
    assert cell["weights_and_kv"] == {"h2m2": "int8", "lamina": "bf16", "vllm": "bf16"}
    code, out, err = shell(*THREE, "--equal-cost", "--markdown", "out.md", "--plot", "bars.svg")
    assert (code, err) == (0, "")
    for said in (
        f"h2m2 breaks even with vllm at ${usd:.2f} an hour a board",
        "weights and KV of llama3-70b are in int8: h2m2; bf16: lamina, vllm (--model NAME@fp8",
        "assumed, as nobody has published it: $5.26 an hour and 450 W of h2m2",
    ):
        assert said in " ".join(out.split())
    assert "breaks even with vllm" in Path("out.md").read_text()
    assert "h2m2" in Path("bars.svg").read_text()


def test_equal_power_chooses_by_watts_and_says_so(shell: Shell, as_json: AsJson) -> None:
    asked = (*CELL, "vllm,h2m2", "--costs", "vllm-0.14", "--equal-power", "--power", "h2m2=700")
    facts = as_json(*asked)
    assert (facts["equal_cost"], facts["equal_power"]) == (None, {"tolerance": 0.1})
    (cell,) = facts["cells"]
    assert cell["deployment"]["h2m2"] == "4xh2m2"
    assert cell["power_w"] == {"vllm": 2800, "h2m2": 2800}
    assert "$5.26 an hour of h2m2" in cell["assumed"][0]
    said = " ".join(facts["notes"])
    assert "at equal power 4xh2m2 for 2,800 W took the place of h2m2's 1xh2m2" in said
    assert "--equal-cost holds them together" not in said
    code, out, _ = shell(*asked)
    assert code == 0
    assert "throughput at the base's" in out


def test_a_grid_has_a_break_even_for_every_cell(shell: Shell) -> None:
    code, out, _ = shell(*CELL, "vllm,h2m2", "--costs", "vllm-0.14", "--costs", "roofline")
    assert code == 0
    for costs in ("vllm-0.14", "roofline"):
        assert f"llama3-70b on few, {costs}: h2m2 breaks even with vllm at $" in " ".join(out.split())


def test_gates_judge_boards_too(shell: Shell) -> None:
    gates = ("--fail-on", "throughput_at_equal_power<1000", "--fail-on", "rated_w>0.01")
    code, _, err = shell(*CELL, "vllm,h2m2", "--costs", "vllm-0.14", *gates)
    assert code == 1
    assert "throughput_at_equal_power<1000: h2m2" in err
    assert "and 1 more" in err


def test_a_narrow_model_says_what_was_not_measured(shell: Shell) -> None:
    narrow = [part.replace("llama3-70b", "llama3-70b@fp8") for part in CELL]
    code, out, _ = shell(*narrow, "vllm,h2m2", "--costs", "vllm-0.14", "--max-num-seqs", "h2m2=16")
    assert code == 0
    said = " ".join(out.split())
    assert "are in fp8: vllm; int8: h2m2 (cost sets measured attention on 16 bits" in said
    code, _, err = shell(*narrow, "vllm,h2m2", "--costs", "vidur-2024")
    assert code == 2
    assert "no fp8 GEMM coefficients" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--equal-cost", "--equal-power"), "[compare-equal-both]"),
        (("--max-num-seqs", "h2m2"), "[compare-max-num-seqs]"),
        (("--max-num-seqs", "lamina=3"), "[compare-max-num-seqs]"),
        (("--max-num-seqs", "h2m2=0"), "[compare-max-num-seqs]"),
        (("--power", "h2m2=hot"), "expected DEVICE=WATTS, such as h100=700"),
        (("--deployment", "vllm=2xh2m2"), "vllm does not run on h2m2"),
        (("--deployment", "h2m2=2xh100"), "h2m2 runs on boards"),
        (("--equal-cost", "--devices", "h100"), "[compare-no-equal-deployment]"),
        (("--equal-cost", "--devices", "h2m2", "--price", "h2m2=80"), "[compare-no-equal-deployment]"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(shell: Shell, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = shell(*CELL, "vllm,h2m2", "--costs", "vllm-0.14", *arguments, "-v")
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_only_kinds_that_a_system_runs_on_are_named(shell: Shell) -> None:
    _, _, err = shell(*CELL, "h2m2,vllm", "--costs", "vllm-0.14", "--equal-cost")
    assert "no deployment of vllm on h100 is within 10% of $5.26 an hour" in err


def test_other_types_of_16_bits_are_as_good_as_bf16(shell: Shell) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "vocab_size": 1000}
    config = {"model_type": "llama", "num_hidden_layers": 2, "torch_dtype": "float16", **shape}
    Path("config.json").write_text(json.dumps(config))
    half = ["config.json" if part == "llama3-70b" else part for part in CELL]
    code, out, _ = shell(*half, "vllm,lamina", "--costs", "vllm-0.14")
    assert code == 0
    assert "weights and KV" not in out
    code, out, _ = shell(*half, "vllm,h2m2", "--costs", "vllm-0.14")
    assert code == 0
    assert "measured attention on 16 bits" not in out
    assert "int8: h2m2 (--model NAME@fp8" in " ".join(out.split())


def test_who_has_no_steady_window_is_named(shell: Shell) -> None:
    # All 60 requests run at once on a board; with room for four, most of them wait.
    command = tuple(flag for flag in CELL if flag != "-q")
    for limit, said in (("60", True), ("4", False)):
        limits = ("--max-num-seqs", f"h2m2={limit}", "--max-num-seqs", "vllm=4")
        _, _, err = shell(*command, "vllm,h2m2", "--costs", "vllm-0.14", *limits)
        assert ("few has too few requests for a steady window of h2m2: numbers there" in err) == said
