"""One request until it is answered or given up: its attempts, their time limits, and which are repeated."""

from __future__ import annotations

import asyncio
import email.utils
import math
import re
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from laminabench.runs.status import DONE, FAILED
from laminabench.systems.live.endpoint.records import Records
from laminabench.systems.live.endpoint.sse import Stream
from laminabench.systems.live.endpoint.wire import CLOSED, Connection, NoConnectionError, Pool

# Before the second attempt, doubled before each one after it, where the server does not say when.
PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
TOO_MANY = 429
_BROKEN = (CLOSED, "connection reset")
# Consecutive failed connections after which the server is considered unreachable.
LOST_AFTER = 16
_DECIMAL = re.compile(r"\d{1,6}(\.\d+)?")


class Sent(NamedTuple):
    """A request on its way, and the stream that parses its answer."""

    connection: Connection
    stream: Stream
    at_s: float


@dataclass(slots=True)
class Attempts:
    """A sender of requests, with retries where they make sense, that records their responses."""

    pool: Pool
    records: Records
    timeout_s: float
    first_byte_timeout_s: float
    retries: int
    unreachable: asyncio.Event = field(default_factory=asyncio.Event)  # no connection is accepted any more
    why_unreachable: str = ""
    first_errors: dict[str, str] = field(default_factory=dict)  # the first message of each kind
    counted_by: dict[str, int] = field(default_factory=dict)  # requests by how tokens in chunks were known
    _lost: int = 0

    def begin(self, place: int, request: bytes, due_s: float) -> Sent | None:
        """Send it at once, if a connection is free."""
        self.records.note(place, due_s=due_s)
        self.records.begun += 1
        connection = self.pool.free()
        return None if connection is None else self._send(connection, place, request)

    async def serve(self, place: int, request: bytes, begun: Sent | None) -> None:
        """Send it, again where that makes sense, and note what came of it."""
        records = self.records
        for attempt in range(self.retries + 1):
            records.note(place, attempts=attempt + 1)
            stream, error = await self._attempt(place, request, None if attempt else begun)
            if not error:
                break
            pause_s = _pause_s(stream, error, attempt)
            if pause_s is None or attempt == self.retries or self.unreachable.is_set():
                break
            await asyncio.sleep(min(pause_s, self.timeout_s))
        finished_s = float("nan") if error or stream is None else stream.finished_s
        records.note(place, error=error, status=FAILED if error else DONE, finished_s=finished_s)
        records.ended_places.append(place)

    async def once(self, request: bytes) -> Stream:
        """Make one attempt that is not counted; raise a NoConnectionError if the server cannot be reached."""
        connection = await self.pool.take()
        stream = await self._response(self._send(connection, 0, request))
        self.pool.give(connection)
        return stream

    async def _attempt(self, place: int, request: bytes, begun: Sent | None) -> tuple[Stream | None, str]:
        """Make one attempt; return its response, if any, and its error."""
        started_s = time.monotonic()
        try:
            sent = begun or self._send(await self.pool.take(), place, request)
        except NoConnectionError as error:
            self.records.sent(place, started_s)
            self._no_connection(error)
            return None, error.kind
        stream = await self._response(sent, started_s + self.timeout_s)
        self.pool.give(sent.connection)
        self._note(place, stream)
        return stream, stream.error

    def _send(self, connection: Connection, place: int, request: bytes) -> Sent:
        stream = Stream(self.records, place, asyncio.get_running_loop().create_future())
        at_s = connection.send_request(request, stream)
        self.records.sent(place, at_s)
        return Sent(connection, stream, at_s)

    async def _response(self, sent: Sent, until_s: float | None = None) -> Stream:
        """Wait for the response, as long as the time-outs allow."""
        loop = asyncio.get_running_loop()
        connection, stream, at_s = sent

        def too_late() -> None:
            connection.leave(f"time-out: not done in {self.timeout_s:g} s")

        def no_byte() -> None:
            if math.isnan(stream.headers_s):
                connection.leave(f"time-out: no answer in {self.first_byte_timeout_s:g} s")

        timers = [
            loop.call_later(self.first_byte_timeout_s, no_byte),
            loop.call_later(self.timeout_s if until_s is None else until_s - at_s, too_late),
        ]
        try:
            await stream.over
        finally:
            for timer in timers:
                timer.cancel()
            if not stream.over.done():
                connection.leave("stopped")
        return stream

    def _note(self, place: int, stream: Stream) -> None:
        self.records.note(
            place,
            headers_s=stream.headers_s,
            status_code=stream.status,
            prompt_counted=stream.prompt_counted,
            completion_counted=stream.completion_counted,
        )
        if stream.status >= 0:
            self._lost = 0
        if stream.error:
            # Before any cut: half a secret would not match.
            message = stream.plain.decode("utf-8", "replace").strip()
            self.first_errors.setdefault(stream.error, message)
        elif stream.counted_by:
            self.counted_by[stream.counted_by] = self.counted_by.get(stream.counted_by, 0) + 1

    def _no_connection(self, error: NoConnectionError) -> None:
        self.first_errors.setdefault(error.kind, str(error))
        self._lost += 1
        if self._lost >= LOST_AFTER and not self.unreachable.is_set():
            self.why_unreachable = f"the server took no connection {self._lost} times in a row: {error.kind}"
            self.unreachable.set()


def _pause_s(stream: Stream | None, error: str, attempt: int) -> float | None:
    """Return how long to wait before the next attempt, or None if there is to be none.

    A request that has begun to stream is never repeated: its tokens have been counted.
    """
    pause_s = min(PAUSE_S * float(2**attempt), LONGEST_PAUSE_S)
    if stream is None:
        return pause_s
    if stream.chunks_came or stream.status == 200:
        return None
    if stream.status < 0:
        return pause_s if error in _BROKEN else None
    if stream.status != TOO_MANY and stream.status < 500:
        return None
    requested_pause_s = _retry_after_s(stream.fields.get("retry-after", ""))
    return pause_s if requested_pause_s is None else requested_pause_s


def _retry_after_s(text: str) -> float | None:
    """Parse a Retry-After header, which has seconds or a date."""
    if _DECIMAL.fullmatch(text.strip()):
        return float(text)
    try:
        at = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, at.timestamp() - time.time())
