"""A system's name is written in its own package and in the registry; elsewhere it is what the user gave."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from laminabench.systems.registry import LIVE, MODULES

ROOT = Path(__file__).parents[3] / "laminabench"
# Packages of systems, and the registry, which lists them.
OWN = ("systems/modelled/", "systems/live/", "systems/registry.py")
MAY_NAME = (
    # What is measured, reproduced or tried is of some systems by name.
    *(
        "bench/",
        "calibrate/",
        "papers/",
        "render/view/speed.py",
        "cli/bench.py",
        "cli/validate.py",
        "workflows/validate/",
    ),
    # A request's default, and types that are made of the registry.
    "requests/",
    # vLLM, the package and other tools' name for it; `openai`, the package.
    *("catalog/", "baselines/", "cli/baseline.py", "cli/ending.py", "interchange/"),
    # Start commands and manifests of vLLM, the server.
    "workflows/plan/emit.py",
)


def _names(path: Path) -> Iterator[tuple[int, str]]:
    names = {*MODULES, *LIVE}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in names:
            yield node.lineno, str(node.value)


def test_only_a_systems_package_and_the_registry_name_it() -> None:
    sources = [
        (path, name)
        for path in ROOT.rglob("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith((*OWN, *MAY_NAME))
    ]
    assert len(sources) > 200
    assert not [f"{name}:{line} {word}" for path, name in sources for line, word in _names(path)]


def test_of_packages_each_names_itself() -> None:
    for name, module in MODULES.items():
        package = ROOT.parent / module.replace(".", "/")
        files = [*package.rglob("*.py")] if package.is_dir() else [package.with_suffix(".py")]
        others = MODULES.keys() - {name}
        assert not [word for path in files for _, word in _names(path) if word in others]
