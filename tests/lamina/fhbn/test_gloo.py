"""Channels over gloo: what it cannot do, and what a signal, garbage or a hostile machine can do to one."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from fhbn_support import Both, Links, Open
from torch.distributed import ProcessGroupGloo

from lamina import fhbn
from lamina.fhbn import gloo, gloo_end
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Control, Deadline, Place
from lamina.fhbn.gloo_end import GlooReceiver, GlooSender
from lamina.fhbn.torch_distributed import HEADER, ControlStore, Framing, Spans, own_host

Ends = tuple[GlooSender, GlooReceiver]


@pytest.fixture
def ends(ends: Open) -> Open:
    """Open a channel over gloo between two ends in this process."""
    return partial(ends, "gloo")


@pytest.fixture
def gloo_ends(ends: Open) -> Iterator[Ends]:
    """One that is closed at the end of the test, and takes messages of two sends."""
    made: Any = ends(message_bytes=1 << 17)
    yield made
    for end in made:
        end.close()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_sender_learns_of_consumption_only_when_full(ends: Open) -> None:
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


def test_asking_whether_it_is_there_does_not_load_torch() -> None:
    program = (
        "import sys; from lamina.fhbn import control, gloo; here = control.Place.here();"
        "assert gloo.missing(here, here) is None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_torch_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    here = Place.here()
    assert gloo.missing(here, here) == "torch is not installed"


def test_only_recv_reports_the_peers_end(ends: Open) -> None:
    sender, receiver = ends()
    sender.close()
    assert not receiver.ready(0.01)
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()
    assert not receiver.ready()


@pytest.mark.parametrize(("sends", "where"), [(True, "_posted"), (True, "_wait"), (False, "_wait")])
def test_an_interrupted_call_breaks_the_channel(
    gloo_ends: Ends, monkeypatch: pytest.MonkeyPatch, sends: bool, where: str
) -> None:
    """Whether the other side will see a message is not known: the next one must not take its number."""
    sender, receiver = gloo_ends
    if not sends:
        sender.send(b"1")
    call: Callable[[], object] = partial(sender.send, b"1") if sends else receiver.recv
    with monkeypatch.context() as patched:
        patched.setattr(sender if sends else receiver, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        call()
    assert sender.next_seqno == (0 if sends else 1)


class Collecting(list[bool]):
    """A list in whose reading garbage is collected: another message is released in the middle of it."""

    release: Callable[[], None] | None = None

    def __getitem__(self, index: Any) -> Any:
        result = super().__getitem__(index)
        if result and self.release is not None:
            release, self.release = self.release, None
            release()
        return result


def test_a_message_may_end_while_another_ones_slot_is_opened(gloo_ends: Ends) -> None:
    sender, receiver = gloo_ends
    for number in range(4):
        sender.send(bytes([number]))
    stored = [receiver.recv() for _ in range(4)]
    given_back = receiver._given_back = Collecting(receiver._given_back)
    given_back.release = stored[1].release
    stored[0].release()
    assert receiver.consumed == 2
    # Each slot was opened once: what comes next lies where it is looked for.
    for number in (4, 5):
        sender.send(bytes([number]))
        assert bytes(receiver.recv()[0]) == bytes([number])


def test_on_one_machine_gloo_is_not_reached_from_others(
    controls: Callable[[str], tuple[Control, Control]], both: Both
) -> None:
    """Its connections are not authenticated."""
    one, other = controls("127.0.0.2")
    deadline = Deadline(30)
    hosts = both(lambda: own_host(one, deadline), lambda: own_host(other, deadline))
    assert hosts == ("127.0.0.1", "127.0.0.1")


def test_across_machines_gloo_listens_where_the_peer_has_come(
    controls: Callable[[str], tuple[Control, Control]], both: Both
) -> None:
    one, other = controls("127.0.0.2")
    deadline = Deadline(30)

    def elsewhere() -> None:
        one.send_message({"machine": "another"}, deadline)
        assert one.receive_message(deadline)["machine"] == Place.here().machine

    host, _ = both(lambda: own_host(other, deadline), elsewhere)
    assert host == "127.0.0.2"


def test_gloo_is_given_that_address(links: Links, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = links
    create = ProcessGroupGloo.create_device
    given: list[str] = []

    def noted(*, hostname: str, lazy_init: bool) -> Any:
        given.append(hostname)
        return create(hostname=hostname, lazy_init=lazy_init)

    monkeypatch.setattr(gloo_end.ProcessGroupGloo, "create_device", noted)
    both(
        lambda: ours.sender("qkv", network="gloo"),
        lambda: theirs.receiver("qkv", message_bytes=64, network="gloo"),
    )
    assert given == ["127.0.0.1", "127.0.0.1"]
    assert not torch.distributed.is_initialized()


def framing(epoch: int = 7) -> Framing:
    return Framing(ChannelSpec("qkv", 200, 4, epoch, 0, 1.0, 0.0), "peer")


@pytest.mark.parametrize(
    "header",
    [
        (1, 7, 0),  # another message than the next one
        (0, 8, 0),  # of another epoch
        (0, 7, 15),  # impossibly many parts
        *((0, 7, 1, 257), (0, 7, 2, 256, 1), (0, 7, 2, 2**64 - 1, 2**64 - 1)),  # larger than the channel's
    ],
)
def test_a_senseless_header_is_refused(header: tuple[int, ...]) -> None:
    packed = HEADER.pack(*header, *(0,) * (17 - len(header)))
    with pytest.raises(fhbn.ChannelCorruptedError, match="channel-corrupted"):
        framing().checked(memoryview(packed), 0)


def test_a_header_is_read_as_it_was_written() -> None:
    frame = memoryview(bytearray(HEADER.size))
    framing().write(frame, 2**64 - 1, [1, 64, 65])
    assert framing().checked(frame, 2**64 - 1) == Spans(((0, 1), (64, 128), (128, 193)), 256)
