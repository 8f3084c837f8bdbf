"""Matrices of 64 rows: a second thread only costs, the more so where tests run in parallel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lamina.convert import kept


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is how conversions are made."""
    monkeypatch.setenv(kept.SWITCH, "off")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
