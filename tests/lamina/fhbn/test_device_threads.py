"""Ends of channels in two threads of one process, whose kernels wait for each other on emulated GPUs."""

from __future__ import annotations

import random

import pytest
import torch
from emulated_gpu import take
from fhbn_support import Both, segment

from lamina._native import ShmSegment
from lamina.fhbn import ChannelClosedError
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
            wanted = part(awaited)
            found = torch.empty_like(wanted)
            receiver.recv_into(found)
            receiver.check()
            assert torch.equal(found, wanted)
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
