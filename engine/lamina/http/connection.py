"""HTTP/1.1 as it comes from the network: connections, each within limits, and all of them together."""

from __future__ import annotations

import asyncio
import resource
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from lamina.http.errors import ApiError
from lamina.http.exchange import Exchange, scope_of, status_line

# Connections that get "too many connections" and a moment to read it.
MOST_REJECTED = 256
# For everything else that is opened: weights, tokenizers, workers that take the place of lost ones.
RESERVED = 256
# What still comes of something refused is thrown away for so long, so that the client gets to read why: a
# connection that is closed with something unread is reset.
LINGER_S = 1.0
# A request line and headers, or whatever else of a request is no body; more is abuse.
MOST_HEADER_BYTES = 65_536
# Each costs some 200 bytes, however short it is.
MOST_HEADERS = 256
# What has come is parsed by so much, and not on while a request waits for the one before it: the shortest has
# 18 bytes and costs some 3,000.
PIECE_BYTES = 1024
# Of a body that the application does not take, after which nothing more is read.
MOST_BODY_BYTES = 65_536


class Room(NamedTuple):
    """The number of connections the process has descriptors for."""

    connections: int
    rejected: int  # in addition to them


def room(requested: int) -> Room:
    """Return the room for the connections wanted, or as many as can be; raise the process's limit to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = sum(1 for _ in Path("/proc/self/fd").iterdir())
    need = there + requested + MOST_REJECTED + RESERVED
    if hard != resource.RLIM_INFINITY:
        need = min(need, hard)
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    spare = need - there
    rejected, reserved = min(MOST_REJECTED, spare // 4), min(RESERVED, spare // 4)
    return Room(max(1, min(requested, spare - rejected - reserved)), rejected)


@dataclass(slots=True)
class Gate:
    """The state that all connections of a server share."""

    application: Any  # ASGI
    room: Room
    client_s: float  # for a request to come whole
    keep_alive_s: float  # between an answer and the next request
    connections: set[Connection] = field(default_factory=set)
    rejected: dict[Connection, None] = field(default_factory=dict)  # the longest there first
    paused: set[Connection] = field(default_factory=set)  # that nothing is read from
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # one for each exchange
    answers: int = 0  # sent so far

    def look(self) -> None:
        """Abort connections whose peer has left while nothing is read from them."""
        if not self.paused:
            return
        poll = select.poll()
        by_number = {each.transport.get_extra_info("socket").fileno(): each for each in self.paused}
        for number in by_number:
            poll.register(number, select.POLLRDHUP)
        for number, _ in poll.poll(0):
            by_number[number].transport.abort()

    def end(self) -> None:
        """Close connections that wait for a request, and the others after their answer."""
        for connection in list(self.connections):
            connection.end_after_answer()

    def abort(self) -> None:
        """Close all connections at once, and cancel what is done for them."""
        for connection in list(self.connections):
            connection.transport.abort()
        for task in self.tasks:
            task.cancel()


class _Timer:
    """A call that is made after some time, unless it is stopped or started anew before."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._handle is not None

    def start(self, after_s: float) -> None:
        self.stop()
        self._handle = asyncio.get_running_loop().call_later(after_s, self._end)

    def stop(self) -> None:
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._call()


