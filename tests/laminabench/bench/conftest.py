"""Fixtures of the benchmarks' tests: their command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from laminabench.cli.main import run

Shell = Callable[..., tuple[object, str, str]]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """`laminabench bench ...`: exit code, stdout and stderr."""

    def shell(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as exit_:
            run(["bench", *arguments])
        return exit_.value.code, *capsys.readouterr()

    return shell


@pytest.fixture
def facts(shell: Shell) -> Callable[..., dict[str, Any]]:
    """The one object that `laminabench bench ... --json` prints."""

    def facts(*arguments: str) -> dict[str, Any]:
        code, out, err = shell(*arguments, "--json")
        assert code == 0, err
        result: dict[str, Any] = json.loads(out)
        return result

    return facts
