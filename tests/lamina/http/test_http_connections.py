"""What comes over a connection and is no request, or not only one."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lamina.http.service import Limits

Make = Callable[..., Any]

ErrorOf = Callable[[bytes], dict[str, Any]]
Raw = Callable[[socket.socket], tuple[int, bytes]]
LONG = {"prompt": [5, 6], "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def strict(serve: Any, make_engine: Make) -> Iterator[Any]:
    """A server that takes few connections."""
    with serve(make_engine(), None, Limits(most_connections=40, drain_s=0)) as running:
        yield running


@pytest.fixture(scope="module")
def hurried(serve: Any, make_engine: Make) -> Iterator[Any]:
    """A server that does not wait for its clients."""
    with serve(make_engine(), None, Limits(client_s=1.0, drain_s=0)) as running:
        yield running


def posted(body: dict[str, Any]) -> bytes:
    """A whole request."""
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(data) + data


def test_a_long_header_is_refused_in_the_same_form(strict: Any, error_of: ErrorOf, raw: Raw) -> None:
    with strict.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 200_000)
        status, body = raw(connection)
    assert status == 431
    error_of(body)


@pytest.mark.parametrize("sent", [b"GET /health HTT", b""])
def test_a_header_that_does_not_come_is_not_waited_for(
    hurried: Any, sent: bytes, error_of: ErrorOf, raw: Raw
) -> None:
    with hurried.connect() as connection:
        connection.sendall(sent)
        found, body = raw(connection)
    assert found == 408
    error_of(body)


def test_too_many_connections(strict: Any, error_of: ErrorOf, raw: Raw) -> None:
    idle = [strict.connect() for _ in range(60)]
    try:
        refused = 0
        for connection in idle[40:]:
            status, body = raw(connection)
            refused += status == 503 and error_of(body)["code"] == "connections"
        assert refused
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("begun", [False, True])
def test_nonsense_after_a_request_ends_its_answer(
    strict: Any, caplog: pytest.LogCaptureFixture, begun: bool, error_of: ErrorOf, raw: Raw
) -> None:
    asked = posted(LONG)
    with strict.connect() as connection:
        if begun:
            connection.sendall(asked)
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
            connection.sendall(b"NONSENSE\r\n\r\n")
            rest = b""
            try:
                while more := connection.recv(65536):
                    rest += more
            except OSError:  # it has hung up
                pass
            assert b"HTTP/1.1" not in rest
            assert b"[DONE]" not in rest
        else:
            connection.sendall(asked + b"NONSENSE\r\n\r\n")
            status, body = raw(connection)
            assert (status, error_of(body)["code"]) == (400, "not_http")
    assert strict.settled()
    # uvicorn warns that it was no HTTP, which a server of ours does not write.
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
