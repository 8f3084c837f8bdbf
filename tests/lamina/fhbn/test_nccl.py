"""NCCL says why it cannot be used. That it moves messages has not been verified: it wants two GPUs."""

from __future__ import annotations

import pytest
import torch

from lamina import fhbn
from lamina.fhbn import nccl
from lamina.fhbn.place import Place

HERE = Place.here()
ELSEWHERE = Place("another machine", HERE.user)

without_nccl = pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")


@without_nccl
def test_a_build_without_nccl_is_told_apart() -> None:
    assert nccl.missing(HERE, HERE) == nccl.missing(HERE, ELSEWHERE) == "this build of torch has no NCCL"


def test_without_torch_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert nccl.missing(HERE, HERE) == "torch is not installed"


def test_two_processes_need_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nccl.missing(HERE, ELSEWHERE) == "there is no GPU that torch can use"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert nccl.missing(HERE, HERE) == (
        "the two processes have one GPU between them, and NCCL wants one for each"
    )
    assert nccl.missing(HERE, ELSEWHERE) is None


@without_nccl
def test_who_asks_for_it_is_told_why_not(links: tuple[fhbn.Link, fhbn.Link]) -> None:
    ours, _ = links
    with pytest.raises(fhbn.HandshakeError, match="nccl cannot be used because this build of torch has no"):
        ours.receiver("qkv", message_bytes=64, network="nccl")
