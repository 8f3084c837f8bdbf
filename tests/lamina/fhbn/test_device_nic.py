"""A device's end of a channel over a NIC, where the device is emulated (see tests/helpers/emulated_gpu.py).

The NIC is a softnic, and the peer a host's end.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import struct
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fhbn_support import SPEC, Both, Links, fill

from lamina import cuda_library, fhbn
from lamina._native import NicReceiver, NicSender, RingMemory
from lamina._softnic import SoftNic, SoftWriter
from lamina.fhbn import rings, softnic
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.device import DeviceReceiver, DeviceSender

pytestmark = pytest.mark.usefixtures("emulated")
PLACES = {"device": "dmabuf", "host": "host memory"}


@pytest.fixture(params=PLACES, autouse=True)
def ring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where rings of ends on a device have to be, and are."""
    monkeypatch.setenv("LAMINA_FHBN_RING", request.param)
    return PLACES[request.param]


def on_device(*parts: bytes) -> list[torch.Tensor]:
    return [torch.tensor(list(part), dtype=torch.uint8) for part in parts]


def received(receiver: DeviceReceiver, *like: bytes) -> list[bytes]:
    """The next message, into buffers as large as these parts."""
    into = on_device(*(bytes(len(part)) for part in like))
    receiver.recv_into(*into)
    receiver.check()
    return [bytes(part.numpy()) for part in into]


def message(seed: int) -> list[bytes]:
    draws = random.Random(seed)
    return [draws.randbytes(draws.choice((0, 1, 64, 700))) for _ in range(draws.randrange(15))]


@pytest.fixture
def from_device(links: Links, both: Both) -> Callable[..., tuple[DeviceSender, NicReceiver]]:
    def make(network: str = "softnic", **requested: Any) -> tuple[DeviceSender, NicReceiver]:
        made: tuple[DeviceSender, NicReceiver] = both(
            lambda: links[0].device_sender("data", network=network, **requested),
            lambda: links[1].receiver(
                "data", message_bytes=1 << 14, network=network, first_seqno=2**64 - 5, timeout_s=20
            ),
        )
        return made

    return make


@pytest.fixture
def to_device(links: Links, both: Both) -> Callable[..., tuple[NicSender, DeviceReceiver]]:
    def make(**requested: Any) -> tuple[NicSender, DeviceReceiver]:
        made: tuple[NicSender, DeviceReceiver] = both(
            lambda: links[0].sender("data", network="softnic", timeout_s=20),
            lambda: links[1].device_receiver("data", message_bytes=1 << 14, network="softnic", **requested),
        )
        return made

    return make


FromDevice = Callable[..., tuple[DeviceSender, NicReceiver]]
ToDevice = Callable[..., tuple[NicSender, DeviceReceiver]]


@pytest.mark.parametrize("habit", [{}, {"drops_blueflame": True}, {"reorders": True}])
def test_a_device_sends_over_a_nic_and_closes(
    from_device: FromDevice, monkeypatch: pytest.MonkeyPatch, habit: dict[str, bool]
) -> None:
    made = SoftNic(**habit, seed=3)
    monkeypatch.setattr(softnic, "nic", lambda: made)
    sender, receiver = from_device()
    assert (sender.engine, sender.first_seqno) == ("softnic", 2**64 - 5)
    for seed in range(150):  # more requests than the queue holds
        sent = message(seed)
        sender.send(*on_device(*sent))
        with receiver.recv() as result:
            assert [bytes(part) for part in result] == sent
    sender.check()
    sender.send(*on_device(b"the last"))
    sender.close()
    assert bytes(receiver.recv()[0]) == b"the last"
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()


def test_a_device_receives_over_a_nic_and_closes(to_device: ToDevice, ring: str) -> None:
    sender, receiver = to_device()
    assert (receiver.engine, receiver.ring.name) == ("softnic", ring)
    for seed in range(100):
        sent = message(seed)
        sender.send(*sent)
        assert received(receiver, *sent) == sent
    receiver.drain()
    receiver.check()
    assert sender.consumed == sender.next_seqno == 100
    receiver.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        fill(sender)


def test_two_devices_over_a_nic(links: Links, both: Both) -> None:
    sender, receiver = both(
        lambda: links[0].device_sender("data", network="softnic"),
        lambda: links[1].device_receiver("data", message_bytes=1 << 14, network="softnic", slots=1),
    )
    for seed in range(20):
        sent = message(seed)
        sender.send(*on_device(*sent))
        assert received(receiver, *sent) == sent
    sender.close()
    receiver.recv_into()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.check()


