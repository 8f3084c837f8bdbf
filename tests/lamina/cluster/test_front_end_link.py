"""What a worker hears of the front end, and when it answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lamina.cluster import messages
from lamina.cluster.front_end_link import FrontEndLink
from lamina.cluster.messages import ArenaState, Failed, Order, Plan, Regroup
from lamina.fhbn import Listener, connect, new_secret
from lamina.fhbn.control import Control, Deadline
from lamina.pipeline import BatchDelta, Partition, Recorder

PLAN = Plan(0, 3, 1, False, BatchDelta())
MEETING = Regroup(0, 0, frozenset(), Partition("heads", 1, 1, 2, 2))


@pytest.fixture
def ends() -> Iterator[tuple[Control, Control]]:
    """The front end's connection to a worker, and the worker's."""
    secret = new_secret()
    with ThreadPoolExecutor(1) as other, Listener("front end", secret) as listener:
        begun = other.submit(connect, listener.address, name="attention worker 0", secret=secret)
        with listener.accept(30) as ours, begun.result() as theirs:
            yield ours.control, theirs.control


def test_a_check_follows_the_planned_iteration(
    ends: tuple[Control, Control],
) -> None:
    sender, receiver = ends
    front = FrontEndLink(receiver, Recorder(), MEETING)
    begun = False
    front.check = lambda: ArenaState(int(begun))
    messages.send(sender, PLAN, Deadline(30))
    messages.send(sender, Order("arena"), Deadline(30))
    # As a worker that waits for KV meanwhile.
    assert front.has_plan(0, 3, 30)
    front.plan(0, 3)
    begun = True
    front.look(30)
    assert messages.receive(sender, Deadline(30)) == ArenaState(1)


def test_messages_of_any_size(ends: tuple[Control, Control]) -> None:
    receiver, sender = ends
    sent = [Failed("short"), Failed("x" * (3 * messages.PART_BYTES + 5)), Failed("")]

    def send() -> None:
        for message in sent:
            messages.send(sender, message, Deadline(60))

    with ThreadPoolExecutor(1) as other:
        sending = other.submit(send)
        assert [messages.receive(receiver, Deadline(60)) for _ in sent] == sent
        sending.result()
