"""Archive of what the virtual machine's tests need of this checkout and its environment.

In there the checkout is /project and the packages are in /packages; the interpreter and pyverbs are Debian's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from archive import Archive, below
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parents[2]
# Channels without torch, the command line, and what their tests run on.
PACKAGES = ("click", "msgpack", "msgspec", "numpy", "platformdirs", "pytest", "rich")
PARTS = ("engine/lamina", "laminabench", "tests/rdma", "tests/lamina/fhbn", "tests/faults", "pyproject.toml")
COMPILED = {
    "lamina._native": "engine/lamina",
    "lamina._softnic": "engine/lamina",
    "laminabench._sim": "laminabench",
}
PYTHONPATH = "/project/engine:/project:/packages"
NOT_NEEDED = {".a", ".h", ".pyi"}


def pack(file: Path) -> None:
    with file.open("wb") as out:
        made = Archive(out)
        for part in PARTS:
            path = CHECKOUT / part
            for member in below(path) if path.is_dir() else (path,):
                made.add(member, str(Path("project", member.relative_to(CHECKOUT))))
        for module, folder in COMPILED.items():
            native = _compiled(module)
            made.add(native, f"project/{folder}/{native.name}")
        for member, name in _packages():
            made.add(member, f"packages/{name}")
        made.end()


def _compiled(module: str) -> Path:
    """Return the path of a compiled module, which an editable install has where no source is."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"there is no {module} in this environment; run make setup")
    return Path(spec.origin)


def _packages() -> Iterator[tuple[Path, str]]:
    for package in _with_what_they_need(PACKAGES):
        for file in package.files or ():
            # What an installer puts elsewhere (`../../bin`), and tests of numpy's, which are half of it.
            if file.parts[0] == ".." or "tests" in file.parts or file.suffix in NOT_NEEDED:
                continue
            path = Path(str(package.locate_file(file)))
            if path.is_file():
                yield path, str(file)


def _with_what_they_need(names: Iterable[str]) -> list[Distribution]:
    distributions: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in distributions:
            continue
        distributions[name] = distribution(name)
        for line in distributions[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    return list(distributions.values())
