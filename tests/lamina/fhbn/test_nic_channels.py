"""Channels over a NIC: `softnic` anywhere, `verbs` where there is an RDMA device (in `make rdma-test`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from lamina import fhbn
from lamina._native import NicReceiver, NicSender
from lamina.fhbn.engines import engine
from lamina.fhbn.place import Place

Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Links = tuple[fhbn.Link, fhbn.Link]
Ends = tuple[NicSender, NicReceiver]
Open = Callable[..., Ends]


<<<<<<< HEAD
=======
@pytest.mark.parametrize("first_seqno", [0, 2**32 - 3, 2**64 - 5])
def test_what_is_sent_arrives(ends: Open, network: str, first_seqno: int) -> None:
    """With numbers that go beyond 64 bits too."""
    draws = random.Random(first_seqno)
    sender, receiver = ends(network, 1 << 16, first_seqno=first_seqno)
    assert (sender.engine, receiver.engine) == (network, network)
    for index in range(40):
        sizes = [draws.choice((0, 1, 63, 64, 65, 700, 4000)) for _ in range(draws.randrange(15))]
        message = [draws.randbytes(size) for size in sizes]
        sender.send(*message)
        with receiver.recv() as found:
            assert [bytes(part) for part in found] == message
            assert found.seqno == (first_seqno + index) % 2**64
    assert sender.next_seqno == receiver.next_seqno == receiver.consumed


def test_a_large_message_arrives_whole(ends: Open, network: str) -> None:
    sender, receiver = ends(network, 300_001, slots=2)
    for number in range(4):
        body = random.Random(number).randbytes(300_001)
        sender.send(body)
        with receiver.recv() as found:
            assert bytes(found[0]) == body


def test_a_full_ring_makes_the_sender_wait_and_loses_nothing(ends: Open, network: str) -> None:
    sender, receiver = ends(network, slots=4)
    for number in range(4):
        sender.send(bytes([number]))
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        sender.send(b"late", timeout_s=0.05)
    held = [receiver.recv() for _ in range(4)]
    assert [bytes(message[0]) for message in held] == [bytes([number]) for number in range(4)]
    for index in (2, 1, 3, 0):
        held[index].release()
    sender.send(b"4")
    assert bytes(receiver.recv()[0]) == b"4"


def test_nothing_in_time_leaves_the_channel_as_it_was(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    for timeout_s in (0, 0.05):
        with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
            receiver.recv(timeout_s)
    sender.send(b"a")
    assert receiver.ready(30)
    assert bytes(receiver.recv()[0]) == b"a"


@pytest.mark.long(but=["softnic"])
def test_closing_ends_the_channel_after_the_last_message(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    sender.send(b"last")
    sender.close()
    del sender
    gc.collect()
    assert bytes(receiver.recv()[0]) == b"last"
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()


@pytest.mark.long(but=["softnic"])
def test_a_closed_receiver_takes_no_more(ends: Open, network: str) -> None:
    sender, receiver = ends(network, slots=2)
    receiver.close()
    del receiver
    gc.collect()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        until_it_fails(sender)


>>>>>>> main
@pytest.mark.parametrize("where", [0, 8, 12, 16], ids=["seqno", "epoch", "parts", "bytes"])
def test_a_corrupted_header_is_told(
    ends: Open, network: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch, where: int
) -> None:
    """What a NIC has written is not believed: the sender's memory is not ours."""
    rings = []
    new_ring = module.new_ring

    def noted(*terms: Any) -> Any:
        rings.append(new_ring(*terms))
        return rings[-1]

    monkeypatch.setattr(module, "new_ring", noted)
    sender, receiver = ends(network)
    sender.send(b"good")
    assert receiver.ready(30)
    memory = os.fdopen(os.dup(rings[0].descriptor), "r+b", buffering=0)
    other = os.fdopen(os.dup(rings[1].descriptor), "r+b", buffering=0)
    with memory, other:
        for file in (memory, other):  # the ring's, and the mirror's, of which nobody reads it again
            file.seek(4096 + where)
            file.write(b"\xff" * 4)
    with pytest.raises(fhbn.ChannelCorruptedError):
        receiver.recv()


<<<<<<< HEAD
=======
def until_it_fails(sender: NicSender) -> None:
    """The ring has 4 slots: the fifth message waits."""
    for number in range(5):
        sender.send(bytes([number]), timeout_s=30)


@pytest.mark.long(but=["softnic"])
@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left(listener: fhbn.Listener, secret: bytes, both: Both, network: str) -> None:
    ours, theirs = both(
        lambda: listener.accept(30), lambda: fhbn.connect(listener.address, name="other", secret=secret)
    )
    with ours, theirs:
        sender, receiver = both(
            lambda: ours.sender("a", network=network),
            lambda: theirs.receiver("a", message_bytes=64, network=network),
        )
        sender.send(b"x")
        receiver.recv().release()
        sender.close()
        receiver.close()
    del sender, receiver
    gc.collect()


>>>>>>> main
def test_without_a_device_verbs_says_why(links: Links, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_RDMA_DEVICE", "none_0:1")
    with pytest.raises(fhbn.HandshakeError, match="channel-refused"):
        both(
            lambda: links[0].sender("a", network="verbs"),
            lambda: links[1].receiver("a", message_bytes=64, network="verbs"),
        )


@pytest.mark.parametrize("name", ["mlx5_0:", "mlx5_0:0", "mlx5_0:9", "mlx5_0:x", ":"])
def test_a_port_that_cannot_be_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_RDMA_DEVICE", name)
    here = Place.here()
    assert "names no port of an RDMA device" in str(engine("verbs").missing(here, here))
