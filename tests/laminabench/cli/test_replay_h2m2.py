"""`laminabench replay --system h2m2` as a person uses it, and everything that shows what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.runs.read import read_run

GPT3 = ("--system", "h2m2", "--model", "gpt3-175b")
SMALL = ("--trace", "azure-conv", "--offline", "--num-requests", "40", "-q", *GPT3)


@pytest.mark.long
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
    saved = run.manifest.deployment
    assert (saved.name, saved.facts["board"], saved.facts["boards"]) == ("2xh2m2", "h2m2", 2)
    assert saved.usd_per_hour == 2 * 5.26
    assert 0 < facts["bubbles"]["devices"] < 0.2


def test_policies_and_boards_differ(as_json: Any, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text("hbm_capacity_gb = 60\n")
    result = {
        name: as_json("replay", *SMALL, "--no-out", "--max-num-seqs", "16", *flags)["throughput_tokens_per_s"]
        for name, flags in {
            "greedy": [],
            "oracle": ["--mapping", "oracle"],
            "lpddr": ["--mapping", "lpddr"],
            "more": ["--board", "hbmcap-more"],
            "mine": ["--board", str(own)],
        }.items()
    }
    assert result["lpddr"] < result["mine"] < result["greedy"] < result["more"]
    assert result["greedy"] < result["oracle"]


def test_the_host_may_work_behind_the_board(as_json: Any) -> None:
    flags = ("replay", *SMALL, "--no-out", "--max-num-seqs", "4", "--costs", "vllm-0.14")
    waits, works = as_json(*flags), as_json(*flags, "--host-async")
    assert works["time_shares"]["host"] < waits["time_shares"]["host"] / 5
    assert works["throughput_tokens_per_s"] > waits["throughput_tokens_per_s"]


def test_the_timeline_has_a_lane_a_board(as_json: Any, tmp_path: Path) -> None:
    path = tmp_path / "boards.json"
    facts = as_json(
        *("replay", *SMALL, "--no-out", "--deployment", "2xh2m2", "--max-num-seqs", "4"),
        *("--costs", "vllm-0.14", "--timeline", str(path), "--timeline-window", "1:2"),
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
