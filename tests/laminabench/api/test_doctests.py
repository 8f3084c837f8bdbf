"""Every example of the Python API is run: of its docstrings, and of docs/python.md."""

from __future__ import annotations

import doctest
import importlib
import json
from pathlib import Path

import pytest

from laminabench.catalog.small_models import SMALL_MODELS

ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    *(f"laminabench.api.{name}" for name in ("comparing", "planning", "replay", "run", "sweeping")),
    "laminabench.traces.frames",
)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    failed, attempts = doctest.testmod(importlib.import_module(name))
    assert attempts
    assert failed == 0


@pytest.mark.parametrize("part", ["suite", pytest.param("engine", marks=pytest.mark.long)])
def test_the_page(part: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SMALL_MODELS["llama"]))
    suite, _, engine = (ROOT / "docs" / "python.md").read_text().partition("## The engine")
    text = {"suite": suite, "engine": engine}[part]
    (tmp_path / "page.md").write_text(text)
    failed, attempts = doctest.testfile(str(tmp_path / "page.md"), module_relative=False)
    assert attempts == text.count(">>> ") > 2
    assert failed == 0
