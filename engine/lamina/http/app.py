"""The HTTP application, OpenAI's endpoints over a Service; and the server of a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvloop
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from lamina.http import answers
from lamina.http.answering import Answer
from lamina.http.api import Body, ChatRequest, CompletionRequest, read
from lamina.http.connection import Connection, Gate, room
from lamina.http.errors import ApiError, ErrorAnswer
from lamina.http.exchange import ACCESS
from lamina.http.guard import Guard
from lamina.http.service import Service

REFERENCE = "#/components/schemas/{model}"
EVENTS = "text/event-stream"
LAST_EVENT = "Last-Event-ID"
CLIENT_CLOSED = 499  # nginx's code
CREATED = 0  # the model has no date of its own
METRICS = ("text/plain", "application/openmetrics-text")

Responses = dict[int | str, dict[str, Any]]  # FastAPI's type


def errors(*statuses: int) -> Responses:
    """Return the errors that an endpoint may answer with."""
    return {status: {"model": ErrorAnswer} for status in statuses}


# Of any endpoint: the key, or the name, and requests that are not understood.
COMMON = errors(400, 401, 403, 405, 421)


def make_app(service: Service) -> FastAPI:
    """Return the application."""
    app = FastAPI(
        title="lamina",
        summary="OpenAI's completions and chat completions on the Lamina engine.",
        version=service.version or "0",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for kind in (ApiError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _error_answer)
    app.add_middleware(Guard, service=service)
    _add_endpoints(app, service)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def _add_endpoints(app: FastAPI, service: Service) -> None:
    model: answers.Model = {
        "id": service.model,
        "object": "model",
        "created": CREATED,
        "owned_by": "lamina",
        "max_model_len": service.context,
    }

    @app.get("/v1/models", response_model=answers.ModelList, responses=COMMON)
    async def models() -> JSONResponse:
        """Return the model that is served."""
        return JSONResponse({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}", response_model=answers.Model, responses={**COMMON, **errors(404)})
    async def one(name: str) -> JSONResponse:
        """Return one model by name."""
        if name != service.model:
            raise ApiError(
                404, f"no model is called '{name}': this server has {service.model}", param="model"
            )
        return JSONResponse(model)

    @app.post("/v1/completions", response_model=answers.CompletionAnswer, **_posted(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue a text, or token ids."""
        return await _while_there(request, CompletionRequest, service.complete, service)

    @app.post("/v1/chat/completions", response_model=answers.ChatAnswer, **_posted(ChatRequest))
    async def chat(request: Request) -> Response:
        """Say what comes next in a conversation."""
        return await _while_there(request, ChatRequest, service.chat, service)

    @app.get("/health", response_model=answers.Health, responses=errors(400, 403, 405, 421, 503))
    async def health() -> JSONResponse:
        """Report whether requests are taken, and the engine makes progress."""
        if why := service.why_closed:
            raise ApiError(503, why, code="closed")
        if why := service.why_silent:
            raise ApiError(503, why, code="silent")
        instances = service.instances
        return JSONResponse(
            {"status": "ok"} if instances is None else {"status": "ok", "instances": instances}
        )

    shown = {200: {"content": {kind: {"schema": {"type": "string"}} for kind in METRICS}}, **COMMON}

    @app.get("/metrics", response_class=Response, responses=shown)
    async def metrics(request: Request) -> Response:
        """Return counters, gauges and histograms, as OpenMetrics where that is accepted."""
        # A scraper may send the field more than once.
        accept = ",".join(request.headers.getlist("accept"))
        page, content_type = service.meter.page(service.driver, accept)
        return Response(page, headers={"content-type": content_type})

    @app.get("/version", response_model=answers.Version, responses=COMMON)
    async def version() -> JSONResponse:
        """Return laminabench's version."""
        return JSONResponse({"version": service.version})


async def _while_there(
    request: Request,
    model: type[Body],
    serve: Callable[[Body, str | None], Awaitable[Answer]],
    service: Service,
) -> Answer:
    """Prepare an answer as long as the client is connected."""
    data = await _body(request)

    async def prepared() -> Answer:
        last_event = request.headers.get(LAST_EVENT.lower())
        return await serve(await read(data, model, service.threads), last_event)

    preparing = asyncio.create_task(prepared())
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((preparing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if preparing.done():
            return await preparing
        raise ApiError(CLIENT_CLOSED, "the client has left")  # never sent
    finally:
        preparing.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    """Return a request's body; an ApiError if it does not come."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A web page cannot send this type to a foreign server without a preflight request.
        raise ApiError(415, "send the body as content-type: application/json", code="content_type")
    try:
        # The request would keep what it has read until its answer is sent.
        return b"".join([piece async for piece in request.stream()])
    except ClientDisconnect as error:
        raise ApiError(400, "the body has not come whole") from error


async def _error_answer(request: Request, error: Exception) -> Response:
    """Return the answer that reports an error to a client."""
    match error:
        case ApiError():
            reported = error
        case HTTPException():  # the framework's: unknown paths and methods
            reasons = {
                404: f"there is nothing at {request.url.path}",
                405: f"{request.method} does not go with {request.url.path}",
            }
            why = reasons.get(error.status_code, str(error.detail))
            reported = ApiError(error.status_code, why, headers=error.headers)
        case RequestValidationError():
            reported = ApiError(400, str(error))
        case _:
            reported = ApiError(500, f"this is a bug of the server: {type(error).__name__}", code="bug")
    if reported.code in ("body_too_large", "bodies_too_large"):
        raise reported  # the guard hangs up on a client that is still sending
    return JSONResponse(reported.answer(), reported.status, reported.headers)


def _posted(model: type[BaseModel]) -> dict[str, Any]:
    """Return the part of an endpoint's description about its request body, and its errors."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    last_event = {
        "name": LAST_EVENT,
        "in": "header",
        "description": "Of a request sent again with its request_id: the last event that came.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,9}$"},
    }
    return {
        "responses": errors(400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 429, 500, 503),
        "openapi_extra": {"requestBody": body, "parameters": [last_event]},
    }


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the whole document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        _, posted = models_json_schema(
            [(CompletionRequest, "validation"), (ChatRequest, "validation")], ref_template=REFERENCE
        )
        document["components"]["schemas"].update(posted["$defs"])
        for path in document["paths"].values():
            for operation in path.values():
                # Bad parameters are answered with 400, as everything that is not understood.
                operation["responses"].pop("422", None)
        for name in ("/v1/completions", "/v1/chat/completions"):
            answered = document["paths"][name]["post"]["responses"]["200"]
            # OpenAPI 3.1 has no way to say what a stream's events are: a schema would be of the whole.
            answered["content"][EVENTS] = {}
        for unused in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema


SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.25
BACKLOG = 2048
# For answers that have been ended to reach their clients.
LAST_WORDS_S = 2.0
# For connections to be closed, after that.
HANG_UP_S = 1.0
# After the second signal.
AT_ONCE_S = 0.5
# An iteration that is under way, and workers that are replaced in it.
LAST_TURN_S = 90.0


class Serving:
    """One server, from its start to its end."""

    def __init__(
        self,
        service: Service,
        sock: socket.socket,
        *,
        ready: Callable[[], None],
        at_once: Callable[[int], None] = os._exit,
        verbose: bool = False,
    ) -> None:
        self._service, self._socket, self._ready, self._at_once = service, sock, ready, at_once
        limits = service.limits
        # The engine has opened by now what it needs.
        space = room(limits.most_connections)
        self.gate = Gate(make_app(service), space, limits.client_s, limits.keep_alive_s)
        self._stopping, self._forced = asyncio.Event(), False  # to end; to wait for no answer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._verbose = verbose

    def run(self) -> str | None:
        """Serve until a signal, or until the engine has failed: then the reason."""
        if self._verbose:
            ACCESS.setLevel(logging.INFO)
            ACCESS.addHandler(logging.StreamHandler())
        with self._signals(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self.serve())
        return self._service.driver.error

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Drain on the first signal, end on the second, even if the event loop hangs."""
        signals: list[int] = []

        def handle(number: int, _: object) -> None:
            signals.append(number)
            if len(signals) == 2:
                last = threading.Timer(AT_ONCE_S, self._at_once, (128 + number,))
                last.daemon = True
                last.start()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.stop)

        before = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            # What is left to end, the engine's workers, a second one does not wait for either.
            if not signals:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def stop(self) -> None:
        """Stop as on a signal; from the event loop."""
        self._forced = self._stopping.is_set()
        self._stopping.set()

    async def serve(self) -> None:
        """Serve until stop(), or the engine's end."""
        self._loop = loop = asyncio.get_running_loop()
        self._service.start()
        minding = asyncio.create_task(self._mind())
        try:
            listening = await loop.create_server(
                lambda: Connection(self.gate), sock=self._socket, backlog=BACKLOG
            )
            self._ready()
            await self._until_stopping()
            await self._drain()
            listening.close()
            await self._hang_up()
        finally:
            minding.cancel()
            self._service.driver.stop("the server has ended")
            self._service.threads.shutdown(wait=False, cancel_futures=True)
            await self._last_turn()

    async def _hang_up(self) -> None:
        """Close all connections; answers that are under way get a moment."""
        self.gate.end()
        until_s = time.monotonic() + HANG_UP_S
        while (self.gate.connections or self.gate.tasks) and not self._forced:
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(0.005)
        self.gate.abort()

    async def _last_turn(self) -> None:
        """Close the engine only after the thread that steps it has ended."""
        driver = self._service.driver
        until_s = time.monotonic() + LAST_TURN_S
        while not driver.ended and time.monotonic() < until_s:
            await asyncio.sleep(0.005)
        if not driver.ended:
            self._at_once(1)

    async def _until_stopping(self) -> None:
        ends = (self._stopping, self._service.dead)
        waits = [asyncio.create_task(event.wait()) for event in ends]  # waits: a server serves on
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _drain(self) -> None:
        """Finish the requests under way, for a while; no others are taken in."""
        service = self._service
        service.draining = True
        await self._all_sent(0 if service.driver.error else service.limits.drain_s)
        service.driver.stop("the server is being ended: it has not waited for this answer")
        await self._all_sent(LAST_WORDS_S)

    async def _all_sent(self, most_s: float) -> None:
        until_s = asyncio.get_running_loop().time() + most_s
        while self._service.busy and not self._forced:
            if asyncio.get_running_loop().time() > until_s:
                return
            await asyncio.sleep(0.02)

    async def _mind(self) -> None:
        """Hang up on clients that do not read, or have left."""
        while True:
            await asyncio.sleep(LOOK_S)
            for answer in list(self._service.sending):
                answer.look(self._service.limits.client_s)
            self.gate.look()
            if self._service.recorder:
                self._service.recorder.look()
