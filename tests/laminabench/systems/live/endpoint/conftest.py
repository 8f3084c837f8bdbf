"""A real HTTP server that does as a test says, also what no good server does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from laminabench.sim.simulate import Offered
from laminabench.sim.spec import Mode
from laminabench.systems.live.endpoint.replaying import Result, replay
from laminabench.systems.live.endpoint.setup import Behind, EndpointSetup, Served, parse_url
from laminabench.traces.table import PrefixBlocks, Trace, TraceMeta


@dataclass(slots=True)
class Request:
    """One request, and the way to answer it."""

    method: str
    path: str
    fields: dict[str, str]
    body: Any
    writer: asyncio.StreamWriter

    def head(self, status: int = 200, **fields: str) -> None:
        lines = [
            f"HTTP/1.1 {status} Status",
            *(f"{name.replace('_', '-')}: {fields[name]}" for name in fields),
        ]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    def plain(self, status: int, body: Any, **fields: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content_Type": "application/json"} | fields
        self.head(status, **kind, Content_Length=str(len(data)))
        self.writer.write(data)

    def stream(self, **fields: str) -> None:
        self.head(**({"Content_Type": "text/event-stream", "Transfer_Encoding": "chunked"} | fields))

    async def piece(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        await self.piece(f"data: {text}\n\n".encode())

    async def token(
        self, text: str = " x", *, usage: int | None = None, prompt: int = 16, **more: Any
    ) -> None:
        """An event of a completion; `usage` is how many tokens have been made by then."""
        message: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": None} | more]}
        if usage is not None:
            message["usage"] = {"prompt_tokens": prompt, "completion_tokens": usage}
        await self.event(message)

    async def end(self, usage: int | None = None, prompt: int = 16) -> None:
        """The last events: usage, if any, and the mark of the end."""
        if usage is not None:
            await self.event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": usage}})
        await self.event("[DONE]")
        self.over()

    def over(self) -> None:
        self.writer.write(b"0\r\n\r\n")

    def reset(self) -> None:
        self.writer.transport.abort()


Answer = Callable[[Request], Awaitable[None]]


async def good(requested: Request) -> None:
    """As many tokens as were asked for, one an event, with usage in each."""
    tokens = requested.body["max_tokens"]
    prompt = requested.body.get("prompt", [0] * 16)
    requested.stream()
    for made in range(1, tokens + 1):
        await requested.token(usage=made, prompt=len(prompt))
    await requested.end()


@dataclass(slots=True)
class StandIn:
    """A server in a thread. `answers` are given from the second request on; to all others, `usual`."""

    usual: Answer = good
    answers: deque[Answer] = field(default_factory=deque)
    models: Any = field(default_factory=lambda: {"data": [{"id": "m"}]})
    requested: list[Request] = field(default_factory=list)
    most_at_once: int = 0
    lost: bool = False
    tls: ssl.SSLContext | None = None
    url: str = ""
    refuse: Callable[[Request], str | None] = lambda requested: None
    _at_once: int = 0
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _listener: socket.socket = field(init=False)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _thread: threading.Thread = field(init=False)
    _stop: asyncio.Event = field(init=False)

    @property
    def good(self) -> Answer:
        return good

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [requested.body for requested in self.requested if requested.method == "POST"]

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)))
        self._thread.start()
        assert ready.wait(30)

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        ready.set()
        await self._stop.wait()
        self._hang_up()
        await asyncio.sleep(0)  # what has come at the end begins, and so closes what it has
        for task in self._serving:
            task.cancel()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def go_away(self) -> None:
        """Listen no more, and end every connection with its next answer."""
        self.lost = True
        self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        """asyncio's own server, when closed, loses connections that it has accepted but not begun with."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the client has left
            serving = self._loop.create_task(self._connected(self._listener.accept()[0]))
            self._serving.add(serving)  # asyncio itself does not keep it
            serving.add_done_callback(self._serving.discard)

    async def _connected(self, accepted: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self.tls)
        except (OSError, asyncio.CancelledError):
            accepted.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self.lost and (requested := await _read(reader, writer)) is not None:
                self.requested.append(requested)
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                await self._answer(requested)
                self._at_once -= 1
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass

    async def _answer(self, requested: Request) -> None:
        if requested.method == "GET":
            requested.plain(200 if self.models else 404, self.models)
        elif (why := self.refuse(requested)) is not None:
            requested.plain(400, {"error": {"message": why}})
        elif len(self.bodies) > 1 and self.answers:
            await self.answers.popleft()(requested)
        else:
            await self.usual(requested)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        begin = await reader.readexactly(1)
        if begin == b"\x16":  # the beginning of TLS
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return None
        head = (begin + await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *rest = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    return Request(method, path, fields, json.loads(body) if body else None, writer)


@pytest.fixture
def make_server() -> Callable[..., contextlib.AbstractContextManager[StandIn]]:
    """A stand-in that serves until the block ends."""

    @contextlib.contextmanager
    def made(**more: Any) -> Iterator[StandIn]:
        server = StandIn(**more)
        server.start()
        try:
            yield server
        finally:
            server.stop()

    return made


@pytest.fixture
def server(make_server: Callable[..., contextlib.AbstractContextManager[StandIn]]) -> Iterator[StandIn]:
    with make_server() as made:
        yield made


@pytest.fixture
def make_setup(server: StandIn) -> Callable[..., EndpointSetup]:
    """A setup for the stand-in, without warm-up unless asked for."""

    def made(**more: Any) -> EndpointSetup:
        chosen = {"warm_up": 0, "retries": 0, "timeout": 30.0} | more
        return EndpointSetup(Behind(parse_url(server.url)), Served("m"), **chosen)

    return made


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """Requests that are all alike."""

    def made(
        requests: int = 4,
        prompt: int = 8,
        output: int = 3,
        gap_s: float = 0.0,
        blocks: list[list[int]] | None = None,
    ) -> Trace:
        return Trace(
            np.arange(requests) * gap_s,
            np.full(requests, prompt, np.int32),
            np.full(requests, output, np.int32),
            TraceMeta("small", block_tokens=4),
            PrefixBlocks.from_lists(blocks) if blocks else None,
        )

    return made


@pytest.fixture
def observed(
    make_setup: Callable[..., EndpointSetup], make_trace: Callable[..., Trace]
) -> Callable[..., Result]:
    """A replay against the stand-in, from the flags of its setup and of its trace."""

    def replayed(
        trace: Trace | None = None, *, mode: Mode = "open", concurrency: int = 0, seed: int = 0, **setup: Any
    ) -> Result:
        offered = Offered(mode, concurrency, None)
        whole = make_trace() if trace is None else trace
        return replay(whole, make_setup(**setup), offered, seed=seed)

    return replayed
