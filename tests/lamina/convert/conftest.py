"""Matrices of 64 rows: a second thread only costs, the more so where tests run in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lamina.convert import conversion, cut, disk_cache
from lamina.convert.trace import trace


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is how conversions are made."""
    monkeypatch.setenv(disk_cache.SWITCH, "off")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions and graphs of other tests are forgotten."""
    monkeypatch.setattr(conversion, "_memory_cache", {})
    monkeypatch.setattr(cut, "_graph", {})


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that have been traced."""
    models: list[Any] = []

    def note(model: Any) -> Any:
        models.append(model)
        return trace(model)

    monkeypatch.setattr(cut, "trace", note)
    return models
