"""What a worker tells of itself: a machine that is busy with other things does not make it one that hangs."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from lamina import fhbn
from lamina.cluster import messages
from lamina.cluster.heartbeat import (
    ANSWER_S,
    FIRST_PIECES,
    MOST_GAP_S,
    SLOW_S,
    Effort,
    Heartbeat,
    HeartbeatMonitor,
)
from lamina.cluster.messages import Activity
from lamina.fhbn.control import Deadline
from lamina.fhbn.readiness import readable

FORK = multiprocessing.get_context("fork")
Links = tuple[fhbn.Link, fhbn.Link]


def _compete(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def _work(core: int, reported: Connection) -> None:
    os.sched_setaffinity(0, {core})
    effort, began = Effort(), time.monotonic()
    before_s, _ = effort.look()
    while time.monotonic() - began < 2:
        pass
    computed_s, blocked_s = effort.look()
    reported.send((computed_s - before_s, blocked_s))


@pytest.fixture
def core() -> Iterator[int]:
    """One that another process wants too."""
    core = max(os.sched_getaffinity(0))
    other = FORK.Process(target=_compete, args=(core,), daemon=True)
    other.start()
    yield core
    other.kill()
    other.join()


def test_waiting_for_a_core_is_no_work(core: int) -> None:
    ours, theirs = FORK.Pipe()
    worker = FORK.Process(target=_work, args=(core, theirs))
    worker.start()
    computed_s, blocked_s = ours.recv()
    worker.join()
    assert 0 < computed_s < 1.8
    assert blocked_s == 0


class Clock:
    """A clock and a thread's state, as a test sets them."""

    def __init__(self) -> None:
        self.now, self.computed_s, self.wants_core = 100.0, 7.0, False

    def __call__(self) -> float:
        return self.now

    def sampled(self) -> tuple[float, bool]:
        return self.computed_s, self.wants_core


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_counts_as_effort(clock: Clock) -> None:
    effort = Effort(clock, clock.sampled)
    assert effort.look() == (7.0, 0.0)
    clock.wants_core = True  # on an over-committed host, for a minute
    for _ in range(600):
        clock.now += 0.1
        assert effort.look() == (7.0, 0.0)
    clock.wants_core = False  # it is blocked
    for looks in range(1, 11):
        clock.now += 0.1
        assert effort.look() == (7.0, pytest.approx(0.1 * looks))
    clock.now += 30  # nothing of this process had a core, this thread perhaps neither
    assert effort.look() == (7.0, pytest.approx(1.0 + MOST_GAP_S))
    clock.computed_s += 0.001  # however little it advances, it does
    clock.now += 0.1
    assert effort.look() == (7.001, 0.0)


@pytest.fixture
def links() -> Iterator[Links]:
    """The front end's end and a worker's."""
    secret = fhbn.new_secret()
    with fhbn.Listener("front end", secret) as listener, ThreadPoolExecutor(1) as front_end:
        accepted = front_end.submit(listener.accept, 10)
        with (
            fhbn.connect(listener.address, name="model 0", secret=secret) as worker,
            accepted.result() as link,
        ):
            yield link, worker


def test_a_front_end_without_a_core_gives_nothing_up(clock: Clock, links: Links) -> None:
    monitor = HeartbeatMonitor(120.0, lambda _: False, clock)
    monitor.add(0, links[0].control)
    assert monitor.look() == {}
    clock.now += 60  # nothing here had a core, nor could the worker answer
    assert monitor.look() == {}
    result: dict[int, str] = {}
    for _ in range(int(ANSWER_S / 0.1)):
        clock.now += 0.1
        result |= monitor.look()
    assert list(result) == [0], "while the front end looks on, silence counts"


def test_a_worker_that_is_slow_without_a_core_is_not_lost(clock: Clock, links: Links) -> None:
    monitor = HeartbeatMonitor(120.0, lambda _: False, clock)
    monitor.add(0, links[0].control)
    # What the first pieces of work take says nothing: kernels are compiled.
    for busy_s, pieces, given_up in (
        (SLOW_S - 0.1, FIRST_PIECES, []),
        (SLOW_S + 0.1, FIRST_PIECES - 1, []),
        (SLOW_S + 0.1, FIRST_PIECES, [0]),
    ):
        assert monitor.look() == {}
        messages.send(links[1].control, Activity(1.0, busy_s, 0.001, pieces), Deadline(10))
        while not readable(links[0].control, 1):
            pass
        assert list(monitor.look()) == given_up


def test_a_worker_notices_that_the_front_end_hangs_up() -> None:
    """By the thread that answers: the main one may wait for a kernel, which this lets end."""
    secret, noticed = fhbn.new_secret(), threading.Event()
    with fhbn.Listener("front end", secret) as listener, ThreadPoolExecutor(1) as front_end:
        config: Any = SimpleNamespace(address=listener.address, name="model 0", secret=secret)
        accepted = front_end.submit(listener.accept, 10)
        with Heartbeat(config) as heartbeat, accepted.result() as link:
            heartbeat.hung_up = noticed.set
            link.control.close()
            assert noticed.wait(10)
