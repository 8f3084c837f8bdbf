"""Several client processes, each with every n-th request: one core may not be enough to offer a trace."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any, NamedTuple, TypeVar

import uvloop

from laminabench.systems.live.endpoint.client import Client, Part
from laminabench.systems.live.endpoint.progress import NO_PROGRESS, Progress, report
from laminabench.systems.live.endpoint.records import Noted
from laminabench.systems.live.recent import Recent
from laminabench.util.errors import UserError

# From the moment when all are ready to the first request.
HEAD_START_S = 0.2
_JOIN_S = 5.0
# How soon Ctrl-C is passed on to client processes.
_PATIENCE_S = 0.2
_STOPPED, _TERMINATED = "stopped by Ctrl-C", "terminated"
Result = TypeVar("Result")


class ClientResult(NamedTuple):
    """The result of one client process."""

    noted: Noted
    connections_opened: int
    counted_by: Mapping[str, int]
    first_errors: Mapping[str, str]
    busy: float  # its part of the time on a processor
    why: str  # it ended early
    at_s: float


def shards(part: Part, workers: int) -> list[Part]:
    """Assign every n-th request to each of n clients, with its part of the concurrency."""
    workers = min(workers, len(part.rows), part.places or len(part.rows))
    places = [part.places // workers + (number < part.places % workers) for number in range(workers)]
    return [
        replace(part, rows=part.rows[number::workers], places=places[number]) for number in range(workers)
    ]


def run_here(part: Part, recent: Recent, begun: Callable[[], None] = lambda: None) -> ClientResult:
    """Run a client in this process until it is done or Ctrl-C ends it; what it did until then is returned."""
    with loop_of_its_own() as runner:
        results = runner.run(_interruptible(part, recent, begun))
    if results.why == _TERMINATED:
        # The loop took the signal; raise it again for the process.
        signal.raise_signal(signal.SIGTERM)
    return results


async def _interruptible(part: Part, recent: Recent, begun: Callable[[], None]) -> ClientResult:
    client = Client.of(part)
    loop = asyncio.get_running_loop()
    # Only a main thread has signals.
    with contextlib.suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGINT, client.stop, _STOPPED)
        loop.add_signal_handler(signal.SIGTERM, client.stop, _TERMINATED)
    begun()
    began_s = time.monotonic() + HEAD_START_S
    return await _run(client, began_s, lambda progress: report(recent, began_s, [progress], progress.gaps))


async def _run(client: Client, began_s: float, report: Callable[[Progress], None]) -> ClientResult:
    before_s, busy_s = time.monotonic(), time.process_time()
    await client.run(began_s, report)
    ended_s = time.monotonic()
    busy = (time.process_time() - busy_s) / (ended_s - before_s)
    attempts = client.attempts
    return ClientResult(
        attempts.records.noted(began_s),
        attempts.pool.opened,
        attempts.counted_by,
        attempts.first_errors,
        busy,
        client.why,
        ended_s - began_s,
    )


def run_in_processes(
    parts: Sequence[Part], recent: Recent, begun: Callable[[], None] = lambda: None
) -> list[ClientResult]:
    """Run each client in a process of its own, all from the same moment."""
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
        return _together(pipes, recent, begun)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
                process.join(_JOIN_S)


def _together(pipes: list[Pipe], recent: Recent, begun: Callable[[], None]) -> list[ClientResult]:
    """Collect the progress of all processes until each has sent its result."""
    progress = [NO_PROGRESS] * len(pipes)
    results: dict[int, ClientResult] = {}

    def stop_others(number: int | None, why: str) -> None:
        for other, pipe in enumerate(pipes):
            if other != number and other not in results:
                with contextlib.suppress(BrokenPipeError):
                    pipe.send(why)

    for pipe in pipes:
        _received(pipe)
    began_s = time.monotonic() + HEAD_START_S
    for pipe in pipes:
        pipe.send(began_s)
    with _ctrl_c_noted() as ctrl_c:
        begun()
        while len(results) < len(pipes):
            left = [pipe for number, pipe in enumerate(pipes) if number not in results]
            for ready in wait(left, _PATIENCE_S):
                assert isinstance(ready, Pipe)
                number, message = pipes.index(ready), _received(ready)
                if isinstance(message, ClientResult):
                    results[number] = message
                    if message.why:
                        stop_others(number, message.why)
                else:
                    progress[number] = message
                    report(recent, began_s, progress, message.gaps)
            if ctrl_c.is_set():
                # They do not receive it themselves.
                stop_others(None, _STOPPED)
                ctrl_c.clear()
    return [results[number] for number in range(len(pipes))]


def _received(pipe: Pipe) -> Any:
    try:
        message = pipe.recv()  # waits: it is ready
    except (EOFError, ConnectionResetError):
        raise UserError(
            "endpoint-client-died",
            "a client process ended before its work was done, perhaps for lack of memory; "
            "try with --client-workers 1",
        ) from None
    if isinstance(message, Exception):
        raise message
    return message


@contextlib.contextmanager
def _ctrl_c_noted() -> Iterator[threading.Event]:
    """Note Ctrl-C instead of breaking off a half-read message."""
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
    """Run a client process: report that it is ready, wait for the start, send progress and the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            pipe.send(runner.run(_serve_pipe(pipe, part)))
    except UserError as error:
        pipe.send(error)
    except (BrokenPipeError, EOFError):
        pass  # the parent has ended
    finally:
        pipe.close()


async def _serve_pipe(pipe: Pipe, part: Part) -> ClientResult:
    client = Client.of(part)
    pipe.send("ready")
    began_s: float = pipe.recv()  # waits: its end is a message too
    loop = asyncio.get_running_loop()

    def on_message() -> None:
        try:
            client.stop(pipe.recv())  # waits: it is ready
        except (EOFError, ConnectionResetError):
            client.stop("the parent process has ended")
            loop.remove_reader(pipe.fileno())

    loop.add_reader(pipe.fileno(), on_message)
    # The loop has made it one that does not wait: what is sent at the end is more than a pipe holds.
    os.set_blocking(pipe.fileno(), True)
    try:
        return await _run(client, began_s, pipe.send)
    finally:
        loop.remove_reader(pipe.fileno())


@contextlib.contextmanager
def loop_of_its_own() -> Iterator[asyncio.Runner]:
    """Run an event loop, and restore the signal handlers that it replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            yield runner
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def until_terminated(work: Coroutine[Any, Any, Result]) -> Result:
    """Do it, or let SIGTERM end it at once: a loop that waits does not see what Python would do."""
    terminated = threading.Event()

    async def listening() -> Result:
        task = asyncio.ensure_future(work)

        def terminate() -> None:
            terminated.set()
            task.cancel()

        # Only a main thread has signals.
        with contextlib.suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await task

    try:
        with loop_of_its_own() as runner:
            return runner.run(listening())
    except asyncio.CancelledError:
        if terminated.is_set():
            # The retry policy decides now.
            signal.raise_signal(signal.SIGTERM)
        raise
