"""Runs that several tests look at, and a place of their own for what they write."""

from __future__ import annotations

from pathlib import Path

import pytest

import laminabench as lb


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is downloaded or shared, and what is written without a full path is gone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAMINABENCH_TRACES", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def lamina() -> lb.Run:
    return lb.replay(
        "profile:azure-conv", system="lamina", deployment="2xh100+4xh20", costs="vllm-0.14", num_requests=200
    )


@pytest.fixture(scope="session")
def vllm() -> lb.Run:
    return lb.replay(
        "profile:azure-conv", system="vllm", deployment="4xh100", costs="vllm-0.14", num_requests=200
    )
