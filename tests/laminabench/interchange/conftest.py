"""Files that the tools wrote, and Runs of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laminabench.interchange.importing import Given, Imported, imported
from laminabench.interchange.tools import read

DATA = Path(__file__).parent / "data"
# What each tool wrote, by the tool's name here.
WRITTEN = {"vllm-bench": "vllm.json", "aiperf": "aiperf", "guidellm": "guidellm.json"}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Where such a file is; large ones are packed."""

    def path(name: str) -> Path:
        packed = DATA / f"{name}.gz"
        if not packed.exists():
            return DATA / name
        (tmp_path / name).write_bytes(gzip.decompress(packed.read_bytes()))
        return tmp_path / name

    return path


@pytest.fixture
def changed(written: Any, tmp_path: Path) -> Callable[..., Path]:
    """A file of one document, changed by a function."""

    def path(name: str, change: Callable[[Any], Any]) -> Path:
        document = json.loads(written(name).read_text())
        target = tmp_path / f"changed-{name}"
        target.write_text(json.dumps(change(document) or document))
        return target

    return path


@pytest.fixture
def run_of(written: Any) -> Callable[..., Imported]:
    """The only benchmark of a file, as a Run that is not written."""

    def made(name: str, **given: Any) -> Imported:
        path = written(name)
        (result,) = read(path)
        return imported(result, path, Given(**given))

    return made


@pytest.fixture(params=list(WRITTEN))
def tool(request: pytest.FixtureRequest) -> str:
    """One of the tools."""
    name: str = request.param
    return name


@pytest.fixture
def result(tool: str, written: Any) -> Path:
    """What it wrote."""
    path: Path = written(WRITTEN[tool])
    return path
