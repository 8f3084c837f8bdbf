"""The explorer's server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from lamina.http.connection import Connection, Gate, room
from laminabench.render.view.app import make_app
from laminabench.render.view.guard import Guard
from laminabench.render.view.index import Index
from laminabench.util.errors import UserError

HOST = "127.0.0.1"
MOST_CONNECTIONS = 256
# For a whole request, and between an answer and the next request.
REQUEST_S, KEEP_ALIVE_S = 10.0, 5.0
LOOK_S, HANG_UP_S = 0.25, 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
        logging.getLogger("lamina.http").setLevel(logging.CRITICAL)
        asyncio.run(_serve(guard, sock, lambda: ready(guard.url)))


async def _serve(guard: Guard, sock: socket.socket, ready: Callable[[], None]) -> None:
    gate = Gate(guard, room(MOST_CONNECTIONS), REQUEST_S, KEEP_ALIVE_S)
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    listening = await loop.create_server(lambda: Connection(gate), sock=sock)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    try:
        ready()
        while not stopping.is_set():
            gate.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), LOOK_S)  # waits: until its deadline
        listening.close()
        gate.end()
        if gate.tasks:
            await asyncio.wait(gate.tasks, timeout=HANG_UP_S)
    finally:
        gate.abort()
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


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
