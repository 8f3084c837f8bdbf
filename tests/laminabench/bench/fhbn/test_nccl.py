"""NCCL says why it cannot be used. That it moves messages has not been verified: it wants two GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lamina import fhbn
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Place
from lamina.fhbn.engines import find
from lamina.fhbn.torch_distributed import HEADER, RECEIVER, Framing, GroupEnd
from laminabench.bench.fhbn import nccl, options  # noqa: F401 - the latter adds NCCL to the engines
from laminabench.bench.fhbn.nccl_ends import NcclReceiver

HERE = Place.here()
ELSEWHERE = Place("another machine", HERE.user)

without_nccl = pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")


@without_nccl
def test_a_build_without_nccl_is_distinguished() -> None:
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
def test_asking_for_it_says_why_not() -> None:
    with pytest.raises(fhbn.HandshakeError, match="channel-network-unusable"):
        find("nccl", HERE, HERE)


def test_it_does_not_reveal_what_is_there() -> None:
    receiver = object.__new__(NcclReceiver)
    receiver.peer = "model worker 0"
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        receiver.ready()


class FakeGroup:
    """Puts a header where the next message is wanted, or fails."""

    def __init__(self, act: Callable[[memoryview], None]) -> None:
        self.act = act
        self.requested = 0

    def recv(self, tensors: list[Any], _other: int, _tag: int) -> Any:
        self.requested += 1
        return SimpleNamespace(wait=lambda _: self.act(tensors[0].numpy().data))


def receiver_over(group: FakeGroup) -> NcclReceiver:
    """One in memory of the host: there is no GPU for it to be made on."""
    spec = ChannelSpec("qkv", 64, 2, 7, 0, 1.0, 0.0)
    receiver = NcclReceiver.__new__(NcclReceiver)
    control: Any = SimpleNamespace(peer="worker 1")
    GroupEnd.__init__(receiver, control, spec, RECEIVER, partial(Framing, most_inline=4096))
    receiver._next = receiver._consumed = 0
    receiver._slots, receiver._given_back = 2, [False] * 2
    receiver._memory = torch.zeros((2, receiver._framing.frame_bytes), dtype=torch.uint8)
    receiver._host = torch.zeros(HEADER.size, dtype=torch.uint8)
    receiver._header = receiver._host.numpy().data
    receiver._group = group
    return receiver


def header(*values: int) -> Callable[[memoryview], None]:
    return lambda frame: HEADER.pack_into(frame, 0, *values, *(0,) * (17 - len(values)))


def fail(error: BaseException) -> Callable[[memoryview], None]:
    def act(_: memoryview) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "first", "later"),
    [
        (header(0, 7, 0xFFFFFFFF), fhbn.ChannelClosedError, "channel-closed"),
        (header(0, 8, 1), fhbn.ChannelCorruptedError, "channel-corrupted"),
        (fail(RuntimeError("NCCL")), fhbn.ChannelTimeoutError, "channel-unusable"),
        (fail(KeyboardInterrupt()), KeyboardInterrupt, "channel-unusable"),
    ],
)
def test_the_end_of_a_channel_is_remembered(
    act: Callable[[memoryview], None], first: type[BaseException], later: str
) -> None:
    group = FakeGroup(act)
    receiver = receiver_over(group)
    with pytest.raises(first):
        receiver.recv()
    with pytest.raises(fhbn.ChannelError, match=later):
        receiver.recv()
    assert group.requested == 1


def test_a_message_stays_until_it_is_released() -> None:
    group = FakeGroup(header(0, 7, 1, 3))
    receiver = receiver_over(group)
    with receiver.recv() as message:
        assert (len(message), message.seqno, message[0].numel(), receiver.consumed) == (1, 0, 3, 0)
    assert receiver.consumed == 1
