"""What a connection costs the server before it has shown a key: at most 1 MiB, whatever it sends."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
CONNECTIONS = 48
MOST_BYTES = 1 << 20
MUCH_BYTES = 8_000_000


@pytest.fixture(scope="module")
def keyed(serve: Any) -> Iterator[Any]:
    with serve(api_key="sk-local") as running:
        yield running


def pushed(connection: socket.socket, sent: bytes) -> None:
    """So much of it, again and again, as the server takes at once."""
    connection.setblocking(False)
    left, looked = MUCH_BYTES, select.poll()
    looked.register(connection, select.POLLOUT)
    with contextlib.suppress(ConnectionError):
        while left > 0:
            if not looked.poll(50):
                return
            left -= connection.send(sent)


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (POST, b"a:b\r\n" * 10_000),
        (POST + b"x: ", b"y" * 60_000),
        (b"GET /", b"%41" * 20_000),
        (POST + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 10_000),
        (POST + b"transfer-encoding: chunked\r\n\r\n", b"ffff\r\n" + b"y" * 65_535 + b"\r\n"),
        (b"", b"GET /metrics HTTP/1.1\r\n\r\n" * 2_500),
        (POST + b"content-length: 9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n" * 3_000),
    ],
    ids=["fields", "a field", "a path", "trailers", "chunks", "requests", "requests in a body"],
)
def test_before_its_key_a_connection_costs_little(
    keyed: Any, wire: Any, resident_bytes: Callable[[], int], head: bytes, more: bytes
) -> None:
    before = resident_bytes()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(keyed.connect()) for _ in range(CONNECTIONS)]
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                connection.sendall(head)
            pushed(connection, more)
        assert resident_bytes() - before < CONNECTIONS * MOST_BYTES
    wire.until(lambda: not keyed.serving.gate.connections)
