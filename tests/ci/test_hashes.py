"""What may be installed: every file by its hash, wherever CI, `make setup` or a release installs."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
LOCKED = sorted((ROOT / "ci" / "locked").glob("*.txt"))
PINS = [*LOCKED, *(ROOT / "baselines/vllm").glob("pins-*.txt"), ROOT / "ci/clients/requirements.txt"]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / "ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
def test_every_version_has_hashes(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    pins = [line for line in lines if not line.startswith(" ")]
    assert pins
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.+]+( ?;[^\\]+)? \\", line)] == []
    hashes = [line for line in lines if line.startswith(" ")]
    assert [line for line in hashes if not re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)] == []


def test_locked_versions_are_pinned_and_complete() -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "ci/constraints.txt").read_text().splitlines() if "==" in line
    )
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    locked: dict[str, dict[str, str]] = {}
    for path in LOCKED:
        result = re.findall(r"^([\w.-]+)==([\w.]+)", path.read_text(), re.MULTILINE)
        locked[path.stem] = {canonicalize_name(name): version for name, version in result}
    for versions in locked.values():
        assert {name: v for name, v in versions.items() if pinned.get(name, v) != v} == {}
    assert pinned.keys() - {name for versions in locked.values() for name in versions} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    core = [*project["dependencies"], *extras["report"], *extras["view"]]
    rest = [each for name, extra in extras.items() if name != "rdma" for each in extra]
    for requested, there in (
        (core, locked["core"]),
        (rest, locked["core"] | locked["engine"] | locked["dev"]),
    ):
        for requirement in map(Requirement, requested):
            version = there[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), requirement


def test_nothing_is_installed_without_a_hash() -> None:
    scripts = [*(ROOT / "ci").glob("*.sh"), ROOT / "Containerfile", *(ROOT / ".github/workflows").glob("*")]
    for path in scripts:
        text = path.read_text().replace("\\\n", " ")
        assert "pipx" not in text, path
        for line in text.splitlines():
            if re.search(r"pip\S*\"?( --\S+)* (install|download|wheel)\b|\blocked=", line) and line[0] != "#":
                assert re.search(r"--require-hashes|--no-index|PIP_NO_INDEX|--no-deps .*\.$", line), (
                    path,
                    line,
                )


def test_a_file_is_listed_for_machines_it_can_be_installed_on() -> None:
    hashes = load("hashes")

    def fits(wheel: str) -> bool:
        return bool(hashes.fits(parse_wheel_filename(wheel)[3], hashes.MACHINES))

    assert fits("a-1-py3-none-any.whl")
    assert fits("a-1-py2.py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl")
    assert fits("a-1-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert fits("a-1-cp39-abi3-macosx_11_0_universal2.whl")
    for wheel in ("cp310-cp310-linux_x86_64", "cp313-cp313t-linux_x86_64", "cp311-cp311-win_amd64"):
        assert not fits(f"a-1-{wheel}.whl")
    assert not fits("a-1-cp311-cp311-musllinux_1_2_x86_64.whl")
    assert not fits("a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl")
    assert hashes.needed(None) is None
    assert hashes.needed("sys_platform != 'win32'") is None
    assert hashes.needed("implementation_name == 'pypy'") == ""
    assert hashes.needed("sys_platform == 'linux'") == "sys_platform == 'linux'"
