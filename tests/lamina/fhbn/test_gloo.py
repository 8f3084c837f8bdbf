"""Channels over gloo: what those in shared memory do, over TCP, but for what gloo cannot."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

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


@pytest.fixture
def ends(links: Links, both: Both) -> Open:
    """Open a channel between two ends in this process."""
    return lambda **options: both(
        lambda: links[0].sender("qkv", network="gloo"),
        lambda: links[1].receiver("qkv", message_bytes=4096, network="gloo", **options),
    )


def test_a_sender_is_told_only_where_to_write_next(ends: Open) -> None:
    sender, receiver = ends(slots=4, first_seqno=2**64 - 3)
    for _ in range(8):
        sender.send(b"x")
        receiver.recv().release()
    assert (receiver.consumed - sender.consumed) % 2**64 == 4


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

    monkeypatch.setattr(ControlStore, "_wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        both(
            lambda: ours.sender("qkv", network="gloo", timeout_s=1),
            lambda: theirs.receiver("qkv", message_bytes=64, network="gloo", timeout_s=1),
        )


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


def test_the_peers_end_is_told_by_recv_only(ends: Open) -> None:
    sender, receiver = ends()
    sender.close()
    assert not receiver.ready(0.01)
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()
    assert not receiver.ready()
