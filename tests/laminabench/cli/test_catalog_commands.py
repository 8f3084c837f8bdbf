"""`laminabench hardware`, `models` and `costs` as a person uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SMALL = ("--trace", "azure-code", "--offline", "--num-requests", "200", "-q")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("flops_efficiency = 0.8744", "flops_efficiency = 0", "gemm.h100.bf16.flops_efficiency is 0"),
        ("flops_efficiency = 0.8744", "flops_efficiency = nan", "gemm.h100.bf16.flops_efficiency is nan"),
        ("flops_efficiency = 0.8744", 'flops_efficiency = "a"', "flops_efficiency is 'a'"),
        ("overhead_us = 2.974", "overhead_us = -3", "gemm.h100.bf16.overhead_us is -3"),
        ("overhead_us = 2.974", "overhead_us = 1e300", "the costs give"),
    ],
)
def test_a_broken_cost_file_is_named(refused: Any, old: str, new: str, message: str) -> None:
    import laminabench.catalog

    packaged = Path(laminabench.catalog.__file__).parent / "data" / "costs" / "vllm-0.14.toml"
    text = packaged.read_text()
    assert old in text
    Path("mine.toml").write_text(text.replace(old, new))
    refused(message, "replay", *SMALL, "--no-out", "--costs", "mine.toml")


@pytest.mark.parametrize(
    "arguments",
    [
        ["hardware", "list"],
        ["hardware", "show", "h20"],
        ["hardware", "show", "h2m2", "--power", "h2m2=500"],
        ["hardware", "boards"],
        ["hardware", "boards", "hbmcap-less"],
        ["models", "list"],
        ["models", "show", "llama3-70b"],
        ["models", "show", "llama3-70b@fp8"],
        ["models", "show", "gpt-oss-120b"],
        ["costs", "list"],
        ["costs", "show", "vllm-0.14", "--device", "h20"],
        ["costs", "show", "roofline", "--device", "h100"],
    ],
)
def test_the_catalogue_can_be_read(shell: Any, as_json: Any, arguments: list[str]) -> None:
    code, out, err = shell(*arguments)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) > 3
    assert as_json(*arguments)


def test_a_model_s_products_and_layouts(as_json: Any, printed: Any) -> None:
    facts = as_json("models", "show", "deepseek-v3")
    assert {row["name"]: row["layers"] for row in facts["products"]} == {
        **dict.fromkeys(("qkv_a", "q_b", "absorb", "expand", "o"), 61),
        **dict.fromkeys(("gate_up", "down"), 3),
        **dict.fromkeys(("router", "shared_gate_up", "shared_down"), 58),
    }
    layouts = {row["layout"]: row for row in facts["layouts"]}
    # MLA's KV is copied to every tensor-parallel worker, and split by stages alone.
    assert layouts["tp8"]["kv_bytes_per_token_and_device"] == facts["kv_bytes_per_token"]
    assert layouts["tp8pp2"]["kv_bytes_per_token_and_device"] == facts["kv_bytes_per_token"] / 2
    assert layouts["dp8ep8"]["weight_gb_per_device"] > layouts["tp8"]["weight_gb_per_device"]
    assert "dp8ep8" in printed("models", "show", "deepseek-v3")
    dense = as_json("models", "show", "llama3-8b")
    assert [row["name"] for row in dense["layer_gemms"]] == ["qkv", "o", "gate_up", "down"]
    assert {row["layout"] for row in dense["layouts"] if row["devices"] == 2} == {"tp2", "pp2"}
    rows = {row["name"]: row for row in as_json("models", "list")["models"]}
    assert rows["gpt-oss-120b"]["kv_bytes_per_request"] == 18 * 128 * 2 * 8 * 64 * 2
    assert rows["mixtral-8x7b"]["active_parameters"] < 13e9 < rows["mixtral-8x7b"]["parameters"]


def test_what_knows_dense_models_alone_refuses_others(refused: Any) -> None:
    mixture = ("--system", "h2m2", "--model", "mixtral-8x7b")
    refused("does not know models with experts", "replay", *SMALL, "--no-out", *mixture)


def test_a_board_s_parameters_say_where_they_are_from(as_json: Any) -> None:
    rows = as_json("hardware", "boards", "h2m2")["parameters"]
    assert all(row["kind"] and row["source"] for row in rows)
    varied = {row["name"]: row["varied"] for row in as_json("hardware", "boards")["boards"]}
    assert varied["h2m2"] == {}
    assert varied["hbmcap-less"] == {"hbm_capacity_gb": 48.0}


def test_a_board_of_one_s_own_is_read_from_a_file(refused: Any, printed: Any) -> None:
    Path("mine.toml").write_text('base = "h2m2"\nhbm_capacity_gb = 144\n')
    out = printed("hardware", "boards", "mine.toml")
    assert "144" in next(line for line in out.splitlines() if line.startswith("hbm_capacity_gb"))
    refused("did you mean", "hardware", "boards", "hbmcap-les")


def test_watts_of_the_user_are_charged(as_json: Any) -> None:
    row = as_json("hardware", "show", "h2m2", "--power", "h2m2=500")
    assert (row["power_w"], row["power_basis"]) == (500, "override")
    facts = as_json("replay", *SMALL, "--no-out", "--power", "h100=650", "--power", "h20=350")
    assert facts["energy"]["rated_w"] == 2 * 650 + 4 * 350
