"""docs/errors.md's generator finds codes wherever the sources may write them."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

GENERATOR = Path(__file__).resolve().parents[2] / "ci" / "errors.py"
SOURCES = """
class UserError(CodedError): ...
class CheckFailedError(CodedError): ...
class OneCodeError(UserError):
    def __init__(self, why):
        super().__init__("run-odd", f"odd: {why}")

class LostError(UserError):
    def __init__(self, workers, code, why):
        super().__init__(code, why)

CODES: dict[type, str] = {native.GoneError: "channel-gone"}

def read(path, stale):
    raise UserError("run-stale" if stale else "run-damaged", f"{path.name} is {'old' if stale else 'cut'};"
                    f" it has {len(path)} bytes")

def require(holds, code, otherwise):
    if not holds:
        raise CheckFailedError(code, otherwise)

def use(x, error):
    require(x > 0, "x-negative", f"x is {x}")
    require(x < 9, otherwise="x is | too large", code="x-large")
    raise UserError(error.code, f"here: {error}") from error

def lose(names):
    raise LostError({1, 2}, "worker-lost", ", ".join(names))

def end(error):
    return End(INTERRUPTED, "interrupted", "interrupted") if error else End(DONE)

def forget():
    raise OneCodeError("why")
"""
EXPECTED = {
    "channel-gone": (["GoneError"], [2], []),
    "interrupted": ([], [130], ["interrupted"]),
    "run-damaged": (["UserError"], [2], ["{name} is old / cut; it has {path} bytes"]),
    "run-odd": (["OneCodeError"], [2], ["odd: {why}"]),
    "run-stale": (["UserError"], [2], ["{name} is old / cut; it has {path} bytes"]),
    "worker-lost": (["LostError"], [2], ["{names}"]),
    "x-large": (["CheckFailedError"], [1], ["x is | too large"]),
    "x-negative": (["CheckFailedError"], [1], ["x is {x}"]),
}


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_errors", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ci_errors", module)
    spec.loader.exec_module(module)
    return module


def test_codes_classes_exits_and_sentences(errors: ModuleType) -> None:
    sites = errors.Sites([errors.Module("a.py", ast.parse(SOURCES))])
    result = {
        code: (sorted(entry.classes), sorted(entry.exits), entry.sentences)
        for code, entry in sites.entries.items()
    }
    assert result == EXPECTED
    assert sites.uncoded == []
    assert "| `x-large` | `CheckFailedError` | 1 | x is \\| too large | a.py |\n" in sites.page()


def test_an_error_without_a_code_is_noticed(errors: ModuleType) -> None:
    source = (
        "class UserError(CodedError): ...\nraise UserError(f'{x} is bad')\nraise UserError('Bad', 'it is')\n"
    )
    assert errors.Sites([errors.Module("a.py", ast.parse(source))]).uncoded == ["a.py:2", "a.py:3"]
