"""What a worker hears of the front end, and when it answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lamina.cluster.worker import FrontEnd
from lamina.fhbn import Listener, connect, new_secret
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.pipeline import Recorder

PLAN = {"batch": 0, "cycle": 3, "iteration": 1, "active": False}


@pytest.fixture
def ends() -> Iterator[tuple[Control, FrontEnd]]:
    """The front end's connection to a worker, and what the worker has of it."""
    secret = new_secret()
    with ThreadPoolExecutor(1) as other, Listener("front end", secret) as listener:
        begun = other.submit(connect, listener.address, name="attention worker 0", secret=secret)
        with listener.accept(30) as ours, begun.result() as theirs:
            yield ours.control, FrontEnd(theirs.control, Recorder())


def test_a_check_is_of_a_worker_that_has_begun_what_was_planned_before(
    ends: tuple[Control, FrontEnd],
) -> None:
    says, front = ends
    begun = False
    front.check = lambda: begun
    says.say(PLAN, Deadline(30))
    says.say({"check": True}, Deadline(30))
    # As one does who waits for KV meanwhile.
    assert front.has_plan(0, 3, 30)
    front.plan(0, 3)
    begun = True
    front.look(30)
    assert says.hear(Deadline(30)) == {"checked": True}
