"""`laminabench compare --live`: replays that take turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laminabench.util.errors import CheckFailedError, UserError

COMMON = (
    *("compare", "--trace", "azure-code", "--offline", "--num-requests", "40", "--scale-lengths", "0.1"),
    *("--model", "llama-tiny"),
)
SERIAL, ROTATIONAL = "--batches 1", "--max-num-seqs 16 --pipelining rotational"
TWO = ("--live", SERIAL, "--live", ROTATIONAL)


@pytest.mark.usefixtures("pretended")
def test_rounds_there_and_back(shell: Any) -> None:
    code, out, err = shell(*COMMON, *TWO, "--rounds", "3", "--out", "kept", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert facts["base"] == facts["sides"][0]["label"]
    assert [side["runs"] for side in facts["sides"]] == [
        ["kept/1-1", "kept/2-1", "kept/3-1"],
        ["kept/1-2", "kept/2-2", "kept/3-2"],
    ]
    assert not facts["sides"][1]["ratios"]["throughput"]["exact"]
    rounds = [line for line in err.splitlines() if "laminabench: round" in line]
    assert [line.rpartition(": ")[2] for line in rounds] == [
        *(SERIAL, ROTATIONAL, ROTATIONAL, SERIAL, SERIAL, ROTATIONAL)
    ]
    assert sorted(path.name for path in Path("kept").iterdir()) == ["1-1", "1-2", "2-1", "2-2", "3-1", "3-2"]
    manifest = json.loads(Path("kept/1-2/run.json").read_text())
    assert manifest["trace"]["requests"] == 40
    assert 'pipelining = "rotational"' in manifest["request"]


@pytest.mark.usefixtures("pretended")
def test_ratios_to_another_one_and_gates(shell: Any) -> None:
    arguments = (*COMMON, *TWO, "--rounds", "2", "--base", "2", "--strict", "-q")
    code, out, err = shell(*arguments, "--fail-on", "throughput<1000")
    assert code == 1
    assert "a gate failed" in err
    assert "throughput" in out
    results = list(Path("runs").iterdir())
    assert len(results) == 1
    assert results[0].name.startswith("compare-azure-code-")


@pytest.mark.usefixtures("pretended")
def test_a_flag_of_the_comparison_holds_for_all_and_a_side_may_differ(as_json: Any) -> None:
    as_json(
        *COMMON,
        *("--live", "--batches 1", "--live", "--batches 1 --mode saturate", "--rounds", "1"),
        *("--mode", "closed", "--concurrency", "4", "--out", "kept"),
    )
    offered = [json.loads(Path("kept", name, "run.json").read_text())["workload"] for name in ("1-1", "1-2")]
    assert [(each["mode"], each["concurrency"]) for each in offered] == [("closed", 4), ("saturate", None)]


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    ("error", "ends", "message"), [(UserError, 2, "error"), (CheckFailedError, 1, "check failed")]
)
def test_what_goes_wrong_is_told_of_its_side_and_finished_rounds_stay(
    error: Any, ends: int, message: str, shell: Any, made_up_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = made_up_engine.step
    ran: list[int] = []

    def broken(engine: Any) -> Any:
        ran.append(1)
        if len(ran) > 60:
            raise error("it-is-broken", "it is broken")
        return steps(engine)

    monkeypatch.setattr(made_up_engine, "step", broken)
    code, out, err = shell(*COMMON, *TWO, "--rounds", "9", "--out", "kept", "-q")
    assert (code, out) == (ends, "")
    assert "it is broken" in err
    assert err.splitlines()[-1].startswith(f"laminabench: {message}: --live ")
    assert Path("kept/1-1/run.json").is_file()
