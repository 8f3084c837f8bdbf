"""HTTP as it comes from the network: uvicorn's connections, each within limits, and all of them together."""

from __future__ import annotations

import asyncio
import resource
import select
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lamina.http.answers import ApiError

# Connections that are told that there are too many, for the moment that they have to read it.
MOST_TURNED_AWAY = 256
# For everything else that is opened: weights, tokenizers, workers that take the place of lost ones.
KEPT = 256


class Room(NamedTuple):
    """How many connections the process has descriptors for."""

    connections: int
    turned_away: int  # beside them


def room(wanted: int) -> Room:
    """Return the room for the connections wanted, or as many as can be; raise the process's limit to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = sum(1 for _ in Path("/proc/self/fd").iterdir())
    need = there + wanted + MOST_TURNED_AWAY + KEPT
    if hard != resource.RLIM_INFINITY:
        need = min(need, hard)
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    spare = need - there
    turned_away, kept = min(MOST_TURNED_AWAY, spare // 4), min(KEPT, spare // 4)
    return Room(max(1, min(wanted, spare - turned_away - kept)), turned_away)


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


class _Flow(FlowControl):
    """Reads nothing while requests wait, whatever the reader of a body would like."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


@dataclass(slots=True)
class Gate:
    """What all connections of a server share."""

    room: Room
    client_s: float  # for a request to come whole
    turned_away: dict[Connection, None] = field(default_factory=dict)  # the longest there first
    held: set[Connection] = field(default_factory=set)  # that nothing is read from

    def look(self) -> None:
        """Of connections that nothing is read from the ends are not noticed otherwise."""
        if not self.held:
            return
        poll = select.poll()
        by_number = {each.transport.get_extra_info("socket").fileno(): each for each in self.held}
        for number in by_number:
            poll.register(number, select.POLLRDHUP)
        for number, _ in poll.poll(0):
            by_number[number].transport.abort()


class Connection(HttpToolsProtocol):
    gate: ClassVar[Gate]
    flow: _Flow
    _slow: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _refused = False
    _in_header = True
    _loose_bytes = 0  # since the last that was of a body, or the request's begin
    _unparsed = b""
    _wrong: ApiError | None = None  # with what is parsed
    _answered: RequestResponseCycle | None = (
        None  # the request whose turn it is; `cycle` is the last that came
    )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        turned_away = self.gate.turned_away
        if len(self.connections) - len(turned_away) <= self.gate.room.connections:
            self._expect()
            return
        turned_away[self] = None
        why = f"more than {self.gate.room.connections:,} connections are open: try later"
        self._refuse(ApiError(503, why, code="connections"))
        if len(turned_away) > self.gate.room.turned_away:
            next(iter(turned_away)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._at_ease()
        self._expect_none()
        self.gate.turned_away.pop(self, None)
        self.gate.held.discard(self)
        self._unparsed = b""
        self.pipeline.clear()  # their turn does not come
        self._tell_gone()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _tell_gone(self) -> None:
        """Whoever answers learns that the client is gone, and says no more."""
        if self._answered and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.waiting_for_100_continue = False
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._readable:
            self._unparsed += data
            self._parse()

    @property
    def _readable(self) -> bool:
        return not self._refused and self.parser is not None and not self.transport.is_closing()

    def _parse(self) -> None:
        """Go on with what has come, until a request waits for the one before it."""
        data, at = self._unparsed, 0
        while at < len(data) and not self.pipeline and self._readable:
            piece = data[at : at + PIECE_BYTES]
            at += PIECE_BYTES
            self._loose_bytes += len(piece)
            super().data_received(piece)
            if self._loose_bytes > MOST_HEADER_BYTES and self._readable:
                where = "the header" if self._in_header else "what is between chunks"
                why = f"{where} is longer than {MOST_HEADER_BYTES:,} bytes"
                self._refuse(ApiError(431, why, code="header"))
        self._unparsed = data[at:] if self._readable else b""
        if self._readable:
            self._hold(bool(self.pipeline))
            if not (self._slow or self.timeout_keep_alive_task) and self.cycle.response_complete:
                self._expect()  # what came begins no request, as empty lines

    def _hold(self, held: bool) -> None:
        """Whether nothing more is read for now."""
        if held and not self.flow.held:
            self.flow.pause_reading()
            self.gate.held.add(self)
            self.flow.held = True
        elif self.flow.held and not held:
            self.flow.held = False
            self.gate.held.discard(self)
            if self.cycle.response_complete or len(self.cycle.body) <= HIGH_WATER_LIMIT:
                self.flow.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort
        self._in_header, self._loose_bytes = True, 0
        self._expect()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_header:
            self._wrong = ApiError(400, "trailers of a body are not taken: leave them out", code="trailers")
        elif len(self.headers) >= MOST_HEADERS:
            self._wrong = ApiError(431, f"there are more than {MOST_HEADERS} headers", code="header")
        if self._wrong:
            raise self._wrong  # the parser cannot go on, and says so
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_header = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._at_ease()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()
        elif self.cycle.response_complete and self.cycle.more_body:
            self._close_gently()  # answered before its body was read: who knows how much of it comes
        elif self.flow.held:
            self.loop.call_soon(self._parse)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_none()

    def timeout_keep_alive_handler(self) -> None:
        self._end()

    def _end(self) -> None:
        """Close once all that was said is read."""
        self._at_ease()
        self.transport.close()
        if self.parser is not None:  # it is not lost yet
            self._expect_reader()

    def _expect_reader(self) -> None:
        """Some of what was said to be read within the limit, or the connection is given up."""
        self._expect_none()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reader = self.loop.call_later(self.gate.client_s, self._look_at_reader)

    def _expect_none(self) -> None:
        if self._reader:
            self._reader.cancel()
            self._reader = None

    def _look_at_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._expect_reader()
        else:
            self.transport.abort()

    def _expect(self) -> None:
        """A whole request within the limit."""
        self._at_ease()
        self._slow = self.loop.call_later(self.gate.client_s, self._too_slow)

    def _at_ease(self) -> None:
        if self._slow:
            self._slow.cancel()
            self._slow = None

    def _too_slow(self) -> None:
        if self.flow.held:
            self._expect()  # it is we who do not read
        elif self._answered and not self._answered.response_complete:
            self.transport.abort()  # in the middle of a body: its reader is notified
        elif not self.transport.is_closing():
            why = f"no whole request has come in {self.gate.client_s:g} s"
            self._refuse(ApiError(408, why, code="too_slow"))

    def send_400_response(self, msg: str) -> None:
        """Called where a request cannot be read."""
        self._refuse(self._wrong or ApiError(400, msg, code="not_http"))

    def _refuse(self, error: ApiError) -> None:
        if (begun := self._answered) and begun.response_started and not begun.response_complete:
            self.transport.abort()  # in the middle of an answer there is no room for another
            return
        self._tell_gone()
        body = error.body()
        self.transport.write(
            STATUS_LINE[error.status]
            + b"content-type: application/json\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )
        self._close_gently()

    def _close_gently(self) -> None:
        """Nothing more is said; what still comes is thrown away for a moment."""
        self._at_ease()
        self._unset_keepalive_if_required()
        self._refused = True
        self.flow.held = False
        self.gate.held.discard(self)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._slow = self.loop.call_later(LINGER_S, self._end)


def protocol(gate: Gate) -> type[Connection]:
    """The connections of one server."""
    return type("Served", (Connection,), {"gate": gate})
