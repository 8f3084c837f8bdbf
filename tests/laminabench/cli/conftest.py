"""A command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laminabench.cli.main import run

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run a command line; gives the exit code, stdout and stderr. Nothing is downloaded or shared."""
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAMINABENCH_TRACES", raising=False)
    monkeypatch.delenv("LAMINABENCH_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            run(list(arguments))
        written = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, written.out, written.err

    return call


@pytest.fixture
def as_json(shell: Shell) -> AsJson:
    """Run a command line with --json; gives the one object on stdout."""

    def call(*arguments: str) -> dict[str, Any]:
        code, out, err = shell(*arguments, "--json")
        assert code == 0, err
        facts = json.loads(out)
        assert isinstance(facts, dict)
        return facts

    return call
