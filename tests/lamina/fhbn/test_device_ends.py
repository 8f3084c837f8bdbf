"""What a channel's device ends do with the library and their peer, over a library that only takes notes."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from fhbn_support import Both, segment

from lamina import _native, cuda_library, fhbn, gpu
from lamina._native import ShmSegment
from lamina.cuda_library import CudaError
from lamina.fhbn import device
from lamina.fhbn.control import Place
from lamina.fhbn.device import DeviceReceiver, DeviceSender
from lamina.fhbn.engines import engine, find


class FakeLibrary:
    """What the native library does, without a device: writes down what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.created: list[tuple[object, ...]] = []
        self.result = 0, ""
        self.on_abort: Callable[[], None] = lambda: None
        self.on_destroy: Callable[[], None] = lambda: None
        self.unraisable: list[object] = []
        monkeypatch.setattr(sys, "unraisablehook", self.unraisable.append)
        monkeypatch.setattr(threading, "excepthook", self.unraisable.append)
        monkeypatch.setattr(cuda_library, "call_status", self.call_status)
        monkeypatch.setattr(gpu, "is_emulated", lambda: True)

    def call_status(self, name: str, *arguments: object) -> tuple[int, str]:
        self.calls.append(name)
        {"channel_abort": self.on_abort, "channel_destroy": self.on_destroy}.get(name, lambda: None)()
        if name == "channel_create":
            channel, end = arguments
            assert isinstance(channel, device._Channel)
            self.created.append(tuple(getattr(channel, field) for field, _ in channel._fields_))
            ctypes.cast(end, ctypes.POINTER(ctypes.c_void_p))[0] = 1  # type: ignore[arg-type]
        return self.result if name == "channel_check" else (0, "")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    return FakeLibrary(monkeypatch)


def test_an_end_is_made_over_the_segment_and_closed_once(fake: FakeLibrary) -> None:
    ring = segment()
    with DeviceReceiver(ring, "worker 1", timeout_s=1.5) as receiver:
        receiver.check()
        receiver.abort()
    receiver.close()
    del receiver
    DeviceSender(ring, "worker 1", timeout_s=float("inf")).close()
    assert fake.created == [
        (ring.address, ring.nbytes, 1, 0, 1_500_000_000, b"worker 1"),
        (ring.address, ring.nbytes, 0, 0, 10**18, b"worker 1"),
    ]
    one = ["check_device", "channel_create", "channel_destroy"]
    assert fake.calls == [*one[:2], "channel_check", "channel_abort", one[2], *one]


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan")])
def test_a_senseless_timeout_of_a_device_end_is_refused(fake: FakeLibrary, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="a number of seconds, 0 or more"):
        DeviceSender(segment(), "worker 1", timeout_s=timeout_s)
    assert fake.created == []


def test_any_watched_descriptor_ends_the_waits(fake: FakeLibrary) -> None:
    for which in (0, 1):
        pairs = [socket.socketpair() for _ in range(2)]
        receiver = DeviceReceiver(segment(), "worker 1", [ours.fileno() for ours, _ in pairs], timeout_s=1)
        assert receiver._watch is not None
        pairs[which][1].close()
        receiver._watch._thread.join(30)
        assert fake.calls[-1] == "channel_abort"
        receiver.close()
        for pair in pairs:
            for end in pair:
                end.close()


