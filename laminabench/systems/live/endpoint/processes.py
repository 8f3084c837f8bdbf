"""Several client processes, each with every n-th request: one core may not be enough to offer a trace."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import uvloop

from laminabench.errors import UserError
from laminabench.systems.live.endpoint.client import Client, Part
from laminabench.systems.live.endpoint.loop import loop_of_its_own
from laminabench.systems.live.endpoint.records import Noted

# From the moment when all are ready to the first request.
HEAD_START_S = 0.2
_JOIN_S = 5.0
# How soon Ctrl-C is passed on to client processes.
_PATIENCE_S = 0.2
_STOPPED, _TERMINATED = "stopped by Ctrl-C", "terminated"


class Did(NamedTuple):
    """What one client did."""

    noted: Noted
    facts: dict[str, Any]
    why: str  # it ended early
    at_s: float


def shards(part: Part, workers: int) -> list[Part]:
    """Every n-th request for each of n clients, and its part of the places in the system."""
    workers = min(workers, len(part.rows), part.places or len(part.rows))
    places = [part.places // workers + (number < part.places % workers) for number in range(workers)]
    return [
        replace(part, rows=part.rows[number::workers], places=places[number]) for number in range(workers)
    ]


def here(part: Part, tell: Callable[[int, int], None]) -> Did:
    """In this process: Ctrl-C ends it, and what has been is kept."""
    with loop_of_its_own() as runner:
        did = runner.run(_interruptible(part, tell))
    if did.why == _TERMINATED:
        # The loop heard it in place of whoever decides what follows from it.
        signal.raise_signal(signal.SIGTERM)
    return did


async def _interruptible(part: Part, tell: Callable[[int, int], None]) -> Did:
    client = Client.of(part)
    client.bodies.prepare()
    loop = asyncio.get_running_loop()
    # Only a main thread has signals.
    with contextlib.suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGINT, client.stop, _STOPPED)
        loop.add_signal_handler(signal.SIGTERM, client.stop, _TERMINATED)
    return await _run(client, time.monotonic() + HEAD_START_S, tell)


async def _run(client: Client, began_s: float, tell: Callable[[int, int], None]) -> Did:
    before_s, busy_s = time.monotonic(), time.process_time()
    await client.run(began_s, tell)
    ended_s = time.monotonic()
    busy = (time.process_time() - busy_s) / (ended_s - before_s)
    return Did(client.noted(began_s), client.facts() | {"busy": busy}, client.why, ended_s - began_s)


def elsewhere(parts: Sequence[Part], tell: Callable[[int, int], None]) -> list[Did]:
    """Each in a process of its own, all beginning at the same moment."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for part in parts:
            ours, theirs = context.Pipe()
            process = context.Process(target=_child, args=(theirs, part), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        return _Together(pipes, tell).run()
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()


class _Together:
    """What the processes say, until all have said what they did."""

    def __init__(self, pipes: list[Pipe], tell: Callable[[int, int], None]) -> None:
        self._pipes, self._tell = pipes, tell
        self._counts = [(0, 0)] * len(pipes)
        self._did: dict[int, Did] = {}

    def run(self) -> list[Did]:
        for pipe in self._pipes:
            self._heard(pipe)
        began_s = time.monotonic() + HEAD_START_S
        for pipe in self._pipes:
            pipe.send(began_s)
        with _ctrl_c_noted() as ctrl_c:
            while len(self._did) < len(self._pipes):
                self._listen()
                if ctrl_c.is_set():
                    # They do not hear it themselves.
                    self._stop_others(None, _STOPPED)
                    ctrl_c.clear()
        return [self._did[number] for number in range(len(self._pipes))]

    def _listen(self) -> None:
        left = [pipe for number, pipe in enumerate(self._pipes) if number not in self._did]
        for ready in wait(left, _PATIENCE_S):
            assert isinstance(ready, Pipe)
            number, said = self._pipes.index(ready), self._heard(ready)
            if isinstance(said, Did):
                self._did[number] = said
                if said.why:
                    self._stop_others(number, said.why)
            else:
                self._counts[number] = said
                self._tell(sum(ended for ended, _ in self._counts), sum(made for _, made in self._counts))

    def _stop_others(self, number: int | None, why: str) -> None:
        for other, pipe in enumerate(self._pipes):
            if other != number and other not in self._did:
                with contextlib.suppress(BrokenPipeError):
                    pipe.send(why)

    def _heard(self, pipe: Pipe) -> Any:
        try:
            said = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise UserError(
                "endpoint-client-died",
                "a client process ended before its work was done, perhaps for want of memory; "
                "try with --client-workers 1",
            ) from None
        if isinstance(said, Exception):
            raise said
        return said


@contextlib.contextmanager
def _ctrl_c_noted() -> Iterator[threading.Event]:
    """Ctrl-C is noted, rather than to break off whatever is half read."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda *_: noted.set())
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _child(pipe: Pipe, part: Part) -> None:
    """A client process: ready, told when to begin, telling how far it is, and what it did at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pipe.send(runner.run(_commanded(pipe, part)))
    except UserError as error:
        pipe.send(error)
    except (BrokenPipeError, EOFError):
        pass  # nobody is there any more to do it for
    finally:
        pipe.close()


async def _commanded(pipe: Pipe, part: Part) -> Did:
    client = Client.of(part)
    client.bodies.prepare()
    pipe.send("ready")
    began_s: float = pipe.recv()
    loop = asyncio.get_running_loop()

    def told() -> None:
        try:
            client.stop(pipe.recv())
        except (EOFError, ConnectionResetError):
            client.stop("whoever started this is gone")
            loop.remove_reader(pipe.fileno())

    loop.add_reader(pipe.fileno(), told)
    try:
        return await _run(client, began_s, lambda ended, made: pipe.send((ended, made)))
    finally:
        loop.remove_reader(pipe.fileno())
