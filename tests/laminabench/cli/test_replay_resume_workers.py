"""A live replay on real workers, interrupted by a person and then by the system, goes on to the same end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from laminabench.runs.read import read_run

SMALL = (
    *("--trace", "azure-code", "--offline", "--num-requests", "60", "--scale-lengths", "0.1"),
    *("--backend", "live", "--max-num-seqs", "16", "--seed", "5"),
)


def _started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "LAMINABENCH_HOME": str(folder)}
    environment.pop("LAMINABENCH_TRACES", None)
    return subprocess.Popen(
        [sys.executable, "-m", "laminabench", "replay", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def _iterations(path: Path) -> int:
    """How many are in a journal that somebody writes to."""
    try:
        return path.read_bytes().count(msgpack.packb("Iteration"))
    except FileNotFoundError:
        return 0


def _until(child: subprocess.Popen[str], path: Path, iterations: int) -> None:
    """Until the journal has so many iterations; looked at again and again, as it has no other way to tell."""
    assert child.stderr is not None
    while _iterations(path) < iterations:
        assert child.poll() is None, "it ended before it could be interrupted"
        select.select([], [], [], 0.01)


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_ctrl_c_and_kill_9_lose_nothing(
    tmp_path: Path, exact_model: dict[str, Any], as_json: Callable[..., dict[str, Any]]
) -> None:
    """Interrupted twice; every token is that of a replay that was not. Only what is interrupted is a process
    of its own.
    """
    (tmp_path / "tiny.json").write_text(json.dumps(exact_model))
    arguments = (*SMALL, "--model", "tiny.json", "--prefill", "model", "--oversubscribe", "-q")
    whole = as_json("replay", *arguments, "--out", "whole")
    journal = tmp_path / "cut.journal"
    before = 0
    calls = {
        signal.SIGINT: [*arguments, "--json", "--out", "cut"],
        signal.SIGKILL: ["--resume", "cut", "--json", "-q"],
    }
    for how, call in calls.items():
        child = _started(tmp_path, *call)
        _until(child, journal, before + 4)
        before = _iterations(journal)
        child.send_signal(how)
        _, err = child.communicate(timeout=60)
        if how == signal.SIGINT:
            assert child.returncode == 130
            assert err.endswith("interrupted; go on with: laminabench replay --resume cut\n")
        assert not (tmp_path / "cut").exists()
    facts = as_json("replay", "--resume", "cut", "-q")
    assert facts["resumed"]["times"] == 2
    for name in ("requests", "tokens_generated", "tokens_sha256", "preemptions"):
        assert facts[name] == whole[name], name
    assert facts["schedule"]["violations"] == []
    one, other = (read_run(tmp_path / name) for name in ("cut", "whole"))
    for name in ("prompt_tokens", "output_tokens"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.outcome.requests["status"].tolist() == other.outcome.requests["status"].tolist()
    assert one.outcome.iterations["size"].sum() == other.outcome.iterations["size"].sum()
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "cut", "tiny.json"}
