"""An event loop for a while, from which a signal is heard and after which signals are as they were."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


@contextlib.contextmanager
def loop_of_its_own() -> Iterator[asyncio.Runner]:
    """The loop's own ideas of signals end with it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            yield runner
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def until_terminated(work: Coroutine[Any, Any, Result]) -> Result:
    """Do it, or let SIGTERM end it at once: what Python would do is not heard by a loop that waits."""
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
            # Whoever decides what follows from it hears it now.
            signal.raise_signal(signal.SIGTERM)
        raise
