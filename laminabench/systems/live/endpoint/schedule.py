"""Who is sent when: at the trace's times, or as places in the system become free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

# So many that are late go out at once, before what has come in meanwhile is read: a turn of the loop that
# reads a thousand streams takes longer than the time between two requests.
AT_ONCE = 64
# A request by its place among the rows, and when it was due.
Serve = Callable[[int, float], Awaitable[None]]


async def at_times(due_s: Sequence[float], serve: Serve, idle: Callable[[], None]) -> None:
    """Each at its time, however many are under way; `idle` is called while there is time before the next."""
    under_way: set[asyncio.Future[None]] = set()
    broken: list[BaseException] = []

    def ended(task: asyncio.Future[None]) -> None:
        under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            broken.append(error)

    try:
        for place, due in enumerate(due_s):
            while (wait_s := due - time.monotonic()) > 0:
                if wait_s > 0.002:
                    idle()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            task: asyncio.Future[None] = asyncio.ensure_future(serve(place, due))
            under_way.add(task)
            task.add_done_callback(ended)
            if place % AT_ONCE == 0:
                await asyncio.sleep(0)
            if broken:
                raise broken[0]
        if under_way:
            await asyncio.gather(*under_way)
    finally:
        for left in under_way:
            left.cancel()


async def in_flight(requests: int, places: int, serve: Serve) -> None:
    """The next one whenever one of so many places is free."""
    waiting = iter(range(requests))

    async def place_taken() -> None:
        for place in waiting:
            await serve(place, time.monotonic())

    await asyncio.gather(*(place_taken() for _ in range(min(places, requests))))
