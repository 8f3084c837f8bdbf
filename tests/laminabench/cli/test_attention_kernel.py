"""`--attention-kernel` in every command that takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laminabench.runs.read import read_run

pytestmark = pytest.mark.usefixtures("few")
FEW = ("--model", "llama3-70b", "--trace", "few.csv")
SLOW = ("--attention-kernel", "h20=fa3-128")


def test_a_replay_is_slower_with_tiles_of_128_rows_and_says_its_kernel(shell: Any) -> None:
    result = {}
    for kernel in ("flashinfer", "fa3-128"):
        code, out, err = shell(
            *("replay", *FEW, "--batches", "1", "--attention-kernel", f"h20={kernel}", "-o", kernel)
        )
        assert code == 0, err
        assert f"decode attention of {kernel} on h20" in out
        run = read_run(Path(kernel))
        result[kernel] = run.manifest.summary.tbt_ms.p50
        terms = [row for row in run.manifest.coefficients if row.get("kernel")]
        assert [row["kernel"] for row in terms] == [kernel]
    assert result["fa3-128"] > result["flashinfer"]


def test_compare_and_sensitivity_start_from_the_kernel(as_json: Any) -> None:
    common = (*FEW, "--costs", "vllm-0.14", "--jobs", "1")
    gains = [as_json("compare", *common, *more)["cells"][0]["gain_per_dollar"] for more in ((), SLOW)]
    assert gains[1]["lamina"] < gains[0]["lamina"]
    result = as_json("sensitivity", *common, *SLOW)
    assert result["gain_per_dollar"] == pytest.approx(gains[1]["lamina"])


def test_costs_show_prints_the_kernel(as_json: Any) -> None:
    result = as_json("costs", "show", "vllm-0.24", "--device", "h20", *SLOW)
    (row,) = (row for row in result["terms"] if row["term"] == "attention")
    assert (row["kernel"], row["coefficients"]["tile_rows"]) == ("fa3-128", 128)
