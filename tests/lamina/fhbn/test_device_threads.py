"""Ends of channels in two threads of one process, whose kernels wait for each other on emulated GPUs."""

from __future__ import annotations

import random

import pytest
import torch
from emulated_gpu import take
from fhbn_support import Both, segment

from lamina._native import ShmReceiver, ShmSegment
from lamina.fhbn import ChannelClosedError, ChannelTimeoutError
from lamina.fhbn.device import DeviceReceiver, DeviceSender

pytestmark = pytest.mark.usefixtures("emulated")
MESSAGES = 200


def part(draws: random.Random) -> torch.Tensor:
    return torch.frombuffer(bytearray(draws.randbytes(draws.randrange(1, 3000))), dtype=torch.uint8)


def exchange(number: int, out: ShmSegment, into: ShmSegment, *, closes: bool) -> None:
    """One of the two threads. It knows what the other draws."""
    take(number)
    sent, awaited = random.Random(number), random.Random(1 - number)
    with (
        DeviceSender(out, f"worker {1 - number}", timeout_s=60) as sender,
        DeviceReceiver(into, f"worker {1 - number}", timeout_s=60) as receiver,
    ):
        for _ in range(MESSAGES):
            sender.send(part(sent))
            expected = part(awaited)
            result = torch.empty_like(expected)
            receiver.recv_into(result)
            receiver.check()
            assert torch.equal(result, expected)
        sender.check()
        if closes:
            return
        receiver.recv_into()
        for _ in range(2):
            with pytest.raises(ChannelClosedError, match="has closed the channel and all its messages"):
                receiver.check()
            receiver.recv_into()


def test_two_threads_exchange_messages_until_one_closes(both: Both) -> None:
    there, back = segment(), segment()
    both(lambda: exchange(0, there, back, closes=False), lambda: exchange(1, back, there, closes=True))


def test_a_failed_receive_sends_no_output() -> None:
    into, out, other = segment(), segment(), segment()
    fate = torch.zeros(1, dtype=torch.int32)
    part = torch.zeros(8, dtype=torch.uint8)
    peer = ShmReceiver(out, "worker 0", timeout_s=0, spin_s=0)
    with (
        DeviceReceiver(into, "worker 1", timeout_s=0.001) as receiver,
        DeviceReceiver(other, "worker 2", timeout_s=60) as later,
        DeviceSender(out, "worker 1", timeout_s=60) as sender,
    ):
        for end in (receiver, later, sender):
            end.share(fate)
        sender.send(part)
        with peer.recv():
            pass
        receiver.recv_into(part)  # nothing comes
        later.recv_into(part)  # and is not waited for
        sender.send(part)
        with pytest.raises(ChannelTimeoutError):
            receiver.check()
        with pytest.raises(ChannelTimeoutError):
            peer.recv()
        for end in (later, sender):  # which have done nothing wrong
            end.check()
