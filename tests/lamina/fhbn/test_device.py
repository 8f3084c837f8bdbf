"""A channel's device ends where there may be no device: their layouts, their words, what they ask for."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina import _native, cuda_library, fhbn
from lamina._native import ShmSegment
from lamina.cuda_library import CudaError
from lamina.fhbn import device
from lamina.fhbn.device import DeviceReceiver, DeviceSender

CSRC = Path(__file__).parents[3] / "csrc"


def segment(slots: int = 2) -> ShmSegment:
    return ShmSegment.create(1 << 16, slots, epoch=3, first_seqno=2**64 - 2)


def test_tensors_of_the_host_and_too_many_are_refused() -> None:
    with pytest.raises(TypeError, match="tensors in GPU memory"):
        device.buffers_of((torch.zeros(1),))
    with pytest.raises(ValueError, match="up to 14 parts, not 15"):
        device.buffers_of((torch.zeros(1),) * 15)


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    """The compiled kernels; without them, where there was no nvcc, the test is skipped."""
    try:
        yield cuda_library.library()
    except CudaError as missing:
        pytest.skip(str(missing))


@pytest.mark.usefixtures("library")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("end", [DeviceSender, DeviceReceiver])
def test_without_a_device_it_says_so_in_a_sentence(end: type[DeviceSender | DeviceReceiver]) -> None:
    with pytest.raises(CudaError, match=r"^(there is no CUDA device|this torch)[^\n]*$"):
        end(segment(), "the host", timeout_s=1)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"memory": None}, "memory is missing"),
        ({"bytes": 4095}, "too small for a ring"),
        ({"bytes": 4096}, "not as large as it says"),
        ({"side": 2}, "either sends or receives"),
        ({"timeout_ns": 0}, "some time to wait"),
        ({"peer": None}, "name is missing"),
    ],
)
def test_a_channel_that_makes_no_sense_is_refused(changed: dict[str, object], sentence: str) -> None:
    ring = segment()
    channel = device._Channel(ring.address, ring.nbytes, 0, 1, b"the host")
    for name, value in changed.items():
        setattr(channel, name, value)
    end = ctypes.c_void_p()
    with pytest.raises(ValueError, match=sentence):
        cuda_library.call("channel_create", channel, ctypes.byref(end))
    assert end.value is None


@pytest.mark.usefixtures("library")
def test_calls_without_an_end_are_refused() -> None:
    calls: dict[str, tuple[object, ...]] = {
        "send": (None, 0, None),
        "recv": (None, 0, None),
        "fetch": (None, 0, None),
        "poll": (None,),
        "give_back": (None,),
        "describe": (ctypes.byref(ctypes.c_void_p()),),
        "check": (),
        "abort": (),
        "destroy": (),
    }
    for name, arguments in calls.items():
        with pytest.raises(ValueError, match="the channel's end is missing"):
            cuda_library.call(f"channel_{name}", None, *arguments)


def test_structs_lie_as_the_header_has_them(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to ask")
    structs = {"lamina_cuda_channel": device._Channel, "lamina_cuda_channel_buffer": device._Buffer}
    asked, wanted = [], []
    for name, struct in structs.items():
        asked.append(f"sizeof({name})")
        wanted.append(ctypes.sizeof(struct))
        for field, _ in struct._fields_:
            asked.append(f"offsetof({name}, {field})")
            wanted.append(getattr(struct, field).offset)
    asked += ["LAMINA_CUDA_CHANNEL_PARTS", "LAMINA_CUDA_CHANNEL_SENDS", "LAMINA_CUDA_CHANNEL_RECEIVES"]
    wanted += [device.MOST_PARTS, device._SENDS, device._RECEIVES]
    for what in ("LATE", "LOST", "CLOSED", "CORRUPTED", "MISUSED"):
        asked.append(f"LAMINA_CUDA_CHANNEL_{what}")
    wanted += list(device._ERRORS)
    source = tmp_path / "ask.c"
    prints = "\n".join(f'printf("%d\\n", (int)({one}));' for one in asked)
    source.write_text(
        f'#include <stdio.h>\n#include "fhbn/cuda/channel.h"\nint main(void) {{ {prints} return 0; }}'
    )
    program = tmp_path / "ask"
    subprocess.run([compiler, "-std=c11", "-Werror", f"-I{CSRC}", source, "-o", program], check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in told.split()] == wanted


class FakeLibrary:
    """What the native library does, without a device: writes down what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.created: list[tuple[object, ...]] = []
        self.found = 0, ""
        monkeypatch.setattr(cuda_library, "ask", self.ask)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())

    def ask(self, name: str, *arguments: object) -> tuple[int, str]:
        self.calls.append(name)
        if name == "channel_create":
            channel, end = arguments
            assert isinstance(channel, device._Channel)
            self.created.append(tuple(getattr(channel, field) for field, _ in channel._fields_))
            ctypes.cast(end, ctypes.POINTER(ctypes.c_void_p))[0] = 1  # type: ignore[arg-type]
        return self.found if name == "channel_check" else (0, "")


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
        (ring.address, ring.nbytes, 1, 1_500_000_000, b"worker 1"),
        (ring.address, ring.nbytes, 0, 10**18, b"worker 1"),
    ]
    one = ["check_device", "channel_create", "channel_destroy"]
    assert fake.calls == [*one[:2], "channel_check", "channel_abort", one[2], *one]


def test_a_closed_end_says_so(fake: FakeLibrary) -> None:
    sender = DeviceSender(segment(), "worker 1", timeout_s=1)
    sender.close()
    for call in (sender.check, sender.abort, sender.send):
        with pytest.raises(_native.ChannelClosedError, match="with worker 1 was closed at this end"):
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
        (3, CudaError),
    ],
)
def test_what_a_device_finds_wrong_is_an_error_of_its_own(
    fake: FakeLibrary, status: int, error: type[Exception]
) -> None:
    with DeviceReceiver(segment(), "worker 1", timeout_s=1) as receiver:
        fake.found = status, "so it is"
        with pytest.raises(error, match="so it is") as raised:
            receiver.check()
        assert raised.type is error


def test_the_segment_tells_where_it_is() -> None:
    ring = segment()
    assert ring.address % 4096 == 0
    assert ctypes.string_at(ring.address, 8) == b"LAMHBN01"


Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]


def test_a_link_opens_ends_on_a_device(
    fake: FakeLibrary, links: tuple[fhbn.Link, fhbn.Link], both: Both
) -> None:
    ours, theirs = links
    sender, receiver = both(
        lambda: ours.device_sender("qkv"),
        lambda: theirs.device_receiver("qkv", message_bytes=100, slots=3, first_seqno=9),
    )
    assert (sender.engine, sender.first_seqno, receiver.first_seqno) == ("shm", 9, 9)
    sides = {(side, peer, nbytes) for _, nbytes, side, _, peer in fake.created}
    nbytes = ShmSegment.bytes_for(100, 4)
    assert sides == {
        (0, b"attention worker 0 (channel qkv)", nbytes),
        (1, b"model worker 0 (channel qkv)", nbytes),
    }
    sender.close()
    receiver.close()
    assert "channel_abort" not in fake.calls
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


def test_an_engine_without_device_ends_is_told(links: tuple[fhbn.Link, fhbn.Link]) -> None:
    with pytest.raises(
        fhbn.HandshakeError, match="gloo cannot be used because it has no ends on a GPU's stream"
    ):
        links[0].device_receiver("a", message_bytes=64, network="gloo")
