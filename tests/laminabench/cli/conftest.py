"""A command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from laminabench.cli.main import run

Shell = Callable[..., tuple[int, str, str]]


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
