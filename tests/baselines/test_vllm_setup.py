"""The vLLM runner's setup.sh says what is missing; with a stand-in for Python nothing is installed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "baselines" / "vllm"
# Answers every probe, notes its arguments, and makes a copy of itself for `-m venv`. pip finds no $MISSING.
PYTHON = """#!/bin/sh
echo "$@" >>"$LOG"
case "$*" in
  '-m venv'*)
    for venv; do :; done
    mkdir -p "$venv/bin"
    touch "$venv/pyvenv.cfg"
    cp "$0" "$venv/bin/python"
    ;;
  *' install '*"${MISSING:-nothing}"*) exit 1 ;;
esac
"""

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="the runner is for Linux on x86_64, with a compiler",
)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(PYTHON)
    path.chmod(0o755)
    return path


def setup(folder: Path, **environment: str) -> tuple[int, str, list[str]]:
    """Run it; the exit code, what it said on stderr, and what the stand-in was asked."""
    log = folder / "log"
    log.write_text("")
    done = subprocess.run(
        ["sh", str(FOLDER / "setup.sh"), "venv"],
        cwd=folder,
        env={**os.environ, "LOG": str(log), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, log.read_text().splitlines()


def test_a_whole_environment_is_kept(python: Path, tmp_path: Path) -> None:
    code, said, asked = setup(tmp_path, PYTHON=str(python))
    assert (code, said) == (0, "")
    installs = [each for each in asked if " install " in each]
    assert [each.split()[-1] for each in installs] == ["torch==2.13.0+cpu", str(FOLDER / "requirements.txt")]
    assert all("--no-deps" in each for each in installs)
    code, said, asked = setup(tmp_path, PYTHON=str(python))
    assert (code, said) == (0, "")
    assert not [each for each in asked if "-m " in each]


def test_a_half_made_environment_is_made_anew(python: Path, tmp_path: Path) -> None:
    code, said, asked = setup(tmp_path, PYTHON=str(python), MISSING="requirements.txt")
    assert code == 1
    assert said.startswith("make vllm: not all of ")
    code, said, asked = setup(tmp_path, PYTHON=str(python))
    assert (code, said) == (0, "")
    assert "-m venv --clear venv" in asked


def test_a_pip_without_cpu_builds_of_torch_is_told_and_nothing_else_is_fetched(
    python: Path, tmp_path: Path
) -> None:
    code, said, asked = setup(tmp_path, PYTHON=str(python), MISSING="torch")
    assert code == 1
    assert said.startswith("make vllm: pip finds no torch==2.13.0+cpu: point it at")
    assert said.count("\n") == 1
    assert len([each for each in asked if " install " in each]) == 1


def test_what_is_no_environment_is_not_cleared_away(python: Path, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "letter").write_text("dear")
    code, said, _ = setup(tmp_path, PYTHON=str(python))
    assert code == 1
    assert said == "make vllm: venv is there and is no virtual environment; name another folder\n"
    assert (tmp_path / "venv" / "letter").read_text() == "dear"


def test_a_given_python_is_checked(tmp_path: Path) -> None:
    code, said, _ = setup(tmp_path, PYTHON="/nowhere/python")
    assert code == 1
    assert said.startswith("make vllm: PYTHON is /nowhere/python, which cannot be run")


def test_every_version_is_pinned_and_none_is_for_cuda() -> None:
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r'[\w.-]+==[\w.+]+(; python_version > "3\.11")?', pin) for pin in pins)
    names = [pin.partition("==")[0].lower() for pin in pins]
    assert names == sorted(set(names))
    assert not [name for name in names if re.search(r"nvidia|cuda|triton|torch.", name)]
