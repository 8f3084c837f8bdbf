"""The explorer's server on loopback."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from laminabench.render.view.app import make_app
from laminabench.render.view.guard import Guard
from laminabench.render.view.index import Index
from laminabench.util.errors import UserError

HOST = "127.0.0.1"
MOST_CONNECTIONS = 64
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it listens, and ends normally on a signal."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(folder: Path, port: int, ready: Callable[[str], None]) -> None:
    """Serve this folder until a signal; `ready` is called with the link once it can be opened."""
    try:
        os.scandir(folder).close()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError("view-no-folder", f"{folder} is no folder: name one that has Runs in it") from error
    except OSError as error:  # unreadable subfolders are skipped instead
        raise UserError("file-not-readable", f"cannot read {folder}: {error.strerror}") from error
    with _bound(port) as sock:
        number = sock.getsockname()[1]
        index = Index(folder)
        guard = Guard(make_app(index), number)
        config = uvicorn.Config(
            guard,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # it would log the token
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        _Server(config, lambda: ready(guard.url)).run(sockets=[sock])


@contextlib.contextmanager
def _bound(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError as error:
            raise UserError(
                "view-unbound",
                f"cannot listen on {HOST} port {port}: {error.strerror or error}; choose another --port, "
                "or 0 for any",
            ) from error
        yield sock
