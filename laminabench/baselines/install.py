"""Building vLLM's environment: nothing half-built looks ready, and an error names what is missing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from laminabench.baselines.environment import (
    STAMP,
    Environment,
    Kind,
    is_ready,
    look_at,
    pins_file,
    pins_sha256,
)
from laminabench.errors import UserError

# What it takes when it is done, and room for the download of a wheel. CUDA's was not measured: see docs.
_DISK_BYTES = {"cpu": 4.0e9, "cuda": 20.0e9}
_LOADS = {
    "cpu": "from vllm.platforms import current_platform as p; assert p.is_cpu(), 'this vLLM is no CPU build'",
    "cuda": "from vllm.platforms import current_platform as p; assert p.is_cuda(), 'it finds no CUDA device'",
}
_UNREACHABLE = re.compile(
    r"Failed to establish a new connection|Temporary failure in name resolution|Network is unreachable"
    r"|Connection refused|ConnectTimeout|ConnectionError|Max retries exceeded|ProxyError"
)
Progress = Callable[[str, int, int], None]


def set_up(folder: Path, kind: Kind, python: str | None, progress: Progress) -> tuple[Environment, bool]:
    """The environment at that folder, built if it is not there as pinned; and whether it was there."""
    if is_ready(folder, kind):
        return _looked_at(folder), True
    interpreter = _interpreter(python)
    _require_machine(folder, kind)
    with _alone(folder):
        if is_ready(folder, kind):  # another process has built it meanwhile
            return _looked_at(folder), True
        _build(folder, kind, interpreter, progress)
    return _looked_at(folder), False


def _looked_at(folder: Path) -> Environment:
    environment = look_at(folder)
    assert environment is not None
    return environment


def _interpreter(chosen: str | None) -> str:
    """A Python 3.11 to 3.14; 3.11 is what the versions were resolved for."""
    if chosen is not None:
        if shutil.which(chosen) is None:
            raise UserError(
                "baseline-python-unusable", f"--python {chosen} cannot be run; name an interpreter"
            )
        if not _right(chosen):
            raise UserError(
                "baseline-python-unusable",
                f"--python {chosen} is no Python 3.11 to 3.14 with venv; name another one",
            )
        return chosen
    for candidate in ("python3.11", sys.executable, "python3", "python3.12", "python3.13", "python3.14"):
        if shutil.which(candidate) and _right(candidate):
            return candidate
    raise UserError(
        "baseline-python-missing",
        "no Python 3.11 to 3.14 that makes virtual environments; on Debian and Ubuntu: "
        "sudo apt-get install python3 python3-venv",
    )


def _right(python: str) -> bool:
    asked = "import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))"
    return subprocess.run([python, "-c", asked], capture_output=True, check=False).returncode == 0


def _require_machine(folder: Path, kind: Kind) -> None:
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise UserError(
            "baseline-machine-unsupported",
            f"the versions vLLM needs are pinned for Linux on x86_64, and this is {system} on {machine}",
        )
    # vLLM compiles the model's kernels when it loads it.
    if shutil.which("g++") is None:
        raise UserError(
            "baseline-compiler-missing",
            "vLLM needs a C++ compiler; on Debian and Ubuntu: sudo apt-get install g++",
        )
    if kind == "cuda" and shutil.which("nvidia-smi") is None:
        raise UserError(
            "baseline-driver-missing",
            "--cuda needs an NVIDIA driver (nvidia-smi), which is not here; use --cpu",
        )
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise UserError(
            "baseline-folder-occupied",
            f"{folder} is there and is no virtual environment; name another folder with --into",
        )
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free, needed = shutil.disk_usage(there).free, _DISK_BYTES[kind]
    if free < needed:
        raise UserError(
            "baseline-disk-full",
            f"{needed / 1e9:.0f} GB of disk are needed and {there} has {free / 1e9:.1f} GB free; "
            "name another folder with --into",
        )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two at once would clear away each other's packages: the second waits.

    The folder itself is locked, which leaves no file behind; `venv --clear` removes what is in it and not it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _build(folder: Path, kind: Kind, interpreter: str, progress: Progress) -> None:
    (folder / STAMP).unlink(missing_ok=True)
    wanted = pins_file(kind)
    lines = wanted.read_text(encoding="utf-8").splitlines()
    torch = next(line for line in lines if line.startswith("torch=="))
    total = sum(1 for line in lines if line and not line.startswith("#"))
    progress(f"creating {folder}", 0, total)
    made = subprocess.run(
        [interpreter, "-m", "venv", "--clear", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise UserError(
            "baseline-venv-failed",
            f"{interpreter} -m venv {folder} failed: {_last_line(made.stdout + made.stderr)}",
        )
    # First and alone, so that where pip finds only other builds nothing else is fetched.
    _install(folder, [torch], lambda done: progress(f"installing {torch}", done, total), f"no {torch}")
    _install(
        folder,
        ["--requirement", str(wanted)],
        lambda done: progress("installing vLLM and what it needs", done, total),
        "not all of what vLLM needs",
    )
    progress("loading vLLM once", total, total)
    _require_as_pinned(folder, kind)
    loaded = subprocess.run(
        [str(folder / "bin" / "python"), "-P", "-c", _LOADS[kind] + "; import vllm.v1.engine.llm_engine"],
        env=os.environ | {"VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if loaded.returncode:
        raise UserError(
            "baseline-does-not-load", f"vLLM does not load from {folder}: {_last_line(loaded.stderr)}"
        )
    stamp = folder / f".{STAMP}"
    stamp.write_text(json.dumps({"kind": kind, "pins_sha256": pins_sha256(kind)}) + "\n", encoding="utf-8")
    stamp.rename(folder / STAMP)


def _install(folder: Path, what: list[str], progress: Callable[[int], None], missing: str) -> None:
    """pip, without resolving anything; progress is how many packages it has looked at."""
    command = (
        *("-m", "pip", "--disable-pip-version-check", "install", "--retries", "2", "--progress-bar", "off"),
        *("--no-deps", "--only-binary", ":all:"),
    )
    progress(0)
    lines: list[str] = []
    done = 0
    with subprocess.Popen(
        [str(folder / "bin" / "python"), *command, *what],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONPATH": "", "PYTHONUNBUFFERED": "1"},
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                lines.append(line)
                if line.startswith(("Collecting ", "Requirement already satisfied")):
                    done += 1
                    progress(done)
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode:
        raise _not_installed("".join(lines), missing)


def _not_installed(output: str, missing: str) -> UserError:
    if _UNREACHABLE.search(output):
        return UserError(
            "baseline-index-unreachable",
            "pip reaches no package index; go online, or give it a folder of wheels "
            "(PIP_FIND_LINKS, PIP_NO_INDEX)",
        )
    if "No space left on device" in output:
        return UserError("baseline-disk-full", "the disk is full; name a folder on another one with --into")
    if "No matching distribution" in output and "torch" in missing:
        return UserError(
            "baseline-torch-unavailable",
            f"pip finds {missing}: point it at a folder or an index with the right builds of torch "
            "(PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL)",
        )
    return UserError("baseline-install-failed", f"{missing} could be installed: {_last_line(output)}")


def _require_as_pinned(folder: Path, kind: Kind) -> None:
    there = look_at(folder)
    if there is None:
        raise UserError(
            "baseline-not-as-pinned", f"pip says it has installed vLLM into {folder}, and it is not there"
        )
    if there.kind != kind or there.unlike_pins:
        raise UserError(
            "baseline-not-as-pinned",
            f"{folder} is not as pinned: {', '.join(there.unlike_pins[:3]) or there.kind}",
        )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1] if lines else "no reason given"
