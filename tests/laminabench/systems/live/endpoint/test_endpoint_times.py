"""When requests are sent: at their times, also while answers are read."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from laminabench.systems.live.endpoint import client, processes
from laminabench.systems.live.endpoint.client import AT_ONCE, at_times
from laminabench.systems.live.endpoint.processes import _serve_pipe
from laminabench.systems.live.endpoint.wire import Connection, Departures


class Served:
    """The order of service."""

    def __init__(self) -> None:
        self.places: list[int] = []

    def __call__(self, place: int, due_s: float) -> Coroutine[Any, Any, None]:
        assert time.monotonic() >= due_s
        self.places.append(place)
        return asyncio.sleep(0)


def test_what_is_due_goes_between_two_pieces_of_answers() -> None:
    """Though the loop has no turn in between."""
    served, departures = Served(), Departures()

    async def offer() -> None:
        begin = time.monotonic()
        offering = asyncio.ensure_future(at_times([begin, begin + 0.05], served, lambda: None, departures))
        await asyncio.sleep(0)
        assert served.places == [0]
        assert departures.due_s == begin + 0.05
        connection = Connection(lambda lost: None, departures)
        connection.data_received(b"nobody has asked")
        assert served.places == [0]
        while time.monotonic() < begin + 0.05:
            pass
        connection.data_received(b"nobody has asked")
        assert served.places == [0, 1]
        await offering

    asyncio.run(offer())


def test_late_ones_go_so_many_at_once_each_once_and_in_order() -> None:
    served, departures = Served(), Departures()
    requests = 2 * AT_ONCE + 5

    async def offer() -> None:
        offering = asyncio.ensure_future(
            at_times([time.monotonic()] * requests, served, lambda: None, departures)
        )
        await asyncio.sleep(0)
        assert len(served.places) == AT_ONCE
        departures.go()
        assert len(served.places) == 2 * AT_ONCE
        await offering

    asyncio.run(offer())
    assert served.places == [*range(requests)]


def test_the_pipe_of_a_client_process_takes_all_that_it_has_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop that looks whether something comes leaves it as it was: else a long answer was an error."""
    here, there = multiprocessing.Pipe()
    blocking: list[bool] = []

    async def run(*_: Any) -> None:
        blocking.append(os.get_blocking(there.fileno()))

    monkeypatch.setattr(client.Client, "of", lambda part: None)
    monkeypatch.setattr(processes, "_run", run)
    here.send(0.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_pipe(there, None))  # type: ignore[arg-type]
    assert (here.recv(), blocking) == ("ready", [True])
    here.close()
    there.close()
