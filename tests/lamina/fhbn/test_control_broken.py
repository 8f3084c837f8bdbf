"""What goes wrong on a control connection closes it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

from lamina import fhbn
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline

Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Pair = tuple[Control, Control]


def soon() -> Deadline:
    return Deadline(30)


def interrupted_saying(control: Control) -> None:
    """What the peer does not read, and so half of it is out when the signal comes."""
    control.say({"a": bytes(15 << 20)}, soon(), lambda: signal.raise_signal(signal.SIGALRM))


def say_for_ever(control: Control, deadline: Deadline) -> None:
    while True:
        control.say({"a": bytes(8 << 20)}, deadline)


def hear_for_ever(control: Control) -> None:
    while True:
        control.hear(soon())


def test_an_interruption_of_half_a_message_closes_it(pair: Pair) -> None:
    one, other = pair
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_saying(one)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert one.fileno() == -1
    with pytest.raises(fhbn.PeerLostError):
        hear_for_ever(other)


@pytest.mark.parametrize("call", ["send", "recv"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ConnectionResetError])
def test_whatever_breaks_it_closes_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, call: str, error: type[BaseException]
) -> None:
    one, _ = pair

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, call, fail)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else fhbn.PeerLostError):
        one.hear(soon()) if call == "recv" else one.say({}, soon())
    assert one.fileno() == -1


def test_a_peer_that_is_lost_closes_it(pair: Pair) -> None:
    one, other = pair
    other.close()
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        one.hear(soon())
    assert one.fileno() == -1


def test_a_message_that_was_not_taken_whole_closes_it(pair: Pair) -> None:
    one, _ = pair
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        say_for_ever(one, Deadline(0.05))
    assert one.fileno() == -1
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        one.say({}, soon())


def test_no_time_is_a_timeout_and_leaves_it_open(pair: Pair) -> None:
    one, other = pair
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        one.hear(Deadline(0))
    other.say({"a": 1}, soon())
    assert one.hear(Deadline(float("inf"))) == {"a": 1}


def test_what_is_no_time_is_refused() -> None:
    for senseless in (-1e-9, float("-inf"), float("nan")):
        with pytest.raises(ValueError, match="a number of seconds, 0 or more"):
            Deadline(senseless)
    assert Deadline(0).left_s == 0
    assert 0 < Deadline(0).wait_s < 1e-3
    with socket.socket() as waits:
        waits.settimeout(Deadline(float("inf")).wait_s)
