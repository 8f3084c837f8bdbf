"""A channel between two machines whose cable is cut in mid-stream: both notice, and a new one goes on.

Their NICs notice: the connection over which the two have met is silent for longer before it is given up.
"""

from __future__ import annotations

import random
import runpy
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina import fhbn

CHILD = Path(__file__).parents[2] / "lamina" / "fhbn" / "child.py"
OTHER_END = runpy.run_path(str(CHILD))
MESSAGE_BYTES: int = OTHER_END["MESSAGE_BYTES"]
TIMEOUT_S = 60.0
# In an emulated machine. A NIC tries for two seconds, after a second in which it may have nothing to send.
NOTICED_S = 10.0

RunThere = Callable[..., Any]


def take(receiver: fhbn.Receiver) -> None:
    expected = receiver.next_seqno
    with receiver.recv() as message:
        assert message.seqno == expected
        assert [bytes(part) for part in message] == OTHER_END["parts_of"](expected)


def send_next(sender: fhbn.Sender) -> None:
    sender.send(*OTHER_END["parts_of"](sender.next_seqno))


def for_ever(call: Callable[..., None], *arguments: object) -> None:
    while True:
        call(*arguments)


def expect_error(call: Callable[..., None], *arguments: object) -> None:
    """By the NIC, and in time."""
    begun = time.monotonic()
    with pytest.raises(fhbn.NicError, match=r"has not answered, and sending again has not helped"):
        for_ever(call, *arguments)
    assert time.monotonic() - begun < NOTICED_S


def start(run_there: RunThere, listener: fhbn.Listener, secret: bytes, *role: str) -> Any:
    child = run_there("python3", str(CHILD), role[0], listener.address, "verbs", *role[1:])
    child.write(secret.hex())
    child.end_input()
    return child


def receiver_of(listener: fhbn.Listener, expected: int) -> fhbn.Receiver:
    with listener.accept(120) as link:
        return link.receiver(
            "data", message_bytes=MESSAGE_BYTES, network="verbs", first_seqno=expected, timeout_s=TIMEOUT_S
        )


def test_a_receiver_notices_the_cut_and_what_was_sent_arrives(
    near: str, run_there: RunThere, cable: Any
) -> None:
    """It gives back what it takes, and is not answered."""
    secret, draws, expected = fhbn.new_secret(), random.Random(3), 0
    with fhbn.Listener("here", secret, host=near) as listener:
        for cut in (True, False):
            child = start(run_there, listener, secret, "producer")
            receiver = receiver_of(listener, expected)
            for _ in range(20 + draws.randrange(50)):
                take(receiver)
            if cut:
                cable.cut()
                expect_error(take, receiver)
                cable.join()
            assert receiver.next_seqno > expected
            expected = receiver.next_seqno
            child.close()


def test_a_receiver_that_only_waits_notices_the_cut(near: str, run_there: RunThere, cable: Any) -> None:
    secret = fhbn.new_secret()
    with fhbn.Listener("here", secret, host=near) as listener:
        child = start(run_there, listener, secret, "producer")
        receiver = receiver_of(listener, 0)
        take(receiver)
        child.signal(signal.SIGSTOP)
        while receiver.ready(0.5):
            take(receiver)
        # Its NIC is still answered, over and over.
        with pytest.raises(fhbn.ChannelTimeoutError):
            receiver.recv(3)
        cable.cut()
        expect_error(receiver.recv)
        cable.join()


def test_a_sender_notices_the_cut(near: str, run_there: RunThere, cable: Any) -> None:
    secret = fhbn.new_secret()
    log = f"/tmp/noted-{secret.hex()[:8]}"
    with fhbn.Listener("here", secret, host=near) as listener:
        child = start(run_there, listener, secret, "consumer", log)
        with listener.accept(120) as link:
            sender = link.sender("data", network="verbs", timeout_s=TIMEOUT_S)
        for _ in range(20):
            send_next(sender)
        cable.cut()
        expect_error(send_next, sender)
        cable.join()
        child.close()
        before = sender.consumed
        child = start(run_there, listener, secret, "consumer", log)
        with listener.accept(120) as link:
            sender = link.sender("data", network="verbs", timeout_s=TIMEOUT_S)
        # The other one says what it wants next: nothing is lost, and what it has noted is not sent again.
        assert sender.next_seqno >= before
        for _ in range(20):
            send_next(sender)
