"""How a run of `laminabench` ends, from a shell's point of view."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laminabench.errors import CheckFailedError


def laminabench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laminabench", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment without downloads or trace files."""
    return {"LAMINABENCH_HOME": str(tmp_path), "LAMINABENCH_TRACES": ""}


def test_help_shows_sections_and_examples() -> None:
    result = laminabench("--help")
    assert result.returncode == 0
    for text in ("Workloads:", "traces", "Examples:", "laminabench traces info azure-conv"):
        assert text in result.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from laminabench.cli.main import run\n"
        "try: run(['--help'])\n"
        "except SystemExit: print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "click" in loaded
    assert not {"numpy", "pandas", "pyarrow", "rich", "matplotlib", "torch", "lamina"} & set(loaded)


def test_version_names_the_commit() -> None:
    result = laminabench("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("laminabench 0.")
    if (Path(__file__).parents[3] / ".git").exists():
        assert "(commit " in result.stdout


def test_a_mistyped_command_gets_the_nearest() -> None:
    result = laminabench("trace")
    assert result.returncode == 2
    assert "did you mean traces?" in result.stderr


def test_a_users_mistake_is_one_sentence_and_exit_2(nowhere: dict[str, str]) -> None:
    result = laminabench("traces", "info", "azur-conv", **nowhere)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "laminabench: error: no trace or file is called 'azur-conv'; "
        "did you mean azure-conv or azure-2024-conv or azure-code?\n"
    )


def test_debug_shows_the_traceback(nowhere: dict[str, str]) -> None:
    result = laminabench("traces", "info", "azur-conv", LAMINABENCH_DEBUG="1", **nowhere)
    assert "Traceback" in result.stderr


def test_json_is_one_object_and_notes_are_elsewhere(nowhere: dict[str, str]) -> None:
    result = laminabench("traces", "info", "azure-code", "--offline", "--json", **nowhere)
    assert result.returncode == 0
    facts = json.loads(result.stdout)
    assert facts["source"] == "profile"
    assert facts["requests"] == 8819
    assert "profile" in result.stderr
    assert laminabench("traces", "info", "azure-code", "--offline", "--json", "-q", **nowhere).stderr == ""


def test_no_colour_in_a_pipe(nowhere: dict[str, str]) -> None:
    assert "\x1b" not in laminabench("traces", "list", **nowhere).stdout


def test_a_reader_that_leaves_is_not_an_error(nowhere: dict[str, str]) -> None:
    command = f"{sys.executable} -m laminabench traces list | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={**os.environ, **nowhere}, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (CheckFailedError("sums differ"), 1, "laminabench: check failed: sums differ\n"),
        (KeyboardInterrupt(), 130, "laminabench: interrupted\n"),
        (PermissionError(13, "Permission denied", "/x"), 2, "laminabench: error: /x: Permission denied\n"),
        (ValueError("oops"), 70, "internal error: ValueError: oops"),
    ],
)
def test_every_way_to_end(
    raised: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from laminabench.cli import main  # noqa: PLC0415

    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(main.main, "main", fail)
    monkeypatch.delenv("LAMINABENCH_DEBUG", raising=False)
    with pytest.raises(SystemExit) as exit_:
        main.run([])
    assert exit_.value.code == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = laminabench("completion", shell)
    assert result.returncode == 0
    assert "_LAMINABENCH_COMPLETE" in result.stdout


def test_completion_knows_the_commands() -> None:
    words = {"COMP_WORDS": "laminabench tra", "COMP_CWORD": "1", "_LAMINABENCH_COMPLETE": "bash_complete"}
    assert "traces" in laminabench(**words).stdout
