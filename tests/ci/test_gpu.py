"""`make gpu` looks for a GPU and nvcc before it builds, and builds for that GPU alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """One with these programs; what is built and run there is only recorded."""
    reported = tmp_path / "report"
    tools = tmp_path / "tools"
    program(tools, "nvidia-smi", "echo 9.0")
    program(tools, "nvcc", "exit 0")
    program(tools, "make", f'echo "$* $CUDAARCHS" >>{reported}; touch venv/.ready')
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    program(tmp_path / "venv" / "bin", "python", f'echo "$*" >>{reported}')
    return tmp_path


def gpu(machine: Path) -> tuple[int, list[str], str]:
    """Its exit code, what was run, and what it said."""
    (machine / "report").unlink(missing_ok=True)
    saved = {
        name: value for name, value in os.environ.items() if name not in ("CUDACXX", "CUDAARCHS", "MAKE")
    }
    ended = subprocess.run(
        [ROOT / "ci" / "gpu.sh", "venv"],
        cwd=machine,
        env=saved | {"PATH": f"{machine / 'tools'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    reported = machine / "report"
    return ended.returncode, reported.read_text().splitlines() if reported.exists() else [], ended.stderr


def test_it_builds_for_the_gpu_at_hand_and_measures(machine: Path) -> None:
    code, reported, _ = gpu(machine)
    assert (code, reported) == (0, ["--no-print-directory setup 90-real", "tools/bench.py gpu"])
    assert (machine / "venv" / ".ready").exists()


def test_what_was_built_for_another_is_built_anew(machine: Path) -> None:
    ready = machine / "venv" / ".ready"
    program(machine / "tools", "make", f"ls -a venv | grep -c .ready >>{machine}/report; touch venv/.ready")
    ready.touch()
    assert gpu(machine)[1] == ["0", "tools/bench.py gpu"]  # nobody knows for which it was
    assert gpu(machine)[1] == ["1", "tools/bench.py gpu"]
    program(machine / "tools", "nvidia-smi", "echo 8.9; echo 8.0; echo 8.9")
    assert gpu(machine)[1] == ["0", "tools/bench.py gpu"]
    assert (machine / "venv" / ".cuda-architectures").read_text() == "80-real;89-real\n"


@pytest.mark.parametrize("smi", ["exit 9", "echo 'No devices were found'", None])
def test_without_a_gpu_nothing_is_built(machine: Path, smi: str | None) -> None:
    if smi is None:
        (machine / "tools" / "nvidia-smi").unlink()
    else:
        program(machine / "tools", "nvidia-smi", smi)
    code, reported, err = gpu(machine)
    assert (code, reported) == (2, [])
    assert "NVIDIA GPU" in err
    assert len(err.splitlines()) == 1


def test_without_nvcc_nothing_is_built(machine: Path) -> None:
    (machine / "tools" / "nvcc").unlink()
    code, reported, err = gpu(machine)
    assert (code, reported) == (2, [])
    assert "nvcc" in err
    assert len(err.splitlines()) == 1


def test_the_kernels_are_built_for_what_cmakes_variable_names() -> None:
    text = (ROOT / "csrc/cuda/CMakeLists.txt").read_text()
    named, usual = text.index('"$ENV{CUDAARCHS}"'), text.index("80-real 90")
    assert named < usual < text.index("enable_language(CUDA)")
