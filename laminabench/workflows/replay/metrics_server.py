"""A small server of HTTP for Prometheus: it answers to loopback's names only, and few at once."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

MOST_AT_ONCE = 16
# For a request to come, and for its answer to be read.
CLIENT_S = 10.0
NAMES = ("127.0.0.1", "localhost")
App = Callable[..., Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing: scrapes are no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # Of all of it: the handler's own timeout would be of each piece.
        end = threading.Timer(CLIENT_S, _hang_up, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


def started(app: App, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serve it in a thread of its own; an OSError if the port is taken."""

    def guarded(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # A page of elsewhere, whose name was made to lead a browser here, still has that name.
        name = environ.get("HTTP_HOST", host).lower().removesuffix(f":{server.server_port}")
        if name not in NAMES:
            start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"this server answers to {' and '.join(NAMES)} only\n".encode()]
        return app(environ, start_response)

    server = _Server((host, port), _Handler)
    server.set_app(guarded)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread
