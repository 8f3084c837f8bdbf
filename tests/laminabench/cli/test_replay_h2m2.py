"""`laminabench replay --system h2m2` as a person uses it, and everything that shows what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from laminabench.runs.read import read_run

GPT3 = ("--system", "h2m2", "--model", "gpt3-175b")
SMALL = ("--trace", "azure-conv", "--offline", "--num-requests", "40", "-q", *GPT3)


@pytest.mark.parametrize("mode", [["saturate"], ["open"], ["closed", "--concurrency", "12"]])
@pytest.mark.parametrize("admission", ["reserve", "grow"])
def test_every_mode_and_admission(as_json: Any, mode: list[str], admission: str) -> None:
    # Memory for three or four requests, so that with `grow` they make room for each other.
    flags = ("--mode", *mode, "--admission", admission, "--kv-tokens", "8000")
    facts = as_json("replay", *SMALL, "--no-out", *flags)
    assert facts["requests"] == {"completed": 40, "rejected": 0, "unfinished": 0, "failed": 0}
    assert facts["deployment"] == "1xh2m2"
    assert facts["kv"]["capacity_tokens"] == 8000
    if admission == "grow":
        assert facts["preemptions"] > 0


def test_a_run_keeps_what_the_memories_held(as_json: Any) -> None:
    facts = as_json("replay", *SMALL, "--deployment", "2xh2m2", "--policy", "sjf")
    run = read_run(Path(facts["run_dir"]))
    memory, rows = run.outcome.memory, run.outcome.iterations
    assert memory is not None
    assert len(memory["qkv_heads"]) == len(rows["start_s"])
    assert set(rows["batch"].tolist()) == {0, 1}
    assert (np.diff(rows["start_s"]) >= 0).all()
    kinds = {row["term"]: row["kind"] for row in run.manifest.coefficients}
    assert (kinds["link_gb_per_s"], kinds["tlb_misses_at_once"]) == ("paper", "fitted")
    kept = run.manifest.deployment
    assert (kept.name, kept.facts["board"], kept.facts["boards"]) == ("2xh2m2", "h2m2", 2)
    assert kept.usd_per_hour == 2 * 5.26
    assert 0 < facts["bubbles"]["devices"] < 0.2


def test_policies_and_boards_differ(as_json: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("hbm_capacity_gb = 60\n")
    found = {
        name: as_json("replay", *SMALL, "--no-out", "--max-num-seqs", "16", *flags)["throughput_tokens_per_s"]
        for name, flags in {
            "greedy": [],
            "oracle": ["--mapping", "oracle"],
            "lpddr": ["--mapping", "lpddr"],
            "more": ["--board", "hbmcap-more"],
            "mine": ["--board", str(mine)],
        }.items()
    }
    assert found["lpddr"] < found["mine"] < found["greedy"] < found["more"]
    assert found["greedy"] < found["oracle"]


def test_the_host_may_work_behind_the_board(as_json: Any) -> None:
    flags = ("replay", *SMALL, "--no-out", "--max-num-seqs", "4")
    waits, works = as_json(*flags), as_json(*flags, "--host-async")
    assert works["time_shares"]["host"] < waits["time_shares"]["host"] / 5
    assert works["throughput_tokens_per_s"] > waits["throughput_tokens_per_s"]


def test_the_timeline_has_a_lane_a_board(as_json: Any, tmp_path: Path) -> None:
    path = tmp_path / "boards.json"
    facts = as_json(
        *("replay", *SMALL, "--no-out", "--deployment", "2xh2m2", "--max-num-seqs", "4"),
        *("--timeline", str(path), "--timeline-window", "1:2"),
    )
    assert set(facts["timeline"]["bubbles"]) == {"h2m2 0", "h2m2 1"}
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["h2m2 0", "h2m2 1", "host, batch 0", "host, batch 1"]
    kinds = {(event["tid"], event["cat"]) for event in events if event["ph"] == "X"}
    assert kinds == {(1, "slice"), (1, "attention"), (2, "slice"), (2, "attention"), (3, "host"), (4, "host")}


def test_other_hardware_is_not_charged_the_boards_price(shell: Any) -> None:
    command = ("replay", *(flag for flag in SMALL if flag != "-q"), "--no-out")
    _, out, err = shell(*command, "--mapping", "lpddr")
    assert "no price and power of these boards is known" in err
    assert "both chips at LPDDR and no HBM; --price h2m2=USD and --power h2m2=WATTS would say it" in err
    assert "5.26" not in out + err
    assert "mapping lpddr" in out
    _, out, err = shell(*command, "--board", "hbmcap-less", "--price", "h2m2=3", "--power", "h2m2=200")
    assert "$3.00 an hour" in out
    assert "200 W" in out
    assert "mapping greedy, board hbmcap-less" in out
    assert "no price" not in err


BOARDS = ("replay", "--trace", "few.csv", "--system", "h2m2", "--model", "llama2-70b", "-q")


@pytest.mark.usefixtures("few")
def test_the_summary_the_run_and_what_is_printed_agree(printed: Any, as_json: Any) -> None:
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
    out = printed(*BOARDS, "--deployment", "2xh2m2", "--no-out")
    assert f"HBM {facts['memory']['hbm_share']['mean']:.1%} in use" in out


@pytest.mark.usefixtures("few")
def test_boards_beside_another_system(shell: Any, printed: Any, as_json: Any) -> None:
    for name, system in (("boards", "h2m2"), ("gpus", "vllm")):
        call = (*BOARDS[:4], system, *BOARDS[5:])
        assert shell(*call, "--out", name)[0] == 0
    out = printed("compare", "boards", "gpus")
    assert "h2m2 1xh2m2 (modelled)" in out
    # What they are compared on is not one number format, and a price is nobody's: Runs say so too.
    said = " ".join(as_json("compare", "boards", "gpus", "-q")["notes"])
    assert "weights and KV are not of one type (int8, bf16)" in said
    assert "assumed, as nobody has published it: $5.26 an hour" in said
    printed("report", "boards", "gpus", "-o", "page.html", "-q")
    page = Path("page.html").read_text()
    assert "<h2>Memory</h2>" in page
    assert 'id="hbm-0"' in page
    assert 'id="hbm-1"' not in page
