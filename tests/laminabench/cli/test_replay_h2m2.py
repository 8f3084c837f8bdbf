"""`laminabench replay --system h2m2` as a person uses it, and everything that shows what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from laminabench.runs.read import read_run

GPT3 = ("--system", "h2m2", "--model", "gpt3-175b")
SMALL = ("--trace", "azure-conv", "--offline", "--num-requests", "40", "-q", *GPT3)


def test_a_run_stores_the_memories_contents(as_json: Any) -> None:
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
