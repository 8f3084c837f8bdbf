"""Peers that die, fall silent or talk nonsense while a channel over a NIC is opened: nothing is left."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lamina import fhbn
from lamina.fhbn.control import Control

Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Meet = Callable[[], Any]
# What a peer says and hears before both have their ends.
STEPS = {"softnic": 6, "verbs": 5}
# What nothing of its address may be, and what else something of it may not be.
STRANGE = ("x", -1)
WRONG = {
    "softnic": {"memory": 1.0, "bytes": 1.0, "rkey": 1 << 32},
    "verbs": {"lid": 1 << 16, "gid": b"x", "queue_pair": 1 << 32, "mtu": 0, "memory": 1.0, "rkey": 1 << 32},
}

pytestmark = [
    pytest.mark.parametrize(
        "nic", ["verbs"] if os.environ.get("LAMINABENCH_RDMA_VM") else ["softnic", "verbs"], indirect=True
    ),
    pytest.mark.parametrize("ours_sends", [True, False], ids=["sender", "receiver"]),
    pytest.mark.usefixtures("nothing_left"),
]


class DiedError(Exception):
    """What the peer's own call ends with."""


def opening(link: fhbn.Link, network: str, *, sends: bool, timeout_s: float = 30) -> Callable[[], Any]:
    if sends:
        return lambda: link.sender("a", network=network, timeout_s=timeout_s)
    return lambda: link.receiver("a", message_bytes=64, network=network, timeout_s=timeout_s)


def before(control: Control, step: int, act: Callable[[], None]) -> None:
    """Have the peer do something when it is about to say or hear its message number `step`."""
    count = itertools.count()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(count) == step:
                act()
            return real(*arguments)

        return call

    for name in ("send_message", "receive_message"):
        setattr(control, name, counted(getattr(control, name)))


@pytest.mark.long(but=["softnic-*"])
def test_a_peer_that_dies_at_any_step(meet: Meet, both: Both, network: str, ours_sends: bool) -> None:
    for step in range(STEPS[network]):
        ours, theirs = meet()
        with ours, theirs:

            def die(theirs: fhbn.Link = theirs) -> None:
                theirs.close()
                raise DiedError

            before(theirs.control, step, die)
            with pytest.raises((fhbn.PeerLostError, fhbn.HandshakeError), match="channel-peer-lost") as error:
                both(opening(ours, network, sends=ours_sends), opening(theirs, network, sends=not ours_sends))
            assert "\n" not in str(error.value), step
            assert ours.control.fileno() == -1
        del error
    gc.collect()


@pytest.mark.long(but=["softnic-sender"])
def test_a_peer_that_falls_silent_at_any_step(meet: Meet, both: Both, network: str, ours_sends: bool) -> None:
    for step in range(STEPS[network]):
        ours, theirs = meet()
        with ours, theirs:
            over = threading.Event()

            def fall_silent(theirs: fhbn.Link = theirs, over: threading.Event = over) -> None:
                over.wait(60)
                theirs.close()
                raise DiedError

            def in_time(ours: fhbn.Link = ours, over: threading.Event = over) -> None:
                begun = time.monotonic()
                try:
                    opening(ours, network, sends=ours_sends, timeout_s=0.2)()
                finally:
                    over.set()
                    assert 0.2 <= time.monotonic() - begun < 10

            before(theirs.control, step, fall_silent)
            with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
                both(in_time, opening(theirs, network, sends=not ours_sends))
    gc.collect()


@pytest.mark.long(but=["softnic-*"])
def test_an_address_that_makes_no_sense_is_refused_aloud(
    meet: Meet, both: Both, network: str, ours_sends: bool
) -> None:
    wrong = WRONG[network]
    for name, strange in itertools.chain(wrong.items(), itertools.product(wrong, STRANGE)):
        ours, theirs = meet()
        with ours, theirs:
            send = theirs.control.send_message

            def falsely(
                message: dict[str, Any],
                *arguments: Any,
                send: Callable[..., None] = send,
                address: tuple[str, Any] = (name, strange),
            ) -> None:
                changed = dict([address]) if address[0] in message else {}
                send(message | changed, *arguments)

            theirs.control.send_message = falsely
            received: list[BaseException] = []

            def end(theirs: fhbn.Link = theirs, received: list[BaseException] = received) -> None:
                try:
                    opening(theirs, network, sends=not ours_sends)()
                except fhbn.ChannelError as error:
                    received.append(error)

            with pytest.raises(fhbn.ChannelError) as reported:
                both(opening(ours, network, sends=ours_sends), end)
            assert type(reported.value) in (fhbn.HandshakeError, fhbn.ChannelError), (name, strange)
            assert "\n" not in str(reported.value)
            assert str(reported.value) in str(received[0]), (name, strange)
            received.clear()
        del reported
    gc.collect()
