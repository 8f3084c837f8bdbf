"""One client process: its part of a trace offered to the server, by the monotonic clock."""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from laminabench.errors import UserError
from laminabench.gc_paused import gc_paused
from laminabench.sim.spec import Mode
from laminabench.systems.live.endpoint.attempts import Attempts
from laminabench.systems.live.endpoint.bodies import Bodies
from laminabench.systems.live.endpoint.pool import Pool, more_files, resolved
from laminabench.systems.live.endpoint.prompts import Prompts
from laminabench.systems.live.endpoint.records import Noted, Records
from laminabench.systems.live.endpoint.request import Accepted, request
from laminabench.systems.live.endpoint.schedule import at_times, in_flight
from laminabench.systems.live.endpoint.setup import EndpointSetup
from laminabench.traces.table import Trace

# How often somebody who watches is told how far it is.
TELL_S = 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """What one client process has to do."""

    setup: EndpointSetup
    accepted: Accepted
    prompts: Prompts
    trace: Trace
    rows: NDArray[np.int64]
    mode: Mode
    places: int  # in flight at once, unless requests come at their times


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
            pool_of(setup), Records(part.rows), setup.timeout_s, setup.first_byte_timeout_s, setup.retries
        )
        return cls(part, attempts, Bodies(part.rows.tolist(), make))

    def stop(self, why: str) -> None:
        self.why = self.why or why
        self.stopped.set()

    async def run(self, began_s: float, tell: Callable[[int, int], None]) -> None:
        """All of it, or until it is stopped; nothing of it is on the loop afterwards."""
        records = self.attempts.records
        telling = asyncio.ensure_future(_telling(records, tell))
        work = asyncio.ensure_future(self._schedule(began_s))
        ends = [asyncio.ensure_future(event.wait()) for event in (self.stopped, self.attempts.gone)]
        try:
            gc.collect()  # the last time: there are few cycles, and no time to look for them
            with gc_paused():
                await asyncio.wait([work, *ends], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            elif self.attempts.gone.is_set():
                self.why = self.why or self.attempts.why_gone
        finally:
            for task in (work, telling, *ends):
                task.cancel()
            await asyncio.gather(work, telling, *ends, return_exceptions=True)
            self.attempts.pool.close()
            # Connections that were aborted are told of it in the loop's next turn.
            await asyncio.sleep(0)
        tell(records.ended, records.tokens)

    async def _schedule(self, began_s: float) -> None:
        part = self.part
        await asyncio.sleep(max(0.0, began_s - time.monotonic()))
        if part.mode == "open":
            due_s = (part.trace.arrival_s[part.rows] + began_s).tolist()
            await at_times(due_s, self._serve, self.bodies.make_one)
        else:
            await in_flight(len(part.rows), part.places, self._serve)

    async def _serve(self, place: int, due_s: float) -> None:
        # Places are served in their order, so the next body is this one's.
        await self.attempts.serve(place, self.bodies.take(), due_s)
        self.bodies.make_one()

    def noted(self, began_s: float) -> Noted:
        return self.attempts.records.noted(began_s)

    def facts(self) -> dict[str, object]:
        attempts = self.attempts
        return {
            "connections_opened": attempts.pool.opened,
            "told": attempts.told,
            "first_errors": attempts.first_errors,
        }


def pool_of(setup: EndpointSetup) -> Pool:
    """Connections to the server of a setup."""
    try:
        tls = ssl.create_default_context() if setup.address.secure else None
    except OSError as error:
        raise UserError(
            "endpoint-certificates", f"no certificates to check the server's by: {error}"
        ) from error
    return Pool(setup.address, resolved(setup.address), tls)


async def _telling(records: Records, tell: Callable[[int, int], None]) -> None:
    while True:
        tell(records.ended, records.tokens)
        await asyncio.sleep(TELL_S)
