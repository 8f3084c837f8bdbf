"""The explorer behind the engine's guard of sockets: a silent client occupies no place for long."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from typing import Any

import pytest

from laminabench.render.view import serving

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def application(_: Any, __: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def read(connection: socket.socket) -> bytes:
    """All that comes until it is closed."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_clients_that_send_nothing_hold_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(serving, "REQUEST_S", 0.2)
    answers: list[bytes] = []
    handlers = [signal.getsignal(number) for number in serving.SIGNALS]

    def connect(address: Any) -> None:
        silent = [socket.create_connection(address, timeout=30) for _ in range(12)]
        silent[0].sendall(GET[:20])
        answers.extend(read(each) for each in silent)
        # They are still open, and lose their places a moment later.
        while not answers[-1].startswith(b"HTTP/1.1 200"):
            with socket.create_connection(address, timeout=30) as connection:
                connection.sendall(GET)
                answers[12:] = [read(connection)]
        for each in silent:
            each.close()
        os.kill(os.getpid(), signal.SIGTERM)

    with serving._bound(0) as sock:
        connecting = threading.Thread(target=connect, args=(sock.getsockname(),))
        asyncio.run(serving._serve(application, sock, connecting.start))  # type: ignore[arg-type]
        connecting.join()
    assert [answer.split()[1] for answer in answers] == [b"408"] * 4 + [b"503"] * 8 + [b"200"]
    assert [signal.getsignal(number) for number in serving.SIGNALS] == handlers
