"""The checks before every endpoint: host names, the key, body sizes, whether the server is open."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

from lamina.http.address import Names
from lamina.http.answering import Message, Receive, Send
from lamina.http.connection import LINGER_S
from lamina.http.errors import RETRY, ApiError
from lamina.http.service import Service

App = Callable[[Any, Receive, Send], Awaitable[None]]
# Open without a key: load balancers have none.
OPEN = ("/health",)
POSTS = ("/v1/completions", "/v1/chat/completions")
PATHS = (*POSTS, "/v1/models", "/health", "/metrics", "/version", "/openapi.json")
# Of a body that is refused so much is read on and thrown away, so that the client gets to read why.
LINGER_BYTES = 16_000_000
CLOSE = {"Connection": "close"}


class Guard:
    """A guard that refuses requests before anything is read, and counts answers."""

    def __init__(self, app: App, service: Service) -> None:
        self._app, self._service = app, service
        key = service.api_key
        self._key = None if key is None else b"Bearer " + key.encode()
        # A client without a key shows the host name that it used.
        self._names = Names(service.limits.allowed_hosts) if key is None else None

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
        body = _Body(self._service, receive)
        taken = False
        try:
            self._require_name(scope["headers"])
            self._require_key(path, headers)
            self._require_open(path)
            body.require_small(_number(headers.get(b"content-length", b"0")))
            taken = path in POSTS
            self._service.answered += taken
            await self._app(scope, body.receive, counted)
        except ApiError as error:
            await _refuse(error, counted, receive if body.comes(headers) else None)
        finally:
            self._service.answered -= taken
            body.let_go()

    def _require_name(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Refuse other host names: a page from elsewhere may have made its name lead a browser here."""
        if self._names is None:
            return
        for name, value in headers:
            if name == b"host" and not self._names.has(value):
                why = "this server has no key, and answers to this machine's names only: give others"
                raise ApiError(421, f"{why} by --allowed-host", code="host_not_allowed", headers=CLOSE)
            if name == b"origin" and not self._names.has(value.partition(b"://")[2]):
                why = "this server has no key, and answers pages of this machine only: give others"
                raise ApiError(403, f"{why} by --allowed-host", code="origin_not_allowed", headers=CLOSE)

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


def _number(digits: bytes) -> int:
    """Parse a header's number; thousands of leading zeros are valid too."""
    return int(digits.lstrip(b"0") or b"0")


class _Body:
    """A request's body as it comes, which all bodies together have only so much room for.

    It counts until its request has been answered, since its prompt is in memory as long.
    """

    def __init__(self, service: Service, receive: Receive) -> None:
        self._service, self._receive = service, receive
        self._size = 0
        self._complete = False

    def require_small(self, size: int) -> None:
        most = self._service.body_bytes
        if size > most:
            why = f"the body is larger than the {most:,} bytes that are taken"
            raise ApiError(413, why, code="body_too_large", headers=CLOSE)

    async def receive(self) -> Message:
        message = await self._receive()
        self._complete = not message.get("more_body")
        came = len(message.get("body", b""))
        self._size += came
        self._service.buffered_bytes += came
        self.require_small(self._size)
        if came and self._service.buffered_bytes > (most := self._service.most_buffered_bytes):
            why = f"the bodies of all requests are larger than {most:,} bytes together: try later"
            raise ApiError(503, why, code="bodies_too_large", headers=CLOSE | RETRY)
        return message

    def comes(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether there is more of it than was read, or its sender asks first."""
        announced = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        return announced and not self._complete and b"expect" not in headers

    def let_go(self) -> None:
        self._service.buffered_bytes -= self._size
        self._size = 0


async def _refuse(error: ApiError, send: Send, unread: Receive | None) -> None:
    """Answer with the error; where a body still comes, give its sender a moment to read that, and close."""
    body = error.body()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    if unread:
        headers |= CLOSE
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if unread:
        await _throw_away(unread)
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
    except TimeoutError:
        return
