"""The server as a process has it: a socket, signals, draining, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from lamina.http.app import make_app
from lamina.http.guard import protocol
from lamina.http.service import Service

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_S = 0.25
BACKLOG = 2048
# For answers that have been ended to reach their clients.
LAST_WORDS_S = 2.0


class _Server(uvicorn.Server):
    """Leaves signals to `Serving`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """One server, from its start to its end."""

    def __init__(
        self, service: Service, sock: socket.socket, *, ready: Callable[[], None], verbose: bool = False
    ) -> None:
        self._service, self._socket, self._ready = service, sock, ready
        limits = service.limits
        self._server = _Server(
            uvicorn.Config(
                make_app(service),
                http=protocol(limits),
                ws="none",
                loop="uvloop",
                lifespan="on",
                backlog=BACKLOG,
                timeout_keep_alive=limits.keep_alive_s,
                timeout_graceful_shutdown=1,
                log_config=None,
                access_log=verbose,
                server_header=False,
                date_header=False,
            )
        )
        self._asked = asyncio.Event()  # to end
        self._verbose = verbose

    def run(self) -> str | None:
        """Serve until a signal, or until the engine has failed: then the reason."""
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        if self._verbose:
            access = logging.getLogger("uvicorn.access")
            access.setLevel(logging.INFO)
            access.addHandler(logging.StreamHandler())
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self.serve(signals=True))
        return self._service.driver.error

    def stop(self) -> None:
        """As a signal does; from the event loop."""
        if self._asked.is_set():
            self._server.should_exit = self._server.force_exit = True
        self._asked.set()

    async def serve(self, *, signals: bool = False) -> None:
        """Until stop(), or the engine's end."""
        loop = asyncio.get_running_loop()
        if signals:
            for number in SIGNALS:
                loop.add_signal_handler(number, self.stop)
        served = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        minding = asyncio.create_task(self._mind())
        try:
            while not self._server.started and not served.done():
                await asyncio.sleep(0.005)
            if not served.done():
                self._ready()
                await self._until_asked()
                await self._drain()
            self._server.should_exit = True
            await served
        finally:
            minding.cancel()
            lifespan = self._server.lifespan
            if not lifespan.shutdown_event.is_set():
                # uvicorn leaves it when it ends at once, or cannot listen.
                await lifespan.shutdown()
            self._service.driver.stop("the server has ended")
            await asyncio.to_thread(self._service.driver.join)

    async def _until_asked(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._asked, self._service.dead)]
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
        while self._service.busy and not self._server.force_exit:
            if asyncio.get_running_loop().time() > until_s:
                return
            await asyncio.sleep(0.02)

    async def _mind(self) -> None:
        """Hang up on clients that do not read."""
        while True:
            await asyncio.sleep(LOOK_S)
            for answer in list(self._service.sending):
                answer.look(self._service.limits.client_s)
