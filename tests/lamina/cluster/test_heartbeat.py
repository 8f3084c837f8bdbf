"""What a worker tells of itself: a machine that is busy with other things does not make it one that hangs."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina import fhbn
from lamina.cluster.heartbeat import Heartbeat, Starved

FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting for a core"
)


def _compete(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def _work(core: int, told: Connection) -> None:
    os.sched_setaffinity(0, {core})
    starved, began = Starved(), time.monotonic()
    while time.monotonic() - began < 2:
        pass
    starved.look()
    told.send((starved.since(began), starved.since(time.monotonic())))


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
    since_then, since_now = ours.recv()
    worker.join()
    assert 0.2 < since_then < 2
    assert since_now == 0


def test_sleeping_is_not_waiting_for_a_core() -> None:
    starved, began = Starved(), time.monotonic()
    time.sleep(1)
    starved.look()
    assert starved.since(began) < 0.5


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
