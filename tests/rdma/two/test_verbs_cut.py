"""A channel between two machines whose cable is cut in mid-stream: both notice, and a new one goes on."""

from __future__ import annotations

import random
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina import fhbn

CHILD = Path(__file__).parents[2] / "lamina" / "fhbn" / "child.py"
OTHER_END = runpy.run_path(str(CHILD))
MESSAGE_BYTES: int = OTHER_END["MESSAGE_BYTES"]
NOTICED_S = 60.0  # in an emulated machine; some 5 s on a real one

RunThere = Callable[..., Any]


def take(receiver: fhbn.Receiver) -> None:
    wanted = receiver.next_seqno
    with receiver.recv() as message:
        assert message.seqno == wanted
        assert [bytes(part) for part in message] == OTHER_END["parts_of"](wanted)


def send_next(sender: fhbn.Sender) -> None:
    sender.send(*OTHER_END["parts_of"](sender.next_seqno))


def for_ever(call: Callable[..., None], *arguments: object) -> None:
    while True:
        call(*arguments)


def start(run_there: RunThere, listener: fhbn.Listener, secret: bytes, *role: str) -> Any:
    child = run_there("python3", str(CHILD), role[0], listener.address, "verbs", *role[1:])
    child.say(secret.hex())
    child.end_input()
    return child


def test_what_is_sent_to_the_other_machine_arrives_across_cuts(
    near: str, run_there: RunThere, cable: Any
) -> None:
    secret, draws, wanted = fhbn.new_secret(), random.Random(3), 0
    with fhbn.Listener("here", secret, host=near) as listener:
        for cut in (True, False):
            child = start(run_there, listener, secret, "producer")
            with listener.accept(120) as link:
                receiver = link.receiver(
                    "data",
                    message_bytes=MESSAGE_BYTES,
                    network="verbs",
                    first_seqno=wanted,
                    timeout_s=NOTICED_S,
                )
            for _ in range(20 + draws.randrange(50)):
                take(receiver)
            if cut:
                cable.cut()
                begun = time.monotonic()
                with pytest.raises((fhbn.NicError, fhbn.PeerLostError)):
                    for_ever(take, receiver)
                assert time.monotonic() - begun < NOTICED_S
                cable.join()
            assert receiver.next_seqno > wanted
            wanted = receiver.next_seqno
            child.close()


def test_a_sender_hears_of_the_cut_from_its_nic(near: str, run_there: RunThere, cable: Any) -> None:
    secret = fhbn.new_secret()
    log = f"/tmp/noted-{secret.hex()[:8]}"
    with fhbn.Listener("here", secret, host=near) as listener:
        child = start(run_there, listener, secret, "consumer", log)
        with listener.accept(120) as link:
            sender = link.sender("data", network="verbs", timeout_s=NOTICED_S)
        for _ in range(20):
            send_next(sender)
        cable.cut()
        with pytest.raises((fhbn.NicError, fhbn.PeerLostError), match=r"has not answered|has ended"):
            for_ever(send_next, sender)
        cable.join()
        child.close()
        before = sender.consumed
        child = start(run_there, listener, secret, "consumer", log)
        with listener.accept(120) as link:
            sender = link.sender("data", network="verbs", timeout_s=NOTICED_S)
        # The other one says what it wants next: nothing is lost, and what it has noted is not sent again.
        assert sender.next_seqno >= before
        for _ in range(20):
            send_next(sender)
