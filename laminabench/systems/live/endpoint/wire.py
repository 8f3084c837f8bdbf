"""One connection to a server: requests go out whole, the bytes of answers are told of as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools

GONE = "connection closed"


class Answer(Protocol):
    """Who listens to what comes back of one request."""

    def started(self, status: int, fields: dict[str, str], at_s: float) -> None: ...

    def piece(self, data: bytes, at_s: float) -> None: ...

    def ended(self, error: str) -> None:
        """Once, at the end: "" if the answer is whole."""


class Connection(asyncio.Protocol):
    """Kept alive between requests, of which it carries one at a time."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._answer: Answer | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._framed = False  # the answer says how long it is, rather than to end with the connection
        self._whole_head = False
        self._at_s = 0.0
        self.reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are transports in all but name.
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, answer: Answer) -> float:
        """Send a request whose answer somebody listens to; when it was sent."""
        assert self._answer is None
        if self._transport is None:
            # It was taken and closed again at once, before anybody could ask.
            answer.ended(GONE)
            return time.monotonic()
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._fields, self._framed, self._whole_head = [], False, False
        self._transport.write(request)
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

    # What the event loop tells.

    def data_received(self, data: bytes) -> None:
        self._at_s = time.monotonic()
        if self._answer is None:
            # Nobody has asked anything.
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
            self._end(error or GONE)

    # What the parser tells.

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
