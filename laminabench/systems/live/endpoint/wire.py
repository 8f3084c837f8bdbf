"""Connections to a server: requests are written at once, bytes of answers are passed on as they come."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

import httptools

from laminabench.systems.live.endpoint.setup import Address
from laminabench.systems.live.endpoint.sse import Stream
from laminabench.util.errors import UserError

CLOSED = "connection closed"
# A server that does not even take a connection for so long is not there.
CONNECT_TIMEOUT_S = 10.0


class Departures:
    """Requests that become due while answers are read.

    A turn of the loop that reads a thousand streams takes longer than the time between two requests.
    """

    def __init__(self) -> None:
        self.due_s = math.inf  # when the next one is
        self.go: Callable[[], None] = lambda: None


class Connection(asyncio.Protocol):
    """A connection that stays open between requests, and carries one at a time."""

    def __init__(self, lost: Callable[[Connection], None], departures: Departures) -> None:
        self._lost, self._departures = lost, departures
        self._transport: asyncio.Transport | None = None
        self._plain = -1  # the socket's number, where what is written goes out as it is
        self._parser: Any = None
        self._answer: Stream | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._framed = False  # the answer says how long it is, rather than to end with the connection
        self._whole_head = False
        self._at_s = 0.0
        self.reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are transports in all but name.
        self._transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("socket")
        if plain is not None and transport.get_extra_info("sslcontext") is None:
            self._plain = plain.fileno()

    def send_request(self, request: bytes, answer: Stream) -> float:
        """Send a request; return when it was sent."""
        assert self._answer is None
        if self._transport is None:
            # It was taken and closed again at once, before anybody could ask.
            answer.ended(CLOSED)
            return time.monotonic()
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._fields, self._framed, self._whole_head = [], False, False
        # Now, and not when the loop has read all that is there; what does not go at once is the loop's.
        written = 0
        if self._plain >= 0 and not (self._transport.is_closing() or self._transport.get_write_buffer_size()):
            with contextlib.suppress(OSError):
                written = os.write(self._plain, request)
        if written < len(request):
            self._transport.write(request[written:])
        return time.monotonic()

    def leave(self, error: str) -> None:
        """Stop listening: what still comes is of no use, nor is the connection."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()
        self._end(error)

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    # Called by the event loop.

    def data_received(self, data: bytes) -> None:
        self._at_s = time.monotonic()
        if self._at_s >= self._departures.due_s:
            self._departures.go()
        if self._answer is None:
            # No request is waiting for it.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.leave("not an answer in HTTP")

    def eof_received(self) -> None:
        self.reusable = False
        self._closed("")

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._closed("" if error is None else "connection reset")
        self._transport = None
        self._lost(self)

    def _closed(self, error: str) -> None:
        if not error and self._answer is not None and self._whole_head and not self._framed:
            self._end("")
        else:
            self._end(error or CLOSED)

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None:
            return
        fields = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._fields}
        self._whole_head = True
        self._framed = "content-length" in fields or "transfer-encoding" in fields
        self._answer.started(status, fields, self._at_s)

    def on_body(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.piece(data, self._at_s)

    def on_message_complete(self) -> None:
        if not self._whole_head:
            self._fields = []  # an interim answer: the one that counts comes after it
            return
        self.reusable = self.reusable and self._framed and self._parser.should_keep_alive()
        self._end("")

    def _end(self, error: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.ended(error)


class NoConnectionError(Exception):
    """A failure to connect to the server: a short kind to count by, and the system's message."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Pool:
    """A pool of free connections, the one used last first; a new one where none is free."""

    def __init__(self, address: Address, where: list[Any], tls: ssl.SSLContext | None) -> None:
        self._address, self._where, self._tls = address, where, tls
        self.departures = Departures()
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self.opened = 0

    async def take(self) -> Connection:
        """Return an unused connection, a new one if needed."""
        return self.free() or await self._connect()

    def free(self) -> Connection | None:
        """Return an open, unused connection, if any."""
        while self._free:
            connection = self._free.pop()
            if connection.reusable:
                return connection
        return None

    def give(self, connection: Connection) -> None:
        """Take back a connection whose answer has been read, or that cannot be used any more."""
        if connection.reusable:
            self._free.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for connection in list(self._all):
            connection.leave("stopped")

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        last: NoConnectionError | None = None
        for host, port in self._where:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, connection = await loop.create_connection(
                        lambda: Connection(self._all.discard, self.departures),
                        host,
                        port,
                        ssl=self._tls,
                        server_hostname=self._address.host if self._tls else None,
                    )
            except ssl.SSLCertVerificationError as error:
                last = NoConnectionError("certificate refused", error.verify_message)
            except ssl.SSLError as error:
                last = NoConnectionError(
                    "no TLS connection", str(error.reason or error).lower().replace("_", " ")
                )
            except TimeoutError:
                last = NoConnectionError("no connection in time", f"none within {CONNECT_TIMEOUT_S:g} s")
            except OSError as error:
                refused = isinstance(error, ConnectionRefusedError)
                kind = "connection refused" if refused else "no connection"
                last = NoConnectionError(kind, error.strerror or str(error))
            else:
                self._all.add(connection)
                self.opened += 1
                return connection
        assert last is not None
        raise last


def resolved(address: Address) -> list[Any]:
    """Return host and port of each address of the server's name, looked up before requests are due."""
    try:
        entries = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(
            "endpoint-unknown-host",
            f"--url {address}: {address.host} is no known host ({error.strerror or error})",
        ) from None
    return list(dict.fromkeys(entry[4][:2] for entry in entries))


def more_files() -> None:
    """Raise this process's limit of open files, mostly 1024, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