def test_sent_messages_are_received_after_the_sender_ends(to_device: ToDevice) -> None:
    """It takes no credits any more: that its queue pair is gone is not the receiver's failure."""
    sender, receiver = to_device()
    for number in range(3):
        sender.send(bytes([number]))
    sender.close()
    del sender
    gc.collect()
    for number in range(3):
        assert received(receiver, b"x") == [bytes([number])]
        receiver.drain()
        receiver.check()
    receiver.recv_into()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.check()


def test_a_lost_receiver_is_an_error_of_its_own(from_device: FromDevice) -> None:
    sender, receiver = from_device()
    receiver.close()
    del receiver
    gc.collect()
    sender.send(*on_device(b"x"))
    sender.drain()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        sender.check()


@pytest.mark.long(but=["*fail-*"])
@pytest.mark.parametrize(
    ("act", "timeout_s", "sentence"),
    [
        ("unplug", 1, r"has not answered, and sending again has not helped"),
        # Of the device's clock, which needs 20 s for a second of waiting.
        (
            "fail",
            0.1,
            r"the queue pair to attention worker 0 \(channel data\) has failed and sends nothing more",
        ),
    ],
)
def test_a_failed_nic_gets_no_more_requests(
    from_device: FromDevice, writers: dict[str, SoftWriter], act: str, timeout_s: float, sentence: str
) -> None:
    sender, receiver = from_device(timeout_s=timeout_s)
    getattr(writers["sender"], act)()
    for _ in range(5):  # the ring has four slots: the fifth message waits, and comes too late
        sender.send(*on_device(b"x"))
    sender.drain()
    for _ in range(2):
        with pytest.raises(fhbn.NicError, match=sentence):
            sender.check()
    posted = writers["sender"].counts["posted"]
    sender.close()
    assert writers["sender"].counts["posted"] == posted
    receiver.close()


def test_a_peer_that_ends_ends_the_waits(
    listener: fhbn.Listener,
    spawn: Callable[..., subprocess.Popen[str]],
    parts_of: Callable[[int], list[bytes]],
) -> None:
    child = spawn("producer", "softnic")
    with listener.accept() as link:
        receiver = link.device_receiver("data", message_bytes=1 << 14, network="softnic", timeout_s=1e6)
    child.kill()
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        take_all(receiver, parts_of)
    receiver.close()


def take_all(receiver: DeviceReceiver, parts_of: Callable[[int], list[bytes]]) -> None:
    """What a peer had sent comes before its end."""
    for seqno in range(10):
        received(receiver, *parts_of(seqno))


@pytest.mark.parametrize("network", ["shm", "softnic"])
def test_a_fork_leaves_a_device_end_alone(from_device: FromDevice, network: str) -> None:
    sender, receiver = from_device(network)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sender.send(*on_device(b"not mine"))
        except fhbn.ChannelError as error:
            code = 0 if "is a fork of that" in str(error) else 2
        finally:
            sender.close()
            del sender
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    sender.send(*on_device(b"mine"))
    sender.check()
    assert bytes(receiver.recv()[0]) == b"mine"
    with pytest.raises(fhbn.ChannelTimeoutError):  # and is open still
        receiver.recv(0.01)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the library, as they are made."""
    made: list[str] = []
    call_status = cuda_library.call_status

    def noted(name: str, *arguments: object) -> tuple[int, str]:
        made.append(name)
        return call_status(name, *arguments)

    monkeypatch.setattr(cuda_library, "call_status", noted)
    return made


@pytest.mark.parametrize("where", [0, 8, 12, 16], ids=["seqno", "epoch", "parts", "bytes"])
def test_a_corrupted_header_is_an_error(
    to_device: ToDevice, monkeypatch: pytest.MonkeyPatch, ring: str, where: int
) -> None:
    """What a NIC has written into a device's memory is believed as little as anywhere."""
    made: list[RingMemory] = []

    def noted(spec: ChannelSpec, gpu: str | None, register: Callable[[RingMemory], Any]) -> rings.Registered:
        result = rings.registered(spec, gpu, register)
        if gpu is not None:
            made.append(result.memory)
        return result

    monkeypatch.setattr(softnic, "registered", noted)
    sender, receiver = to_device()
    sender.send(b"good")
    assert received(receiver, b"good") == [b"good"]
    sender.send(b"good")
    assert made[0].on_device == (ring == "dmabuf")
    with mmap.mmap(made[0].descriptor, made[0].nbytes) as memory:
        until = time.monotonic() + 30
        published = struct.Struct("<Q")
        while published.unpack_from(memory, 128) != (2,):
            assert time.monotonic() < until, "the message has not come"
        slot = 4096 + (made[0].nbytes - 4096) // 4
        memory[slot + where : slot + where + 4] = b"\xff" * 4
    receiver.recv_into(*on_device(b"good"))
    with pytest.raises(fhbn.ChannelCorruptedError):
        receiver.check()


