"""Answers on their way to a client, which may read slowly, or leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from lamina.http.answering import Answering, event
from lamina.http.errors import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
DONE = b"data: [DONE]\n\n"
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Answer(Response):
    """Sends an answer when it is whole; if the client leaves, its request is called off."""

    def __init__(self, answering: Answering, sending: set[Answer]) -> None:
        super().__init__()
        self.answering = answering
        self._sending = sending  # all that are under way
        self.blocked_since: float | None = None  # a send that has not ended
        self._abort: Callable[[], None] = lambda: None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self._abort = scope.get("state", {}).get("abort", self._abort)
        watcher = asyncio.create_task(self._watch(receive))
        self._sending.add(self)
        try:
            await self.answer(send)
        finally:
            self._sending.discard(self)
            watcher.cancel()
            self.answering.cancel()

    async def answer(self, send: Send) -> None:
        """Send all of it."""
        try:
            whole = await self.answering.whole()
            if self.answering.gone:
                return
            status, body = 200, to_json(whole)
        except ApiError as error:
            status, body = error.status, error.body()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send(send, {"type": "http.response.start", "status": status, "headers": headers})
        await self.send(send, {"type": "http.response.body", "body": body})

    async def send(self, send: Send, message: Message) -> None:
        """Send one message; it takes as long as the client does."""
        self.blocked_since = time.monotonic()
        await send(message)
        self.blocked_since = None

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.answering.cancel()

    def look(self, most_s: float) -> None:
        """Hang up on a client that does not read."""
        since = self.blocked_since
        if self.answering.overrun or (since is not None and time.monotonic() - since > most_s):
            self.answering.cancel()
            self._abort()


class Stream(Answer):
    """Sends tokens as they come, as server-sent events."""

    async def answer(self, send: Send) -> None:
        """Until the last token, or an error, which is then the last event."""
        answering = self.answering
        await self.send(send, {"type": "http.response.start", "status": 200, "headers": EVENTS})
        while not answering.done:
            try:
                deltas = await answering.deltas()
            except ApiError as error:
                await self._send_body(send, event(error.answer()) + DONE, more=False)
                return
            if answering.gone:
                break
            if body := b"".join(answering.events(deltas)):
                await self._send_body(send, body, more=True)
        if not answering.gone:
            await self._send_body(send, DONE, more=False)

    async def _send_body(self, send: Send, body: bytes, *, more: bool) -> None:
        await self.send(send, {"type": "http.response.body", "body": body, "more_body": more})
