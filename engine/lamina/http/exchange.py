"""One HTTP request and its answer, between a connection and an ASGI application."""

from __future__ import annotations

import asyncio
import http
import logging
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from httptools import parse_url

if TYPE_CHECKING:
    from lamina.http.answering import Message

LOGGER = logging.getLogger("lamina.http")
ACCESS = logging.getLogger("lamina.http.access")
# A header's value with any of these would be more than one header.
_NO_VALUE = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")
_NO_BODY = (204, 304)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@cache
def status_line(status: int) -> bytes:
    """Return the first line of an answer."""
    phrase = next((one.phrase for one in http.HTTPStatus if one == status), "")
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


def scope_of(method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return a request as ASGI describes it."""
    parsed = parse_url(url)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "scheme": "http",
        "method": method.decode("ascii"),
        "path": unquote(parsed.path.decode("ascii")),
        "raw_path": parsed.path,
        "query_string": parsed.query or b"",
        "root_path": "",
        "headers": headers,
        "server": None,
        "client": None,
        "state": {},
    }


class Wire(Protocol):
    """The interface of a connection that an exchange needs."""

    transport: asyncio.Transport
    peer: str
    writable: asyncio.Event

    def read_on(self) -> None:
        """Read more of the request's body."""

    def answered(self) -> None:
        """Continue after a whole answer."""


class Exchange:
    """A request whose body comes piece by piece, and its answer, which leaves piece by piece."""

    def __init__(self, connection: Wire, scope: dict[str, Any], *, keep_alive: bool) -> None:
        self.scope = scope
        self.body = bytearray()  # what of it the application has not taken
        self.more_body = True
        self.begun = self.complete = False  # the answer
        self.keep_alive = keep_alive
        self._connection = connection
        self._disconnected = False  # the client
        self._expects = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
        )
        self._changed = asyncio.Event()
        self._unsent_bytes: int | None = None  # bytes of the answer's body, unless it is sent in chunks

    @property
    def _line(self) -> str:
        """The request's method and target."""
        query = self.scope["query_string"]
        target = self.scope["raw_path"] + (b"?" + query if query else b"")
        return f"{self.scope['method']} {target.decode('latin-1')}"

    @property
    def open(self) -> bool:
        """Whether the answer is still owed or under way."""
        return not (self.complete or self._disconnected)

    def take(self, body: bytes) -> None:
        """Add a piece of the request's body."""
        if not self.complete:
            self.body += body
            self._changed.set()

    def end_body(self) -> None:
        """Note that the request's body is whole."""
        if not self.complete:
            self.more_body = False
            self._changed.set()

    def disconnect(self) -> None:
        """Notify the application that the client has disconnected."""
        self._disconnected, self._expects = True, False
        self._changed.set()

    async def run(self, application: Any) -> None:
        """Let the application answer; close the connection if it does not."""
        try:
            await application(self.scope, self.receive, self.send)
        except Exception:
            LOGGER.exception("the application has failed")
        if self.open and not self.begun:
            body = b"Internal Server Error"
            headers = [
                (b"content-type", b"text/plain"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
        elif self.open:
            self._connection.transport.close()

    async def receive(self) -> Message:
        """Wait for the next piece of the body, or for the client to leave."""
        if self._expects and not self._connection.transport.is_closing():
            self._connection.transport.write(_CONTINUE)
            self._expects = False
        if self.open:
            self._connection.read_on()
            await self._changed.wait()  # waits: the connection ends after a while without news
            self._changed.clear()
        if not self.open:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Send a part of the answer, once the client has read enough of what was sent before."""
        if not self._disconnected:
            await self._connection.writable.wait()  # waits: a client that reads nothing is hung up on
        if self._disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], list(message.get("headers", ())))
        else:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.begun, "an answer begins once"
        self.begun, self._expects = True, False
        version = self.scope["http_version"]
        ACCESS.info('%s - "%s HTTP/%s" %d', self._connection.peer, self._line, version, status)
        lines = [status_line(status)]
        closes = False
        for name, value in headers:
            if _NO_VALUE.search(value):
                raise ValueError(f"the header {name!r} has a value that is none")
            if name == b"content-length":
                self._unsent_bytes = int(value)
            closes |= name == b"connection" and b"close" in value.lower()
            lines.append(name + b": " + value + b"\r\n")
        self.keep_alive &= not closes
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in _NO_BODY:
            self._unsent_bytes = 0
        elif self._unsent_bytes is None:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._connection.transport.write(b"".join(lines) + b"\r\n")

    def _send_body(self, body: bytes, *, more: bool) -> None:
        assert self.begun
        assert not self.complete
        transport = self._connection.transport
        if self.scope["method"] == "HEAD":
            pass
        elif self._unsent_bytes is None:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            transport.write(chunk + (b"" if more else b"0\r\n\r\n"))
        else:
            self._unsent_bytes -= len(body)
            assert self._unsent_bytes >= 0
            assert more or not self._unsent_bytes, "the body is as long as its content-length"
            transport.write(body)
        if more:
            return
        self.complete = True
        self._changed.set()
        if not self.keep_alive:
            transport.close()
        self._connection.answered()
