"""Whether a message is there: asked by one who has other things to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from lamina import fhbn
from lamina.fhbn.frame import MOST_INLINE

Links = tuple[fhbn.Link, fhbn.Link]
Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Open = Callable[..., tuple[fhbn.Sender, fhbn.Receiver]]
LARGE = MOST_INLINE + 1000
NETWORKS = ("shm", "gloo")


@pytest.fixture
def ends(links: Links, both: Both) -> Open:
    """Open a channel between two ends in this process."""

    def call(network: str, **options: Any) -> tuple[fhbn.Sender, fhbn.Receiver]:
        ours, theirs = links
        found: tuple[fhbn.Sender, fhbn.Receiver] = both(
            lambda: ours.sender("qkv", network=network),
            lambda: theirs.receiver("qkv", message_bytes=LARGE, network=network, slots=2, **options),
        )
        return found

    return call


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("first_seqno", [0, 2**64 - 3])
@pytest.mark.parametrize("size", [0, 3, LARGE])
def test_it_can_be_asked_at_any_time(ends: Open, network: str, size: int, first_seqno: int) -> None:
    sender, receiver = ends(network, first_seqno=first_seqno)
    for _ in range(7):  # each slot several times
        assert not receiver.ready()
        assert not receiver.ready(0.001), "to ask leaves the channel as it was"
        sender.send(bytes(size))
        assert receiver.ready(10)
        assert receiver.ready()
        message = receiver.recv()
        assert not receiver.ready(), "the next one is not there, whether or not this one was released"
        message.release()


@pytest.mark.parametrize("network", NETWORKS)
def test_what_was_received_and_is_held_is_not_the_next_one(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    for _ in range(2):  # all slots
        sender.send(b"1")
    held = [receiver.recv(), receiver.recv()]
    assert not receiver.ready()
    for message in held:
        message.release()
    assert not receiver.ready()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_wait_to_be_told_ends_with_the_message(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    threading.Timer(0.05, sender.send, [b"1"]).start()
    assert receiver.ready(30)
    assert bytes(receiver.recv()[0]) == b"1"


def test_the_peers_end_is_no_message_and_ends_a_wait_for_one(ends: Open) -> None:
    sender, receiver = ends("shm")
    sender.send(b"1")
    sender.close()
    assert receiver.ready(1)
    receiver.recv().release()
    assert not receiver.ready()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.ready(1)
    receiver.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.ready(1)


def test_over_gloo_the_peers_end_is_told_by_recv_only(ends: Open) -> None:
    sender, receiver = ends("gloo")
    sender.close()
    assert not receiver.ready(0.01)
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()
    assert not receiver.ready()
