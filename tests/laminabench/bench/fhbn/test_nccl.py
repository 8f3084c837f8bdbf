"""Reasons why NCCL cannot be used. That it moves messages has not been verified: it needs two GPUs."""

from __future__ import annotations

import pytest
import torch

from lamina.fhbn.control import Place
from laminabench.bench.fhbn import nccl

HERE = Place.here()
ELSEWHERE = Place("another machine", HERE.user)


def test_without_torch_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert nccl.missing(HERE, HERE) == "torch is not installed"


def test_two_processes_need_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nccl.missing(HERE, ELSEWHERE) == "there is no GPU that torch can use"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert nccl.missing(HERE, HERE) is not None
    assert nccl.missing(HERE, ELSEWHERE) is None
