"""What stands before every endpoint: connections' limits, the key, the size of bodies, whether it is open."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lamina.http.answering import Message, Receive, Send
from lamina.http.answers import ApiError
from lamina.http.service import Limits, Service

App = Callable[[Any, Receive, Send], Awaitable[None]]
# Open without a key: load balancers have none.
OPEN = ("/health",)
POSTS = ("/v1/completions", "/v1/chat/completions")
PATHS = (*POSTS, "/v1/models", "/health", "/metrics", "/version", "/openapi.json")
# Of a body that is refused so much is read on and thrown away, for so long, so that the client gets to read
# why: a connection that is closed with something unread is reset.
LINGER_BYTES = 16_000_000
LINGER_S = 1.0
# A request line and headers; more is abuse.
MOST_HEADER_BYTES = 65_536


class Guard:
    """Refuses before anything is read, and counts answers."""

    def __init__(self, app: App, service: Service) -> None:
        self._app, self._service = app, service
        key = service.api_key
        self._key = None if key is None else b"Bearer " + key.encode()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        label = path if path in PATHS else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.meter.answers[label, message["status"]] += 1
            await send(message)

        headers = dict(scope["headers"])
        try:
            self._require_key(path, headers)
            self._require_open(path)
            if scope["method"] == "POST":
                self._require_small(int(headers.get(b"content-length", b"0") or b"0"))
                receive = self._bounded(receive)
            if path in POSTS:
                self._service.answered += 1
                try:
                    await self._app(scope, receive, counted)
                finally:
                    self._service.answered -= 1
            else:
                await self._app(scope, receive, counted)
        except ApiError as error:
            await _refuse(error, counted, receive, linger=b"expect" not in headers)

    def _require_key(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self._key is None or path in OPEN:
            return
        given = headers.get(b"authorization", b"")
        # The scheme's name may be written in any case.
        given = b"Bearer" + given[6:] if given[:6].lower() == b"bearer" else given
        if not hmac.compare_digest(given, self._key):
            raise ApiError(
                401,
                "the API key is missing or wrong: send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _require_open(self, path: str) -> None:
        if path in POSTS and (why := self._service.why_closed):
            raise ApiError(503, why, code="closed", headers={"Connection": "close"})

    def _require_small(self, size: int) -> None:
        most = self._service.limits.body_bytes
        if size > most:
            raise ApiError(
                413,
                f"the body is larger than the {most:,} bytes that are taken",
                code="body_too_large",
                headers={"Connection": "close"},
            )

    def _bounded(self, receive: Receive) -> Receive:
        """The same, refused once it is too large."""
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            self._require_small(size)
            return message

        return bounded


async def _refuse(error: ApiError, send: Send, receive: Receive, *, linger: bool) -> None:
    """Answer with the error; where a body is too large, give its sender a moment to read it."""
    body = error.body()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if error.status == 413 and linger:
        await _throw_away(receive)
    await send({"type": "http.response.body", "body": b""})


async def _throw_away(receive: Receive) -> None:
    left, until_s = LINGER_BYTES, time.monotonic() + LINGER_S
    try:
        async with asyncio.timeout(LINGER_S):
            while left > 0 and time.monotonic() < until_s:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except (TimeoutError, ApiError):
        return


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """HTTP as it comes from the network: uvicorn's connections, each within these limits."""

    class Connection(HttpToolsProtocol):
        _slow: asyncio.TimerHandle | None = None
        _refused = False
        _in_header = True
        _header_bytes = 0  # of a request whose header is not whole

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.most_connections:
                self._refuse(ApiError(503, "too many connections are open: try later", code="connections"))
                return
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._at_ease()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused or self.parser is None or self.transport.is_closing():
                return
            if self._in_header:
                self._header_bytes += len(data)
            super().data_received(data)
            too_long = self._in_header and self._header_bytes > MOST_HEADER_BYTES
            if too_long and not self.transport.is_closing():
                self._refuse(
                    ApiError(431, f"the header is longer than {MOST_HEADER_BYTES:,} bytes", code="header")
                )

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["state"]["abort"] = self.transport.abort
            self._in_header, self._header_bytes = True, 0
            self._expect()

        def on_headers_complete(self) -> None:
            self._in_header = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._at_ease()

        def _expect(self) -> None:
            """A whole request within the limit."""
            self._at_ease()
            self._slow = self.loop.call_later(limits.client_s, self._too_slow)

        def _at_ease(self) -> None:
            if self._slow:
                self._slow.cancel()
                self._slow = None

        def _too_slow(self) -> None:
            if self.cycle and not self.cycle.response_complete:
                self.transport.abort()  # in the middle of a body: its reader is notified
            elif not self.transport.is_closing():
                why = f"no whole request has come in {limits.client_s:g} s"
                self._refuse(ApiError(408, why, code="too_slow"))

        def send_400_response(self, msg: str) -> None:
            """Called where a request cannot be read."""
            self._refuse(ApiError(400, msg, code="not_http"))

        def _refuse(self, error: ApiError) -> None:
            self._at_ease()
            if self.cycle and not self.cycle.response_complete:
                if self.cycle.response_started:
                    self.transport.abort()  # in the middle of an answer there is no room for another
                    return
                # The reader of this request's body is notified that the client is gone, and does not answer.
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            body = error.body()
            self._refused = True
            self.transport.write(
                STATUS_LINE[error.status]
                + b"content-type: application/json\r\nconnection: close\r\n"
                + b"content-length: %d\r\n\r\n" % len(body)
                + body
            )
            # What still comes is thrown away for a moment: closed with something unread, a connection is
            # reset, and the client might never get to read why.
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._slow = self.loop.call_later(LINGER_S, self.transport.close)

    return Connection
