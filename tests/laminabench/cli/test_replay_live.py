"""`laminabench replay --backend live` as a person uses it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laminabench.runs.read import read_run

# Before the shell's fixture hides it.
TRACES = os.environ.get("LAMINABENCH_TRACES")
Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
SMALL = (
    *("--trace", "azure-code", "--offline", "--num-requests", "60", "--scale-lengths", "0.1", "-q"),
    *("--model", "llama-tiny"),
)
LIVE = ("replay", *SMALL, "--backend", "live", "--max-num-seqs", "16")


def test_it_has_the_keys_of_a_modelled_replay_and_says_live(
    as_json: AsJson, pretended: dict[str, Any]
) -> None:
    facts = as_json(*LIVE)
    modelled = as_json("replay", *SMALL, "--deployment", "1xcpu+1xcpu", "--costs", "roofline", "--no-out")
    assert set(modelled) - set(facts) == {"costs_set", "simulation_s"}
    assert set(facts) - set(modelled) == {"schedule", "faults", "faults_in_all", "resumed", "tokens_sha256"}
    assert (facts["backend"], facts["deployment"]) == ("live", "1xcpu+1xcpu")
    assert facts["requests"] == modelled["requests"]
    assert facts["requests"] == {"completed": 60, "rejected": 0, "unfinished": 0, "failed": 0}
    assert facts["tokens_generated"] == modelled["tokens_generated"]
    assert facts["schedule"]["violations"] == []
    assert facts["schedule"]["pieces"] > 0
    assert facts["schedule"]["bubbles"].keys() == {"model 0", "attention 0"}
    assert facts["cost"]["usd_per_hour"] is None
    assert pretended["closed"]
    kept = json.loads((Path(facts["run_dir"]) / "run.json").read_text())
    assert (kept["backend"], kept["coefficients"]) == ("live", [])
    assert kept["summary"]["schedule"] == facts["schedule"]
    # As it was in force, whatever was left out.
    assert 'network = "auto"\n' in kept["request"]
    run = read_run(Path(facts["run_dir"]))
    assert run.outcome.iterations["size"].sum() == facts["tokens_generated"]


@pytest.mark.usefixtures("pretended")
def test_the_summary_says_measured_and_how_the_schedule_went(shell: Shell) -> None:
    code, out, _ = shell(*LIVE, "--no-out", "--price", "cpu=0.05")
    assert code == 0
    assert "(saturate, live, measured)" in out.splitlines()[0]
    assert "schedule       as defined: " in out
    assert re.search(
        r"no overlap; idle, each worker, from first to last piece: model 0 5\d\.\d%, attention 0 4\d\.\d%",
        out,
    )
    assert "network -" in out
    assert "$0.10 an hour" in out
    assert len(out.splitlines()) <= 14
    assert not Path("runs").exists()
    assert "cost           -, for want of a price" in shell(*LIVE, "--no-out")[1]


@pytest.mark.usefixtures("pretended")
def test_work_out_of_order_fails_the_check_after_the_run_is_kept(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.pipeline.check_schedule", lambda *_: ["model 0 did one [bold]thing"] * 3)
    code, out, err = shell(*LIVE, "--out", "kept")
    assert code == 1
    assert "left 3 times in" in out
    assert err == (
        "laminabench: check failed: the workers left the schedule 3 times, first: model 0 did one "
        "[bold]thing; "
        "this is a bug of the engine\n"
    )
    assert Path("kept", "run.json").is_file()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("mode", [["open", "--rate-scale", "100"], ["closed", "--concurrency", "5"]])
@pytest.mark.parametrize("policy", ["fifo", "sjf", "deadline"])
def test_modes_and_policies(as_json: AsJson, mode: list[str], policy: str) -> None:
    facts = as_json(*LIVE, "--no-out", "--mode", *mode, "--policy", policy)
    assert facts["requests"]["completed"] == 60


@pytest.mark.usefixtures("pretended")
def test_the_timeline_is_of_the_replay_that_was(as_json: AsJson) -> None:
    facts = as_json(*LIVE, "--no-out", "--timeline", "t.json")
    first, last = facts["timeline"]["window_s"]
    assert 0 < first < last < facts["duration_s"]
    assert facts["timeline"]["bubbles"].keys() == {"model 0", "attention 0"}
    assert "lamina on this machine" in Path("t.json").read_text()


def test_an_interrupt_closes_the_engine_and_leaves_no_run(
    shell: Shell, pretended: dict[str, Any], made_up_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(made_up_engine, "step", interrupted)
    code, out, err = shell(*LIVE, "--out", "kept", "--timeline", "t.json")
    sentence = "laminabench: interrupted; go on with: laminabench replay --resume kept\n"
    assert (code, out, err) == (130, "", sentence)
    assert pretended["closed"]
    assert list(Path().iterdir()) == [Path("kept.journal")]
    # Without a Run to come there is nothing to go on with.
    code, out, err = shell(*LIVE, "--no-out")
    assert (code, out, err) == (130, "", "\nlaminabench: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--system", "lamina-v1"], "lamina-v1 is modelled only"),
        (["--costs", "roofline"], "not for live lamina"),
        (["--host-async"], "not for live lamina"),
        (["--kv-overcommit", "2"], "not for live lamina"),
        (["--gpu-memory-utilization", "0.5"], "see --kv-tokens"),
        (["--network", "fhbn"], "auto, shm, gloo"),
        (["--deployment", "64xcpu+2xcpu"], "--oversubscribe"),
        (["--deployment", "1xh100+1xh20"], "not verified on hardware"),
        (["--batches", "many"], "--batches"),
        (["--mode", "closed"], "needs --concurrency"),
        (["--model", "llama3-70b"], "does not fit"),
        (["--kv-tokens", "999999999999"], "give at most"),
    ],
)
def test_wrong_use_is_one_sentence_and_nothing_starts(
    shell: Shell, pretended: dict[str, Any], arguments: list[str], said: str
) -> None:
    code, out, err = shell(*LIVE, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("laminabench: error: ")
    assert err.count("\n") == 1
    assert "engine" not in pretended
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--oversubscribe"], "is for live lamina"),
        (["--batches", "auto"], "--backend live"),
        (["--kv-tokens", "99999999999"], "holds 1 to"),
    ],
)
def test_flags_that_mean_nothing_modelled(shell: Shell, arguments: list[str], said: str) -> None:
    code, _, err = shell("replay", "--trace", "azure-code", "--offline", "-q", "--no-out", *arguments)
    assert code == 2
    assert said in err


def test_a_modelled_replay_takes_a_size_of_kv_memory_too(as_json: AsJson) -> None:
    few = ("replay", "--trace", "azure-code", "--offline", "--num-requests", "50", "-q", "--no-out")
    for system in ("lamina", "lamina-v1", "vllm"):
        facts = as_json(*few, "--system", system, "--kv-tokens", "16000")
        assert 16000 - 48 <= facts["kv"]["capacity_tokens"] <= 16000


@pytest.mark.outside
@pytest.mark.usefixtures("shared_machine")
def test_real_workers_make_what_the_modelled_twin_makes(
    as_json: AsJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 requests of azure-code, of the real trace where it is; some do not fit the memory."""
    if TRACES:
        monkeypatch.setenv("LAMINABENCH_TRACES", TRACES)
    same = (
        *("replay", "--trace", "azure-code", "--offline", "--num-requests", "200", "--scale-lengths", "0.3"),
        *("-q", "--no-out", "--model", "llama-tiny", "--deployment", "1xcpu+1xcpu"),
        *("--kv-tokens", "1500", "--max-num-seqs", "32"),
    )
    twin = as_json(*same, "--costs", "roofline", "--network", "shm", "--no-overlap")
    # One core is enough to be right.
    facts = as_json(*same, "--backend", "live", "--oversubscribe", "--timeline", "t.json.gz")
    assert facts["requests"] == twin["requests"]
    assert facts["requests"]["rejected"] > 0
    assert facts["tokens_generated"] == twin["tokens_generated"] > 0
    assert facts["kv"]["capacity_tokens"] == twin["kv"]["capacity_tokens"] == 1500
    assert facts["facts"]["batches"] == twin["facts"]["batches"] == 2
    assert facts["schedule"]["violations"] == []
    assert Path("t.json.gz").is_file()
    run = facts["timeline"]["bubbles"]
    assert run.keys() == {"model 0", "attention 0"}
    assert all(0 <= share <= 1 for share in run.values())


def test_an_interrupt_while_workers_start_ends_in_a_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "LAMINABENCH_HOME": str(tmp_path)}
    environment.pop("LAMINABENCH_TRACES", None)
    command = [sys.executable, "-m", "laminabench", "replay", "--trace", "azure-code", "--offline"]
    child = subprocess.Popen(
        [*command, "--backend", "live", "--oversubscribe", "--model", "llama-tiny", "--out", "run"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    # The notice comes once the trace is there and the engine is about to start.
    assert "azure-code is not here" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted" in err
    assert list(tmp_path.iterdir()) == []
