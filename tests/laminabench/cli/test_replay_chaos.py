"""`laminabench replay --chaos`: refused before anything starts, told of afterwards, and no token is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
SMALL = (
    *("replay", "--trace", "azure-code", "--offline", "--num-requests", "60", "--scale-lengths", "0.1", "-q"),
    *("--backend", "live", "--model", "llama-tiny", "--no-out"),
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--chaos", "attention:1@t=3s"], "there is no worker attention:1; the deployment has model:0, att"),
        (["--chaos", "prefill:0@t=3s"], "there is no worker prefill:0"),
        (["--chaos", "model:0"], "it does not say when"),
        (["--chaos", "model:0@t=1s", "--chaos", "model:0=maim@t=1s"], "'maim' is nothing"),
        (["--prefill", "0"], "--prefill"),
        (["--prefill", "many"], "--prefill"),
        (["--prefill", "62"], "with 62 for prompts is 64 workers"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    shell: Shell, pretended: dict[str, Any], arguments: list[str], said: str
) -> None:
    code, out, err = shell(*SMALL, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "engine" not in pretended


@pytest.mark.parametrize("arguments", [["--chaos", "model:0@t=1s"], ["--prefill", "model"]])
def test_a_virtual_cluster_cannot_be_hurt(shell: Shell, arguments: list[str]) -> None:
    code, _, err = shell("replay", "--trace", "azure-code", "--offline", "-q", "--no-out", *arguments)
    assert code == 2
    assert f"{arguments[0]} is for live lamina" in err


def test_prefill_workers_are_asked_for_and_have_names(as_json: AsJson, pretended: dict[str, Any]) -> None:
    as_json(*SMALL, "--prefill", "2", "--oversubscribe")
    assert pretended["setup"].layout()["prefill_workers"] == 2
    assert pretended["setup"].names() == ["model 0", "attention 0", "prefill 0", "prefill 1"]
    facts = as_json(*SMALL)
    assert "prefill_workers" not in pretended["setup"].layout()
    assert facts["tokens_sha256"] is None


@pytest.mark.usefixtures("pretended")
def test_the_report_shows_the_dip_the_recovery_and_what_was_lost(
    shell: Shell, as_json: AsJson, tmp_path: Path
) -> None:
    chaos = ("--chaos", "attention:0@t=150ms", "--chaos", "model:0=stop@tokens=100", "--chaos", "random@t=9s")
    code, out, err = shell(*(word for word in SMALL if word != "-q"), *chaos, "--plot", "dip.svg")
    assert code == 0, err
    assert re.search(r"^faults         2 recovered from \(2 of 3 blows\); at worst noticed after ", out, re.M)
    assert re.search(r"^attention 0 \(kill\) +\d\.\d\d +20\d ms +300 ms", out, re.M)
    assert re.search(r"^model 0 \(stop\) +\d\.\d\d +1,00\d ms +300 ms", out, re.M)
    assert "1 of the 3 faults of --chaos were not due before the end" in err
    assert "fault, until iterations go on" in (tmp_path / "dip.svg").read_text()
    facts = as_json(*SMALL, *chaos)
    first = next(fault for fault in facts["faults"] if fault["workers"] == ["attention 0"])
    assert first["struck"][0]["how"] == "kill"
    assert first["detection_s"] == pytest.approx(0.2)
    assert first["recovery_s"] == pytest.approx(0.3)
    assert facts["faults_in_all"]["strikes"] == 2


@pytest.mark.usefixtures("pretended")
def test_a_run_keeps_its_faults(as_json: AsJson) -> None:
    kept = [word for word in SMALL if word != "--no-out"]
    facts = as_json(*kept, "--chaos", "model:0@tokens=50", "--out", "kept")
    summary = json.loads(Path("kept", "run.json").read_text())["summary"]
    assert summary["faults"] == facts["faults"]
    assert len(facts["faults"]) == 1


def test_any_replay_can_be_drawn(as_json: AsJson) -> None:
    modelled = ("replay", "--trace", "azure-code", "--offline", "--num-requests", "100", "-q", "--no-out")
    for name in ("p.svg", "p.png", "p.pdf"):
        assert as_json(*modelled, "--plot", name)["plot"] == name
        assert Path(name).stat().st_size > 1000
    assert "time between tokens in ms" in Path("p.svg").read_text()
    assert "llama3-70b, modelled" in Path("p.svg").read_text()


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_fifty_random_kills_change_no_token_of_two_hundred_requests(
    as_json: AsJson, exact_model: dict[str, Any]
) -> None:
    """Real workers; every prompt is computed, and what the dead had is computed again."""
    Path("tiny.json").write_text(json.dumps(exact_model))
    replay = (
        *("replay", "--trace", "azure-code", "--offline", "--num-requests", "200", "--scale-lengths", "0.3"),
        *("--backend", "live", "--model", "tiny.json", "--prefill", "model", "--max-num-seqs", "16", "-q"),
        *("--seed", "7", "--no-out", "--oversubscribe"),
    )
    calm = as_json(*replay)
    facts = as_json(*replay, "--chaos", "random*50")
    assert facts["requests"] == calm["requests"]
    assert facts["requests"] == {"completed": 200, "rejected": 0, "unfinished": 0, "failed": 0}
    assert facts["tokens_sha256"] == calm["tokens_sha256"]
    assert facts["tokens_generated"] == calm["tokens_generated"]
    assert facts["schedule"]["violations"] == []
    total = facts["faults_in_all"]
    assert total["strikes"] == total["strikes_planned"] == 50
    assert total["faults"] >= 25  # two that fall together are one
    assert total["detection_s"] < 2
    assert {worker for fault in facts["faults"] for worker in fault["workers"]} == {"model 0", "attention 0"}
