"""Channels over gloo: what those in shared memory do, over TCP, but for what gloo cannot."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lamina import fhbn
from lamina.fhbn import gloo
from lamina.fhbn.frame import MOST_INLINE
from lamina.fhbn.place import Place
from lamina.fhbn.torch_distributed import ControlStore

Links = tuple[fhbn.Link, fhbn.Link]
Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Open = Callable[..., tuple[fhbn.Sender, fhbn.Receiver]]
LARGE = MOST_INLINE + 1000


def several(times: int, call: Callable[[], None]) -> None:
    for _ in range(times):
        call()


@pytest.fixture
def ends(links: Links, both: Both) -> Open:
    """Open a channel between two ends in this process."""

    def call(message_bytes: int = 4096, **options: Any) -> tuple[fhbn.Sender, fhbn.Receiver]:
        ours, theirs = links
        sender, receiver = both(
            lambda: ours.sender("qkv", network="gloo"),
            lambda: theirs.receiver("qkv", message_bytes=message_bytes, network="gloo", **options),
        )
        assert (sender.engine, receiver.engine) == ("gloo", "gloo")
        return sender, receiver

    return call


@pytest.mark.parametrize("first_seqno", [0, 2**64 - 3])
def test_what_is_sent_arrives(ends: Open, first_seqno: int) -> None:
    sender, receiver = ends(3 * LARGE, first_seqno=first_seqno)
    messages = [
        [], [b"abc"], [b"a", b"", b"b" * 100], [bytes(range(256)) * (LARGE // 256)],
        [b"x" * LARGE, b"y" * LARGE], [b"z"] * fhbn.MOST_PARTS, [bytearray(b"w" * LARGE)], [b"end"],
    ]  # fmt: skip
    for index, message in enumerate(messages):
        sender.send(*message)
        with receiver.recv() as found:
            assert [bytes(part) for part in found] == message
            assert found.seqno == (first_seqno + index) % 2**64
    assert sender.next_seqno == receiver.next_seqno == receiver.consumed
    # gloo tells the sender where to write next, and nothing more.
    assert (receiver.consumed - sender.consumed) % 2**64 == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("rows", [3, LARGE])
def test_tensors_arrive(ends: Open, dtype: torch.dtype, rows: int) -> None:
    sender, receiver = ends(64 * LARGE)
    q, k = torch.randn(rows, 5).to(dtype), torch.randn(7).to(dtype)
    for _ in range(5):
        sender.send(q)
        sender.send(q, k.numpy() if dtype != torch.bfloat16 else k)
        for message in (receiver.recv(), receiver.recv()):
            with message:
                assert torch.equal(torch.frombuffer(message[0], dtype=dtype).view(rows, 5), q)
    assert torch.equal(torch.frombuffer(message[1], dtype=dtype), k)


@pytest.mark.parametrize("size", [8, LARGE])
def test_held_messages_are_not_overwritten(ends: Open, size: int) -> None:
    sender, receiver = ends(size, slots=4)
    for number in range(4):
        sender.send(bytes([number]) * size)
    held = [receiver.recv() for _ in range(4)]
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        receiver.recv()
    for index in (2, 1, 3):
        held[index].release()
        assert receiver.consumed == sender.consumed == 0
    assert bytes(held[0][0]) == bytes(size)
    held[0].release()
    held[0].release()  # once is enough
    assert receiver.consumed == 4
    for number in range(4, 8):
        sender.send(bytes([number]) * size)
    assert [bytes(receiver.recv()[0][:1]) for _ in range(4)] == [b"\4", b"\5", b"\6", b"\7"]
    assert sender.consumed == 4


def test_a_message_is_released_when_the_last_view_of_it_is_gone(ends: Open) -> None:
    sender, receiver = ends(slots=1)
    sender.send(b"abc")
    view = np.frombuffer(receiver.recv()[0], dtype=np.uint8)
    gc.collect()
    assert receiver.consumed == 0
    assert view.tobytes() == b"abc"
    del view
    assert receiver.consumed == 1


def test_nothing_runs_at_the_end_of_a_released_message(ends: Open) -> None:
    sender, receiver = ends()
    sender.send(b"abc")
    message = receiver.recv()
    assert weakref.getweakrefcount(message) == 1
    message.release()
    # Ctrl-C would be lost in what does.
    assert weakref.getweakrefcount(message) == 0
    assert not hasattr(message, "__del__")


def test_an_interruption_of_the_meeting_is_one(
    monkeypatch: pytest.MonkeyPatch, links: Links, both: Both
) -> None:
    ours, theirs = links

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ControlStore, "_hear_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        both(
            lambda: ours.sender("qkv", network="gloo", timeout_s=1),
            lambda: theirs.receiver("qkv", message_bytes=64, network="gloo", timeout_s=1),
        )


def test_a_view_outlives_both_ends(ends: Open) -> None:
    sender, receiver = ends()
    sender.send(b"abc")
    view = receiver.recv()[-1]
    del sender, receiver
    gc.collect()
    assert bytes(view) == b"abc"


@pytest.mark.parametrize(
    ("buffers", "error", "sentence"),
    [
        (
            [bytes(4097)],
            ValueError,
            r"the parts have 4097 bytes together and a message to attention worker 0 \(chan",
        ),
        ([b"x"] * 65, ValueError, r"a message has up to 14 parts, not 65"),
        ([bytes(4094), b"xx", b"y"], ValueError, r"the parts have 4097 bytes together"),
        (["text"], TypeError, r"contiguous arrays and tensors in host memory, and of bytes"),
        ([3], TypeError, r"contiguous arrays and tensors"),
        ([np.zeros((4, 4))[:, ::2]], ValueError, r"an array to send must be contiguous"),
        ([torch.zeros(4, 4)[:, ::2]], ValueError, r"a tensor to send must be contiguous"),
        ([torch.zeros(4, device="meta")], TypeError, r"a tensor to send must be in host memory"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_sends_nothing(
    ends: Open, buffers: list[Any], error: type[Exception], sentence: str
) -> None:
    sender, receiver = ends()
    with pytest.raises(error, match=sentence):
        sender.send(*buffers)
    assert sender.next_seqno == 0
    sender.send(np.zeros((2, 16), "f4, i4"), np.zeros((0, 3)))
    assert [len(part) for part in receiver.recv()] == [256, 0]


def test_a_timeout_breaks_the_channel_and_says_so(ends: Open) -> None:
    sender, receiver = ends(slots=1)
    sender.send(b"1")
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        sender.send(b"2", timeout_s=0.01)
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        sender.send(b"2")
    assert bytes(receiver.recv()[0]) == b"1"
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        receiver.recv()
    with pytest.raises(fhbn.PeerLostError):
        receiver.recv()


def test_nothing_in_time(ends: Open) -> None:
    _, receiver = ends()
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        receiver.recv(timeout_s=0)
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        receiver.recv()
    for senseless in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="a number of seconds, 0 or more"):
            receiver._deadline(senseless)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [3, LARGE])
def test_closing_ends_the_channel_after_the_last_message(ends: Open, size: int) -> None:
    for _ in range(5):
        sender, receiver = ends(size, slots=8)
        for number in range(12):
            sender.send(bytes([number]) * size)
            if number < 5:
                receiver.recv().release()
        sender.close()
        sender.close()
        with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
            sender.send(b"later")
        for number in range(5, 12):
            assert bytes(receiver.recv()[0]) == bytes([number]) * size
        with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
            receiver.recv()
        with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
            receiver.recv()


def test_a_closed_receiver_takes_no_more(ends: Open) -> None:
    sender, receiver = ends(slots=2)
    sender.send(b"1")
    message = receiver.recv()
    receiver.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()
    message.release()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        several(3, lambda: sender.send(b"2"))


def test_an_end_that_is_forgotten_is_closed(ends: Open) -> None:
    sender, receiver = ends()
    del sender
    with pytest.raises(fhbn.ChannelClosedError):
        receiver.recv()


def test_a_killed_peer_is_lost(
    listener: fhbn.Listener, spawn: Callable[..., subprocess.Popen[str]], take: Callable[..., None]
) -> None:
    child = spawn("producer", "gloo")
    with listener.accept() as link:
        receiver = link.receiver("data", message_bytes=1 << 14, network="gloo")
    for _ in range(20):
        take(receiver)
    child.kill()
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        several(5, lambda: take(receiver))


@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left(listener: fhbn.Listener, secret: bytes, both: Both) -> None:
    ours, theirs = both(listener.accept, lambda: fhbn.connect(listener.address, name="a", secret=secret))
    for _ in range(3):
        sender, receiver = both(
            lambda: ours.sender("qkv", network="gloo"),
            lambda: theirs.receiver("qkv", message_bytes=64, network="gloo"),
        )
        sender.send(b"abc")
        message = receiver.recv()
        sender.close()
        receiver.close()
        message.release()
    ours.close()
    theirs.close()


def test_the_global_group_is_left_alone(ends: Open) -> None:
    ends()
    assert not torch.distributed.is_initialized()


def test_asking_whether_it_is_there_does_not_load_torch() -> None:
    asking = (
        "import sys; from lamina.fhbn import gloo, place; here = place.Place.here();"
        "assert gloo.missing(here, here) is None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", asking], check=True)


def test_without_torch_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    here = Place.here()
    assert gloo.missing(here, here) == "torch is not installed"
