"""Programs that are started get a list of variables: keys that are in the environment are not in it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from lamina.child_environment import child_environment as of_the_engine
from lamina.cluster.machine import Machine
from laminabench.baselines.environment import Environment
from laminabench.systems.live.vllm.process import variables
from laminabench.util.child_environment import child_environment, pip_environment

ROOT = Path(__file__).resolve().parents[3]
KEYS = (
    "OPENAI_API_KEY",
    "LAMINABENCH_API_KEY",
    "VLLM_API_KEY",
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "ANYTHING",
)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "s3cret-of-the-user")
    monkeypatch.setenv("LAMINABENCH_HOME", "/somewhere")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")


def test_keys_are_not_passed_on_and_what_is_needed_is(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "bin" / "python", "cuda", {}, ())
    passed = [
        child_environment(),
        pip_environment(),
        of_the_engine(),
        variables(environment, [0], 1, tmp_path),
    ]
    for result in passed:
        assert "s3cret-of-the-user" not in json.dumps(result)
        assert result["LAMINABENCH_HOME"] == "/somewhere"
        assert result["PATH"]
    assert ["PIP_FIND_LINKS" in result for result in passed] == [False, True, False, False]


def test_the_fork_server_has_none_of_them() -> None:
    with Machine() as machine:
        # Linux tells no variables before the new program's stack is made, so one that has answered is asked.
        assert machine.ends([]) == {}
        observed = Path(f"/proc/{machine._running().pid}/environ").read_bytes()
    assert b"PATH=" in observed
    assert b"s3cret-of-the-user" not in observed


def test_every_program_is_started_with_a_list() -> None:
    started = 0
    for path in [*(ROOT / "laminabench").rglob("*.py"), *(ROOT / "engine").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        # The experiments start this package's own commands.
        if "torture" in path.parts or "subprocess" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run"):
                started += 1
                assert "env" in [keyword.arg for keyword in node.keywords], f"{path}:{node.lineno}"
    assert started > 10
