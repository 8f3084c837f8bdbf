"""The metrics server answers to its own names only, and a slow client cannot occupy all its threads."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest

from laminabench.workflows.replay import metrics_server
from laminabench.workflows.replay.metrics_page import ReplayProgress

pytest.importorskip("prometheus_client")


@pytest.fixture
def port() -> Iterator[int]:
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry()
    registry.register(ReplayProgress({"trace": "azure"}))  # type: ignore[arg-type]
    server, thread = metrics_server.started(make_wsgi_app(registry), "127.0.0.1", 0)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def reported(port: int, host: str) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/metrics", headers={"host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_it_answers_to_its_own_names(port: int) -> None:
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost", "LOCALHOST"):
        status, page = reported(port, host)
        assert (status, b'trace="azure"' in page) == (200, True), host
    for host in ("evil.example", f"evil.example:{port}", f"localhost.evil.example:{port}", ""):
        status, page = reported(port, host)
        assert (status, b"azure" in page) == (421, False), host


def test_few_threads_by_default(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 2.0)
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(metrics_server.MOST_AT_ONCE + 1)
        ]
        assert idle[-1].recv(1) == b""  # no place: at once
        for connection in idle:
            assert connection.recv(1) == b""  # no request has come
    while True:  # a place is free a moment after its connection is closed
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert reported(port, "localhost")[0] == 200
            return


def test_a_slow_client_blocks_no_slot(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CLIENT_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while True:  # each piece well within the handler's timeout
                connection.sendall(b"a")
                with contextlib.suppress(TimeoutError):
                    assert connection.recv(1) == b""
                    return
