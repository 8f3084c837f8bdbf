"""A client process: its part of a trace, offered to the server by the monotonic clock."""

from __future__ import annotations

import asyncio
import gc
import math
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laminabench.sim.spec import Mode
from laminabench.systems.live.endpoint.attempts import Attempts, Sent
from laminabench.systems.live.endpoint.progress import Progress, ProgressSampler
from laminabench.systems.live.endpoint.prompts import Prompts
from laminabench.systems.live.endpoint.records import Records
from laminabench.systems.live.endpoint.request import Accepted, request
from laminabench.systems.live.endpoint.setup import EndpointSetup
from laminabench.systems.live.endpoint.wire import Departures, Pool, more_files, resolved
from laminabench.systems.live.recent import EVERY_S
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.gc_paused import gc_paused

# Of requests that are made before they are due: making one takes as long as several tokens' arrival.
MOST_BYTES = 64 << 20
# So many that are late go out at once, before what has come in meanwhile is read.
AT_ONCE = 64
# A request by its place among the rows, and when it was due.
Serve = Callable[[int, float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Part:
    """The work of one client process."""

    setup: EndpointSetup
    accepted: Accepted
    prompts: Prompts
    trace: Trace
    rows: NDArray[np.int64]
    mode: Mode
    places: int  # in flight at once, unless requests come at their times


class Bodies:
    """The requests of these rows, to be taken in this order, made ahead up to so many bytes."""

    def __init__(self, rows: Sequence[int], make: Callable[[int], bytes]) -> None:
        self._rows, self._make = rows, make
        self._ready: deque[bytes] = deque()
        self._next = 0  # place in rows of the first that is not made
        self._bytes = 0

    def make_one(self) -> bool:
        """Make one prompt ahead; return whether there was one to make, and room for it."""
        if self._next == len(self._rows) or self._bytes >= MOST_BYTES:
            return False
        body = self._make(self._rows[self._next])
        self._next += 1
        self._bytes += len(body)
        self._ready.append(body)
        return True

    def take(self) -> bytes:
        """Return the body of the next row's request."""
        if not self._ready:
            self._next += 1
            return self._make(self._rows[self._next - 1])
        body = self._ready.popleft()
        self._bytes -= len(body)
        return body


@dataclass(slots=True)
class Client:
    """A part of a replay, on the event loop that it is run on."""

    part: Part
    attempts: Attempts
    bodies: Bodies
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""  # it ended early

    @classmethod
    def of(cls, part: Part) -> Client:
        more_files()
        setup, trace = part.setup, part.trace
        output = trace.output_tokens.tolist()

        def make(row: int) -> bytes:
            body = part.accepted.body(setup, part.prompts.of(row), output[row])
            return request(setup, setup.path, body)

        attempts = Attempts(
            pool_of(setup), Records(part.rows), setup.timeout, setup.first_byte_timeout, setup.retries
        )
        bodies = Bodies(part.rows.tolist(), make)
        while bodies.make_one():
            pass
        return cls(part, attempts, bodies)

    def stop(self, why: str) -> None:
        self.why = self.why or why
        self.stopped.set()

    async def run(self, began_s: float, report: Callable[[Progress], None]) -> None:
        """Run all of it, or until it is stopped; no task is left on the loop."""
        sampler = ProgressSampler(self.attempts.records)
        reporting = asyncio.ensure_future(_report_progress(sampler, report))
        work = asyncio.ensure_future(self._schedule(began_s))
        events = (self.stopped, self.attempts.unreachable)
        ends = [asyncio.ensure_future(event.wait()) for event in events]  # waits: concurrently with the work
        try:
            gc.collect()  # the last time: there are few cycles, and no time to look for them
            with gc_paused():
                await asyncio.wait([work, *ends], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            elif self.attempts.unreachable.is_set():
                self.why = self.why or self.attempts.why_unreachable
        finally:
            for task in (work, reporting, *ends):
                task.cancel()
            await asyncio.gather(work, reporting, *ends, return_exceptions=True)
            self.attempts.pool.close()
            # Aborted connections are notified in the loop's next turn.
            await asyncio.sleep(0)
        report(sampler.sample())

    async def _schedule(self, began_s: float) -> None:
        part = self.part
        await asyncio.sleep(max(0.0, began_s - time.monotonic()))
        if part.mode == "open":
            due_s = (part.trace.arrival_s[part.rows] + began_s).tolist()
            await at_times(due_s, self._serve, self.bodies.make_one, self.attempts.pool.departures)
        else:
            await in_flight(len(part.rows), part.places, self._serve)

    def _serve(self, place: int, due_s: float) -> Awaitable[None]:
        # Places are served in their order, so the next body is this one's.
        body = self.bodies.take()
        return self._served(place, body, self.attempts.begin(place, body, due_s))

    async def _served(self, place: int, body: bytes, begun: Sent | None) -> None:
        await self.attempts.serve(place, body, begun)
        self.bodies.make_one()


def pool_of(setup: EndpointSetup) -> Pool:
    """Return a pool of connections to a setup's server."""
    try:
        tls = ssl.create_default_context() if setup.address.secure else None
    except OSError as error:
        raise UserError(
            "endpoint-certificates", f"no CA certificates to verify the server with: {error}"
        ) from error
    return Pool(setup.address, resolved(setup.address), tls)


async def _report_progress(sampler: ProgressSampler, report: Callable[[Progress], None]) -> None:
    while True:
        report(sampler.sample())
        await asyncio.sleep(EVERY_S)


async def at_times(
    due_s: Sequence[float], serve: Serve, idle: Callable[[], object], departures: Departures
) -> None:
    """Send each request at its time; `idle` is called while there is time before the next one.

    The reader of answers also sends requests that become due.
    """
    under_way: set[asyncio.Future[None]] = set()
    broken: list[BaseException] = []
    places = iter(range(len(due_s)))
    place = next(places, None)

    def ended(task: asyncio.Future[None]) -> None:
        under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            broken.append(error)

    def go() -> None:
        nonlocal place
        for _ in range(AT_ONCE):
            if place is None or due_s[place] > time.monotonic():
                break
            task: asyncio.Future[None] = asyncio.ensure_future(serve(place, due_s[place]))
            under_way.add(task)
            task.add_done_callback(ended)
            place = next(places, None)
        departures.due_s = math.inf if place is None else due_s[place]

    departures.go, departures.due_s = go, due_s[0] if due_s else math.inf
    try:
        while place is not None:
            if (wait_s := due_s[place] - time.monotonic()) > 0:
                if wait_s > 0.002:
                    idle()
                await asyncio.sleep(max(0.0, due_s[place] - time.monotonic()))
            else:
                go()
                await asyncio.sleep(0)
            if broken:
                raise broken[0]
        if under_way:
            await asyncio.gather(*under_way)
    finally:
        departures.due_s = math.inf
        for left in under_way:
            left.cancel()


async def in_flight(requests: int, places: int, serve: Serve) -> None:
    """Send the next request whenever one of so many places is free."""
    waiting = iter(range(requests))

    async def place_taken() -> None:
        for place in waiting:
            await serve(place, time.monotonic())

    await asyncio.gather(*(place_taken() for _ in range(min(places, requests))))
