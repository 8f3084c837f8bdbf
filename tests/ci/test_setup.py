"""ci/setup.sh says in one sentence what is missing; with a stand-in for Python nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "ci" / "setup.sh"
# Answers every probe, notes its arguments, and makes a copy of itself for `-m venv`.
PYTHON = """#!/bin/sh
echo "$@" >>"$LOG"
case "$*" in
  '-m venv'*) for venv; do :; done; mkdir -p "$venv/bin"; cp "$0" "$venv/bin/python"; touch "$venv/pip" ;;
  '-m pip --version') test -e "$(dirname "$0")/../pip" ;;
esac
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return executable(tmp_path / "python", PYTHON)


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def setup(folder: Path, **environment: str) -> tuple[int, str, list[str]]:
    """Run it; the exit code, what it said on stderr, and what the stand-in was asked."""
    log = folder / "log"
    log.write_text("")
    done = subprocess.run(
        ["sh", str(SETUP), "venv"],
        cwd=folder,
        env={**os.environ, "LOG": str(log), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, log.read_text().splitlines()


@pytest.mark.long(but=["env c++"])
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler here")
@pytest.mark.parametrize("compiler", ["", "env c++"])
def test_a_whole_environment_is_kept_and_a_half_made_one_is_not(
    python: Path, tmp_path: Path, compiler: str
) -> None:
    executable(tmp_path / "venv/bin/python", PYTHON)
    code, message, requested = setup(tmp_path, PYTHON=str(python), CXX=compiler)
    assert (code, message) == (0, "")
    assert "-m venv --clear venv" in requested
    assert "--editable" in requested[-1]
    installs = [each for each in requested if " install " in each]
    assert len(installs) > 2
    assert all("--require-hashes" in each or "--no-index" in each for each in installs)
    code, _, requested = setup(tmp_path, PYTHON=str(python), CXX=compiler)
    assert code == 0
    assert not [each for each in requested if "venv" in each.split()[:2]]


@pytest.mark.parametrize(
    ("interpreter", "message"),
    [
        ("/nowhere/python", "PYTHON is /nowhere/python, which cannot be run"),
        ("false", "PYTHON is false, which is no Python 3.11 or newer"),
    ],
)
def test_a_given_python_is_checked(tmp_path: Path, interpreter: str, message: str) -> None:
    code, error, _ = setup(tmp_path, PYTHON=interpreter)
    assert code == 1
    assert error.startswith(f"make setup: {message}")
    assert error.count("\n") == 1


def test_a_compiler_without_the_library_is_refused(python: Path, tmp_path: Path) -> None:
    # Knows the language (concepts) but not the headers, as g++ 10 with an old library.
    old = executable(tmp_path / "old", '#!/bin/sh\n! grep -q "include <span>"\n')
    code, error, _ = setup(tmp_path, PYTHON=str(python), CXX=str(old))
    assert code == 1
    assert error.startswith(f"make setup: {old} does not compile C++20")
