"""What an environment is to hold: packages and versions from a file of pins, and what is there of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "vllm"
_PIN = re.compile(r'([\w.-]+)==([\w.+]+)(?:; python_version > "(\d+)\.(\d+)")?')


def file_of(kind: str) -> Path:
    """The pins of the environment for `cpu` or `cuda`."""
    return _FOLDER / f"pins-{kind}.txt"


def sha256_of(kind: str) -> str:
    return hashlib.sha256(file_of(kind).read_bytes()).hexdigest()


def pinned(kind: str, python: tuple[int, int]) -> dict[str, str]:
    """Version by package, for an interpreter of that version."""
    found = {}
    for line in file_of(kind).read_text(encoding="utf-8").splitlines():
        pin = _PIN.fullmatch(line)
        if pin is None:
            assert line.startswith("#"), line
            continue
        name, version, *above = pin.groups()
        if above[0] is None or python > (int(above[0]), int(above[1])):
            found[_plain(name)] = version
    return found


def installed(packages: Path) -> dict[str, str]:
    """Version by package, of the `site-packages` folder: by the names of its records, which takes no time."""
    records = (path.name.removesuffix(".dist-info").rpartition("-") for path in packages.glob("*.dist-info"))
    return {_plain(name): version for name, _, version in records}


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What is missing or of another version, as `torch 2.12 instead of 2.13`."""
    return [
        f"{name} {found[name]} instead of {version}" if name in found else f"no {name}"
        for name, version in wanted.items()
        if found.get(name) != version
    ]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