def test_an_end_is_closed_in_order(from_device: FromDevice, calls: list[str], ring: str) -> None:
    """Neither of the two waits for the other, and both have left the ring when its memory is unpinned."""
    sender, _ = from_device()
    sender.send(*on_device(b"x"))
    sender.close()
    sender.close()
    made = ["check_device", "ring_create"] if ring == "dmabuf" else []
    opened = [*made, "check_device", "channel_create", "nic_create", "channel_attach"]
    assert calls == [*opened, "channel_send", "channel_abort", "nic_destroy", "channel_destroy"]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Let the library refuse a call."""
    call_status = cuda_library.call_status

    def call(refused: str, sentence: str) -> None:
        def refusing(name: str, *arguments: object) -> tuple[int, str]:
            return (3, sentence) if name == refused else call_status(name, *arguments)

        monkeypatch.setattr(cuda_library, "call_status", refusing)

    return call


@pytest.mark.usefixtures("nothing_left")
def test_nothing_of_a_device_end_is_left(meet: Callable[[], Links], both: Both) -> None:
    ours, theirs = meet()
    with ours, theirs:
        sender, receiver = both(
            lambda: ours.device_sender("a", network="softnic"),
            lambda: theirs.device_receiver("a", message_bytes=64, network="softnic"),
        )
        sender.send(*on_device(b"x"))
        assert received(receiver, b"x") == [b"x"]
    del sender, receiver
    gc.collect()


def test_a_nic_that_cannot_be_reached_leaves_nothing(
    from_device: FromDevice, calls: list[str], refuse: Callable[[str, str], None]
) -> None:
    refuse("nic_create", "CUDA failed at mapping")
    with pytest.raises(cuda_library.CudaError, match="CUDA failed at mapping") as raised:
        from_device()
    assert calls[-3:] == ["check_device", "channel_create", "channel_destroy"]
    assert raised  # and with it whatever was being made: it was closed before


UNORDERED = "this GPU's kernels do not see what a NIC writes into its memory in order"


@pytest.mark.parametrize("ring", ["device"], indirect=True)
def test_a_ring_that_has_to_be_on_the_device_and_cannot_is_refused(
    to_device: ToDevice, refuse: Callable[[str, str], None]
) -> None:
    refuse("ring_create", UNORDERED)
    with pytest.raises(fhbn.HandshakeError, match=r"channel-(ring-on-host|refused)"):
        to_device()


@pytest.mark.parametrize("ring", ["device"], indirect=True)
def test_where_a_ring_can_only_be_on_the_host_it_says_why(
    to_device: ToDevice, refuse: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMINA_FHBN_RING")
    refuse("ring_create", UNORDERED)
    sender, receiver = to_device()
    assert receiver.ring == ("host memory", UNORDERED)
    sender.send(b"good")
    assert received(receiver, b"good") == [b"good"]


@pytest.mark.parametrize("ring", ["device"], indirect=True)
def test_a_softnic_takes_no_address_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its file can be mapped: nvidia-peermem, the second way, is for NICs."""
    requests = []

    def register(memory: RingMemory) -> SoftWriter:
        requests.append(memory.descriptor >= 0)
        if memory.descriptor >= 0:
            raise fhbn.ChannelError("no dmabuf today")
        return SoftWriter(softnic.nic(), memory, mirror=False)

    with pytest.raises(
        fhbn.HandshakeError, match="is device, and no dmabuf today; a softnic reaches a GPU's memory by"
    ):
        rings.registered(SPEC, "cuda", register)
    assert requests == [True, False]
    monkeypatch.setenv("LAMINA_FHBN_RING", "gpu")
    with pytest.raises(fhbn.HandshakeError, match="LAMINA_FHBN_RING is 'gpu': give host or device"):
        rings.registered(SPEC, "cuda", register)