class Connection(asyncio.Protocol):
    """One client's connection: requests, answered one after the other.

    Methods named on_... are called by the parser.
    """

    transport: asyncio.Transport
    peer: str

    def __init__(self, gate: Gate) -> None:
        self._gate, self._loop = gate, asyncio.get_running_loop()
        self._parser: Any = HttpRequestParser(self)
        # Data after a request with `Connection: close` is ignored.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.writable = asyncio.Event()  # not while much of what was sent is unread
        self.writable.set()
        self._to_call: list[Callable[[], None]] = []  # once much less is unread
        self.paused = False  # nothing is read while requests wait
        self._reading = True
        self._url, self._headers = b"", list[tuple[bytes, bytes]]()
        self._in_header = True
        self._bytes_outside_body = 0  # since the last that was of a body, or the request's begin
        self._unparsed = b""
        self._parse_error: ApiError | None = None  # with what is parsed
        self._refused = self._lost = False
        self._current: Exchange | None = None  # the request whose turn it is
        self._last: Exchange | None = None  # that has come
        self.waiting: deque[Exchange] = deque()
        self._request_timer = _Timer(self._too_slow)  # for a whole request
        self._idle_timer = _Timer(self._close)  # for the next request to begin
        self._reader_timer = _Timer(self._check_reader)  # for answers to be read
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # There is none of a client that has left already.
        self.peer = ":".join(map(str, (transport.get_extra_info("peername") or ())[:2]))
        gate = self._gate
        gate.connections.add(self)
        if len(gate.connections) - len(gate.rejected) <= gate.room.connections:
            self._expect_request()
            return
        gate.rejected[self] = None
        why = f"more than {gate.room.connections:,} connections are open: try later"
        self._refuse(ApiError(503, why, code="connections"))
        if len(gate.rejected) > gate.room.rejected:
            next(iter(gate.rejected)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - either way
        self._lost = True
        for timer in (self._request_timer, self._idle_timer, self._reader_timer):
            timer.stop()
        self._gate.connections.discard(self)
        self._gate.rejected.pop(self, None)
        self._gate.paused.discard(self)
        self._unparsed = b""
        self.waiting.clear()  # their turn does not come
        self._disconnect()
        self._set_writable()
        self._parser = None  # which refers to this object

    def _disconnect(self) -> None:
        """Notify the application, if it answers, that the client has disconnected."""
        if self._current and self._current.open:
            self._current.disconnect()

    # What has come is parsed.

    def data_received(self, data: bytes) -> None:
        if self._readable:
            self._unparsed += data
            self._parse()

    @property
    def _readable(self) -> bool:
        return not (self._refused or self._lost or self.transport.is_closing())

    def _parse(self) -> None:
        """Process received bytes, until a request waits for the one before it."""
        data, at = self._unparsed, 0
        while at < len(data) and not self.waiting and self._readable:
            piece = data[at : at + PIECE_BYTES]
            at += PIECE_BYTES
            self._bytes_outside_body += len(piece)
            self._idle_timer.stop()
            self._feed(piece)
            if self._bytes_outside_body > MOST_HEADER_BYTES and self._readable:
                where = "the header" if self._in_header else "what is between chunks"
                why = f"{where} is longer than {MOST_HEADER_BYTES:,} bytes"
                self._refuse(ApiError(431, why, code="header"))
        self._unparsed = data[at:] if self._readable else b""
        if self._readable:
            self._set_paused(bool(self.waiting))
            if not (self._request_timer.runs or self._idle_timer.runs or (self._last and self._last.open)):
                self._expect_request()  # what came begins no request, as empty lines

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except HttpParserUpgrade:
            pass  # to a protocol that is not spoken here: the request is answered as it is
        except HttpParserError:
            self._refuse(self._parse_error or ApiError(400, "this is no HTTP request", code="not_http"))

    def _set_paused(self, paused: bool) -> None:
        """Read nothing more for now, or read on."""
        if paused != self.paused:
            self.paused = paused
            (self._gate.paused.add if paused else self._gate.paused.discard)(self)
        if paused:
            self._set_reading(False)
        elif not self._last or self._last.complete or len(self._last.body) <= MOST_BODY_BYTES:
            self._set_reading(True)

    def read_on(self) -> None:
        """Read more of the body, unless requests wait."""
        if not self.paused:
            self._set_reading(True)

    def _set_reading(self, reading: bool) -> None:
        if reading != self._reading and not self.transport.is_closing():
            self._reading = reading
            (self.transport.resume_reading if reading else self.transport.pause_reading)()

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._in_header, self._bytes_outside_body = True, 0
        self._expect_request()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_header:
            self._parse_error = ApiError(
                400, "trailers of a body are not taken: leave them out", code="trailers"
            )
        elif len(self._headers) >= MOST_HEADERS:
            self._parse_error = ApiError(431, f"there are more than {MOST_HEADERS} headers", code="header")
        if self._parse_error:
            raise self._parse_error  # the parser cannot go on, and says so
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_header = False
        version = self._parser.get_http_version()
        scope = scope_of(self._parser.get_method(), self._url, version, self._headers)
        scope["state"] |= {"abort": self.transport.abort, "when_read": self._when_read}
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        self._last = Exchange(self, scope, keep_alive=keep_alive)
        if self._current and not self._current.complete:
            self.waiting.append(self._last)
        else:
            self._begin(self._last)

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        task = self._loop.create_task(exchange.run(self._gate.application))
        self._gate.tasks.add(task)
        task.add_done_callback(self._gate.tasks.discard)

    def on_body(self, body: bytes) -> None:
        assert self._last
        self._bytes_outside_body = 0
        self._last.take(body)
        if len(self._last.body) > MOST_BODY_BYTES:
            self._set_reading(False)

    def on_message_complete(self) -> None:
        assert self._last
        self._last.end_body()
        self._request_timer.stop()

    # Answers.

    def answered(self) -> None:
        """Continue after an answer: with the next request, or with waiting for one."""
        assert self._current
        self._gate.answers += 1
        if self.transport.is_closing():
            self._close()
            return
        self.read_on()
        if self.waiting:
            self._begin(self.waiting.popleft())
        else:
            self._idle_timer.start(self._gate.keep_alive_s)
        if self._last and self._last.complete and self._last.more_body:
            self._linger()  # answered before its body was read, whose size is unknown
        elif self.paused:
            self._loop.call_soon(self._parse)

    def end_after_answer(self) -> None:
        """Close the connection once it owes no answer."""
        if self._last and self._last.open:
            self._last.keep_alive = False
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        self.writable.clear()
        self._expect_reader()

    def resume_writing(self) -> None:
        self._reader_timer.stop()
        self._set_writable()

    def _set_writable(self) -> None:
        self.writable.set()
        calls, self._to_call = self._to_call, []
        for call in calls:
            call()

    def _when_read(self, call: Callable[[], None]) -> None:
        """Call this when most of what was sent is read, or the client has disconnected."""
        self._to_call.append(call)
        if self.writable.is_set():
            self._set_writable()

    # Limits.

    def _close(self) -> None:
        """Close once all that was sent is read."""
        self._request_timer.stop()
        self.transport.close()
        if not self._lost:
            self._expect_reader()

    def _expect_reader(self) -> None:
        """Let the client read some of what was sent within the limit, or give the connection up."""
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reader_timer.start(self._gate.client_s)

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._expect_reader()
        else:
            self.transport.abort()

    def _expect_request(self) -> None:
        """Let a whole request come within the limit."""
        self._request_timer.start(self._gate.client_s)

    def _too_slow(self) -> None:
        if self.paused:
            self._expect_request()  # the server itself is not reading
        elif self._current and not self._current.complete:
            self.transport.abort()  # in the middle of a body: its reader is notified
        elif not self.transport.is_closing():
            why = f"no whole request has come in {self._gate.client_s:g} s"
            self._refuse(ApiError(408, why, code="too_slow"))

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error in the place of whatever is under way, and close the connection."""
        if self._current and self._current.begun and not self._current.complete:
            self.transport.abort()  # in the middle of an answer there is no room for another
            return
        self._disconnect()
        body = error.body()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        self.transport.write(status_line(error.status) + head + body)
        self._linger()

    def _linger(self) -> None:
        """Send nothing more; throw away for a moment what still comes."""
        self._refused = True
        self._idle_timer.stop()
        self.paused = False
        self._gate.paused.discard(self)
        self._set_reading(True)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._request_timer.stop()
        self._request_timer = _Timer(self._close)
        self._request_timer.start(LINGER_S)
