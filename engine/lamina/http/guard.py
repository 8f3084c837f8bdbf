"""What stands before every endpoint: the key, the size of bodies, and whether the server takes requests."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

from lamina.http.errors import ApiError
from lamina.http.service import Service
from lamina.http.stream import Message, Receive, Send

App = Callable[[Any, Receive, Send], Awaitable[None]]
# Open without a key: load balancers have none.
OPEN = ("/health",)
POSTS = ("/v1/completions", "/v1/chat/completions")
PATHS = (*POSTS, "/v1/models", "/health", "/metrics", "/version", "/openapi.json")
# Of a body that is refused so much is read on and thrown away, for so long, so that the client gets to read
# why: a connection that is closed with something unread is reset.
LINGER_BYTES = 16_000_000
LINGER_S = 1.0


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
