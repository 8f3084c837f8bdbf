"""A replay on boards from its table to everything that shows it: summary, comparison, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

Shell = Callable[..., tuple[int, str, str]]

BOARDS = ("replay", "--trace", "few.csv", "--system", "h2m2", "--model", "llama2-70b", "-q")


@pytest.fixture(autouse=True)
def few(shell: Shell) -> None:
    """A small trace, where the shell is."""
    del shell  # it has changed the folder
    rows = [f"{i / 10},{100 + 37 * i % 900},{10 + 7 * i % 50}" for i in range(60)]
    Path("few.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")


def test_the_summary_the_run_and_what_is_printed_agree(
    shell: Shell, as_json: Callable[..., dict[str, Any]]
) -> None:
    facts = as_json(*BOARDS, "--deployment", "2xh2m2", "--out", "run")
    assert json.loads(Path("run/run.json").read_text())["summary"]["memory"] == facts["memory"]
    table = pq.read_table("run/memory.parquet")
    iterations = pq.read_table("run/iterations.parquet")
    assert len(table) == len(iterations)
    assert set(iterations["batch"].to_pylist()) == {0, 1}
    parts = ("hbm_qkv_bytes", "hbm_kv_bytes", "hbm_fc_bytes", "hbm_free_bytes")
    (capacity,) = {sum(row) for row in zip(*(table[name].to_pylist() for name in parts), strict=True)}
    assert capacity == facts["memory"]["hbm_capacity_bytes"]
    assert 0 < facts["memory"]["hbm_share"]["mean"] <= facts["memory"]["hbm_share"]["max"] <= 1
    for side in ("hbm_busy_share", "lpddr_busy_share"):
        assert 0 < facts["memory"][side] <= 1
    code, out, _ = shell(*BOARDS, "--deployment", "2xh2m2", "--no-out")
    assert code == 0
    assert f"HBM {facts['memory']['hbm_share']['mean']:.1%} in use" in out


def test_boards_beside_another_system(shell: Shell, as_json: Callable[..., dict[str, Any]]) -> None:
    for name, system in (("boards", "h2m2"), ("gpus", "vllm")):
        call = (*BOARDS[:4], system, *BOARDS[5:])
        assert shell(*call, "--out", name)[0] == 0
    code, out, _ = shell("compare", "boards", "gpus")
    assert code == 0
    assert "h2m2 1xh2m2 (modelled)" in out
    # What they are compared on is not one number format, and a price is nobody's: Runs say so too.
    said = " ".join(as_json("compare", "boards", "gpus", "-q")["notes"])
    assert "weights and KV are not of one type (int8, bf16)" in said
    assert "assumed, as nobody has published it: $5.26 an hour" in said
    code, _, err = shell("report", "boards", "gpus", "-o", "page.html", "-q")
    assert code == 0, err
    page = Path("page.html").read_text()
    assert "<h2>Memory</h2>" in page
    assert 'id="hbm-0"' in page
    assert 'id="hbm-1"' not in page
