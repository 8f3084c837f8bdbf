"""`laminabench sensitivity`: one object, a table, a picture, a file of values, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("few")
CELL = ("sensitivity", "--model", "llama3-70b", "--trace", "few.csv", "--jobs", "1")


def test_json_has_every_input_with_its_ends(as_json: Any) -> None:
    result = as_json(*CELL, "--costs", "vllm-0.14")
    assert result["systems"] == ["lamina", "vllm"]
    assert result["deployment"] == {"lamina": "2xh100+4xh20", "vllm": "4xh100"}
    assert (result["costs"], result["dropped"], result["unsteady"]) == ("vllm-0.14", 0, ["lamina", "vllm"])
    inputs = {each["input"]: each for each in result["inputs"]}
    price = inputs["price_h20"]
    assert (price["here"], price["unit"], price["systems"]) == (4.63, "$/h", [])
    assert [end["value"] for end in price["ends"]] == [2.315, 9.26]
    assert inputs["host_async_vllm"]["break_even"] is None
    assert inputs["batches_lamina"]["impossible"]
    compared = as_json("compare", *CELL[1:], "--costs", "vllm-0.14")["cells"][0]
    assert result["gain_per_dollar"] == pytest.approx(compared["gain_per_dollar"]["lamina"])


def test_a_table_a_picture_and_values(shell: Any) -> None:
    code, out, err = shell(*CELL, "--plot", "tornado.svg", "--out", "ends.csv")
    assert code == 0, err
    assert out.index("within a TBT p99 of 100 ms") < out.index("Includes: ") < out.index("price of h20")
    assert "(assumed): " not in out
    assert "(assumed): " in shell(*CELL, "-v")[1]
    drawn = Path("tornado.svg").read_text()
    assert "host of vllm" in drawn
    assert "prefers-color-scheme" in drawn
    rows = list(csv.DictReader(Path("ends.csv").read_text().splitlines()))
    (low, high) = (row for row in rows if row["input"] == "price_h20")
    assert float(low["gain_per_dollar"]) > float(high["gain_per_dollar"])
    assert low["kind"] == "assumed"


def test_the_flags_of_compare_say_where_it_is_left_from(as_json: Any) -> None:
    result = as_json(
        *(*CELL, "--host", "vllm=9ms", "--price", "h20=2", "--network", "nccl", "--host-async", "lamina"),
        *("--deployment", "vllm=8xh20", "--max-num-seqs", "vllm=300", "--costs", "vidur-2024"),
    )
    here = {each["input"]: each["here"] for each in result["inputs"]}
    assert (here["host_vllm"], here["price_h20"], here["max_num_seqs_vllm"]) == (9, 2, 300)
    assert (here["rtt"], here["nic"]) == (66.6, 35.5)
    assert here["host_async_lamina"] != here["host_async_vllm"]
    assert result["deployment"]["vllm"] == "8xh20"


def test_an_era_says_what_vllm_is(as_json: Any) -> None:
    result = as_json(*CELL, "--era", "vllm-2024")
    here = {each["input"]: each["here"] for each in result["inputs"]}
    assert (result["era"], result["costs"]) == ("vllm-2024", "vidur-2024")
    assert (here["host_vllm"], here["max_num_seqs_vllm"]) == (5, 256)
    assert as_json(*CELL, "--era", "vllm-2024", "--costs", "vllm-0.14")["costs"] == "vllm-0.14"


def test_at_equal_cost_a_deployment_is_chosen_first(as_json: Any) -> None:
    given = ("--deployment", "vllm=8xh100", "--equal-cost")
    assert as_json(*CELL, *given)["deployment"]["vllm"] != "8xh100"
