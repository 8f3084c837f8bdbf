"""A channel's ends on a GPU beside the host's, where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from lamina import _native
from lamina._native import ShmReceiver, ShmSegment, ShmSender
from lamina.fhbn import device
from lamina.fhbn.device import DeviceReceiver, DeviceSender

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device for torch here"
)


def segment(slots: int = 2) -> ShmSegment:
    return ShmSegment.create(1 << 16, slots, epoch=3, first_seqno=2**64 - 2)


def parts(seed: int) -> list[torch.Tensor]:
    """Of several types, sizes and alignments."""
    torch.manual_seed(seed)
    return [
        torch.randn((7, 16), device="cuda"),
        torch.randint(255, (101,), device="cuda", dtype=torch.uint8)[1:],
        torch.empty((0, 4), device="cuda"),
        torch.randn((1000,), device="cuda", dtype=torch.bfloat16),
    ]


def test_a_device_sends_to_the_host() -> None:
    ring = segment()
    receiver = ShmReceiver(ring, "the device", timeout_s=10, spin_s=0)
    with DeviceSender(ring, "the host", timeout_s=10) as sender:
        for seed in range(20):
            sent = parts(seed)
            sender.send(*sent)
            with receiver.recv() as message:
                got = [bytes(message[i]) for i in range(len(message))]
            assert got == [t.reshape(-1).view(torch.uint8).cpu().numpy().tobytes() for t in sent]
            sender.check()
    with pytest.raises(_native.ChannelClosedError, match="the device has closed"):
        receiver.recv()


def test_a_device_receives_from_the_host() -> None:
    ring = segment()
    sender = ShmSender(ring, "the device", timeout_s=10, spin_s=0)
    with DeviceReceiver(ring, "the host", timeout_s=10) as receiver:
        for seed in range(20):
            sent = parts(seed)
            into = [torch.zeros_like(t) for t in sent]
            receiver.recv_into(*into)  # before the message is there
            sender.send(*(t.cpu() for t in sent))
            torch.cuda.synchronize()
            receiver.check()
            assert all(torch.equal(a, b) for a, b in zip(into, sent, strict=True))


def test_a_replayed_graph_sends_and_receives_the_next_message() -> None:
    there, back = segment(), segment()
    with (
        DeviceSender(there, "the host", timeout_s=10) as sender,
        DeviceReceiver(back, "the host", timeout_s=10) as receiver,
    ):
        x, y = torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda")
        host_in = ShmReceiver(there, "the device", timeout_s=10, spin_s=0)
        host_out = ShmSender(back, "the device", timeout_s=10, spin_s=0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
            sender.send(x)
            receiver.recv_into(y)
            y.mul_(2)
        for step in range(1, 30):
            graph.replay()
            with host_in.recv() as message:
                host_out.send(bytes(message[0]))
            torch.cuda.synchronize()
            sender.check()
            receiver.check()
            assert y.tolist() == [2.0 * step] * 100


def test_waits_end_and_the_end_does_nothing_more() -> None:
    ring = segment()
    with DeviceReceiver(ring, "the host", timeout_s=0.05) as receiver:
        into = torch.zeros(4, device="cuda")
        receiver.recv_into(into)
        torch.cuda.synchronize()
        with pytest.raises(_native.ChannelTimeoutError, match="nothing came from the host in time"):
            receiver.check()
        ShmSender(ring, "the device", timeout_s=1, spin_s=0).send(bytes(16))
        receiver.recv_into(into.fill_(1))
        assert into.tolist() == [1.0] * 4
    ring = segment()
    with DeviceReceiver(ring, "the host", timeout_s=60) as receiver:
        receiver.poll()
        receiver.abort()
        torch.cuda.synchronize()
        with pytest.raises(_native.PeerLostError, match="the host has ended"):
            receiver.check()


def test_a_message_that_does_not_fit_is_told() -> None:
    ring = segment()
    sender = ShmSender(ring, "the device", timeout_s=1, spin_s=0)
    with DeviceReceiver(ring, "the host", timeout_s=1) as receiver:
        sender.send(bytes(17))
        receiver.recv_into(torch.zeros(4, device="cuda"))
        torch.cuda.synchronize()
        with pytest.raises(_native.ChannelError, match="has 17 bytes and its buffer has room for 16"):
            receiver.check()


def test_tensors_that_cannot_be_sent_as_they_are_are_refused() -> None:
    with pytest.raises(ValueError, match="must be contiguous"):
        device.buffers_of((torch.zeros((4, 4), device="cuda").T,), torch.device("cuda", 0))
    with (
        DeviceSender(segment(), "the host", timeout_s=1) as sender,
        pytest.raises(ValueError, match="open the channel with larger messages"),
    ):
        sender.send(torch.zeros(1 << 15, device="cuda"))
