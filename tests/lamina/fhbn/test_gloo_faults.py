"""What a signal, a collection of garbage or a hostile machine can do to a channel over gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed import ProcessGroupGloo

from lamina import fhbn
from lamina.fhbn import gloo_end
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.gloo_receiver import GlooReceiver
from lamina.fhbn.gloo_sender import GlooSender
from lamina.fhbn.place import Place
from lamina.fhbn.torch_distributed import own_host

Links = tuple[fhbn.Link, fhbn.Link]
Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Ends = tuple[GlooSender, GlooReceiver]


@pytest.fixture
def ends(links: Links, both: Both) -> Iterator[Ends]:
    ours, theirs = links
    made: Ends = both(
        lambda: ours.sender("qkv", network="gloo"),
        lambda: theirs.receiver("qkv", message_bytes=1 << 17, network="gloo"),
    )
    yield made
    for end in made:
        end.close()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["_posted", "_wait"])
def test_an_interrupted_send_breaks_the_channel(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whether the other side will see the message is not known: the next one must not take its number."""
    sender, _ = ends
    with monkeypatch.context() as patched:
        patched.setattr(sender, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            sender.send(b"1")
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        sender.send(b"1")
    assert sender.next_seqno == 0


def test_an_interrupted_recv_breaks_the_channel(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = ends
    sender.send(b"1")
    with monkeypatch.context() as patched:
        patched.setattr(receiver, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            receiver.recv()
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        receiver.recv()


def test_a_mistake_of_the_caller_breaks_nothing(ends: Ends) -> None:
    sender, receiver = ends
    for call in (lambda: sender.send("text"), lambda: sender.send(bytes(1 << 18))):
        with pytest.raises((TypeError, ValueError)):
            call()
    sender.send(b"1")
    assert bytes(receiver.recv()[0]) == b"1"


class Collecting(list[bool]):
    """A list in whose reading garbage is collected: another message is released in the middle of it."""

    release: Callable[[], None] | None = None

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if found and self.release is not None:
            release, self.release = self.release, None
            release()
        return found


def test_a_message_may_end_while_another_ones_slot_is_opened(ends: Ends) -> None:
    sender, receiver = ends
    for number in range(4):
        sender.send(bytes([number]))
    held = [receiver.recv() for _ in range(4)]
    given_back = receiver._given_back = Collecting(receiver._given_back)
    given_back.release = held[1].release
    held[0].release()
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
        one.say({"machine": "another"}, deadline)
        assert one.hear(deadline)["machine"] == Place.here().machine

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