def test_an_end_that_is_collected_in_its_own_watch(fake: FakeLibrary) -> None:
    """The watch's thread has the last reference to it, while it tells the library that the peer has ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ends = [DeviceReceiver(segment(), "worker 1", [ours.fileno()], timeout_s=1)]
        fake.on_abort = ends.clear
        watch = ends[0]._watch
        assert watch is not None
        theirs.close()
        watch._thread.join(30)
    assert not watch._thread.is_alive()
    assert fake.calls[-2:] == ["channel_abort", "channel_destroy"]
    assert fake.unraisable == []


def test_the_peer_sees_the_ring_closed_before_the_connection(fake: FakeLibrary) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        receiver = DeviceReceiver(segment(), "worker 1", [ours.fileno()], timeout_s=1)
        ours.close()
        received = []

        def look() -> None:
            try:
                received.append(theirs.recv(1))
            except BlockingIOError:
                received.append(None)

        fake.on_destroy = look
        receiver.close()
        look()
    assert received == [None, b""]


def test_a_closed_end_says_so(fake: FakeLibrary) -> None:
    sender = DeviceSender(segment(), "worker 1", timeout_s=1)
    sender.close()
    for call in (sender.check, sender.abort, sender.send):
        with pytest.raises(_native.ChannelClosedError, match="channel-closed"):
            call()
    assert fake.calls[-1] == "channel_destroy"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (4, _native.ChannelTimeoutError),
        (5, _native.PeerLostError),
        (6, _native.ChannelClosedError),
        (7, _native.ChannelCorruptedError),
        (8, _native.ChannelError),
        (9, _native.NicError),
        (3, CudaError),
    ],
)
def test_device_failures_have_their_own_error(fake: FakeLibrary, status: int, error: type[Exception]) -> None:
    with DeviceReceiver(segment(), "worker 1", timeout_s=1) as receiver:
        fake.result = status, "so it is"
        with pytest.raises(error, match="so it is") as raised:
            receiver.check()
        assert raised.type is error


def test_a_link_opens_ends_on_a_device(
    fake: FakeLibrary, links: tuple[fhbn.Link, fhbn.Link], both: Both
) -> None:
    ours, theirs = links
    sender, receiver = both(
        lambda: ours.device_sender("qkv"),
        lambda: theirs.device_receiver("qkv", message_bytes=100, slots=3, first_seqno=9),
    )
    assert (sender.engine, sender.first_seqno, receiver.first_seqno) == ("shm", 9, 9)
    sides = {(side, peer, nbytes) for _, nbytes, side, _, _, peer in fake.created}
    nbytes = ShmSegment.bytes_for(100, 4)
    assert sides == {
        (0, b"attention worker 0 (channel qkv)", nbytes),
        (1, b"model worker 0 (channel qkv)", nbytes),
    }
    assert "channel_abort" not in fake.calls
    ours.close()
    theirs.close()
    sender.close()
    # The other end hears of it, and looks then what the ring says.
    assert receiver._watch is not None
    receiver._watch._thread.join(30)
    assert fake.calls.count("channel_abort") == 1
    receiver.close()
    assert fake.calls.count("channel_destroy") == 2


def test_the_end_of_the_peer_ends_waits_on_the_device(
    fake: FakeLibrary, listener: fhbn.Listener, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """Its kernels wait for a host end in another process, which is killed."""
    child = spawn("producer", "shm")
    with listener.accept() as link:
        receiver = link.device_receiver("data", message_bytes=1 << 14)
    assert "channel_abort" not in fake.calls
    child.kill()
    assert receiver._watch is not None
    receiver._watch._thread.join(30)
    assert fake.calls[-1] == "channel_abort"
    receiver.close()


@pytest.mark.parametrize("network", ["gloo", "verbs"])
def test_an_engine_without_device_ends_is_an_error(links: tuple[fhbn.Link, fhbn.Link], network: str) -> None:
    with pytest.raises(fhbn.HandshakeError, match="channel-network-unusable"):
        links[0].device_receiver("a", message_bytes=64, network=network)


def test_a_nic_is_used_on_a_stream_only_on_request() -> None:
    here = Place.here()
    assert find("auto", here, here, on_stream=True).usable == ["shm"]
    assert find("softnic", here, here, on_stream=True).usable == ["softnic"]
    if engine("mlx5").missing(here, here) is None:
        assert find("mlx5", here, here, on_stream=True).usable == ["mlx5"]
