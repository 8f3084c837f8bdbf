"""A channel's ends on a GPU beside the host's, where there is a GPU; over mlx5 where a ConnectX is too."""

from __future__ import annotations

import pytest
import torch
from fhbn_support import Both, Links, Open, fill, segment

from lamina import _native, fhbn
from lamina._native import ShmSender
from lamina._softnic import SoftWriter
from lamina.fhbn import device
from lamina.fhbn.control import Place
from lamina.fhbn.device import DeviceReceiver, DeviceSender
from lamina.fhbn.engines import engine

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device for torch here"
)


@pytest.fixture(params=["shm", "softnic", "mlx5"])
def network(request: pytest.FixtureRequest) -> str:
    here = Place.here()
    why = engine(request.param).missing(here, here)
    if why is not None:
        pytest.skip(f"{request.param} cannot be used: {why}")
    return str(request.param)


@pytest.fixture
def from_device(links: Links, both: Both) -> Open:
    """A sender on the GPU and a receiver on the host."""
    return lambda network: both(
        lambda: links[0].device_sender("out", network=network, timeout_s=20),
        lambda: links[1].receiver("out", message_bytes=1 << 16, network=network, timeout_s=20),
    )


@pytest.fixture
def to_device(links: Links, both: Both) -> Open:
    """A sender on the host and a receiver on the GPU."""
    return lambda network: both(
        lambda: links[0].sender("back", network=network, timeout_s=20),
        lambda: links[1].device_receiver("back", message_bytes=1 << 16, network=network, timeout_s=20),
    )


def parts(seed: int) -> list[torch.Tensor]:
    """Of several types, sizes and alignments."""
    torch.manual_seed(seed)
    return [
        torch.randn((7, 16), device="cuda"),
        torch.randint(255, (101,), device="cuda", dtype=torch.uint8)[1:],
        torch.empty((0, 4), device="cuda"),
        torch.randn((1000,), device="cuda", dtype=torch.bfloat16),
    ]


def content(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).cpu().numpy().tobytes())


def test_a_device_sends_to_the_host_and_closes(from_device: Open, network: str) -> None:
    sender, receiver = from_device(network)
    for seed in range(200):  # more requests than the queue holds
        sent = parts(seed)
        sender.send(*sent)
        with receiver.recv() as message:
            got = [bytes(message[i]) for i in range(len(message))]
        assert got == [content(tensor) for tensor in sent]
        sender.check()
    sender.send(*sent)
    torch.cuda.synchronize()  # close() would end a wait for a slot
    sender.close()
    with receiver.recv() as message:
        assert len(message) == len(sent)
    with pytest.raises(fhbn.ChannelClosedError, match="has closed the channel and all its messages"):
        receiver.recv()


def test_a_device_receives_from_the_host_and_closes(to_device: Open, network: str) -> None:
    sender, receiver = to_device(network)
    for seed in range(200):
        sent = parts(seed)
        on_host = [tensor.cpu() for tensor in sent]  # now: the stream has to wait for the message
        into = [torch.zeros_like(tensor) for tensor in sent]
        receiver.recv_into(*into)  # before the message is there
        sender.send(*on_host)
        torch.cuda.synchronize()
        receiver.check()
        assert all(torch.equal(a, b) for a, b in zip(into, sent, strict=True))
    receiver.close()
    assert sender.consumed == 200
    with pytest.raises(fhbn.ChannelClosedError, match="has closed the channel and takes no more"):
        fill(sender)


def test_a_replayed_graph_posts_new_messages(from_device: Open, to_device: Open, network: str) -> None:
    sender, host_in = from_device(network)
    host_out, receiver = to_device(network)
    x, y = torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda")
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
    del graph
    sender.close()
    receiver.close()


def test_a_failed_nic_is_an_error(from_device: Open, writers: dict[str, SoftWriter]) -> None:
    sender, receiver = from_device("softnic")
    for writer in writers.values():
        writer.fail()
    sender.send(torch.zeros(4, device="cuda"))
    sender.drain()
    torch.cuda.synchronize()
    with pytest.raises(fhbn.NicError, match="has failed and sends nothing more"):
        sender.check()
    sender.close()
    receiver.close()


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
        receiver.recv_into(torch.zeros(4, device="cuda"))
        receiver.abort()
        torch.cuda.synchronize()
        with pytest.raises(_native.PeerLostError, match="the host has ended"):
            receiver.check()


def test_a_too_large_message_is_an_error() -> None:
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
