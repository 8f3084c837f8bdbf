"""Clients that leave, do not read, or are still there when the server ends."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lamina.http.service import Limits

Make = Callable[..., Any]

LONG = {"prompt": [5, 6, 7], "max_tokens": 400, "temperature": 1.0, "seed": 1, "ignore_eos": True}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(data) + data


def events(data: bytes) -> list[dict[str, Any]]:
    """Of a chunked answer, whose chunks are whole events here."""
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]


@pytest.fixture(scope="module")
def patient(serve: Any, make_engine: Make) -> Iterator[Any]:
    """A server whose engine takes its time: requests are still under way when clients leave."""
    with serve(make_engine()) as running:
        yield running


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"stream": False},
        {"stream": True, "n": 3},
        {"stream": False, "n": 2, "prompt": [[1], [2, 3]]},
    ],
)
def test_a_client_that_leaves_is_served_no_more(patient: Any, more: dict[str, Any]) -> None:
    before = patient.service.meter._ends["cancelled"]
    with patient.connect() as connection:
        connection.sendall(request(LONG | more))
        if more["stream"]:
            assert b"data: " in connection.recv(65536) + connection.recv(65536)
        else:
            while not patient.service.driver.running:
                threading.Event().wait(0.002)
    assert patient.settled()
    wanted = len(more.get("prompt", [1])) if "prompt" in more else 1
    assert patient.service.meter._ends["cancelled"] == before + wanted


def test_one_connection_serves_many(patient: Any) -> None:
    import http.client

    connection = http.client.HTTPConnection(patient.host, patient.port, timeout=60)
    for stream in (False, True, False):
        body = json.dumps(LONG | {"max_tokens": 3, "stream": stream})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert (b"[DONE]" in answer.read()) == stream
    connection.close()


def test_a_client_that_does_not_read_is_hung_up_on(serve: Any, make_engine: Make) -> None:
    limits = Limits(client_s=0.5, drain_s=0)
    body = LONG | {"stream": True, "n": 8, "logprobs": 20, "return_token_ids": True}
    with serve(make_engine(kv_tokens=8192), None, limits, None, 4096) as server:
        with server.connect(receive_bytes=4096) as connection:
            connection.sendall(request(body))
            while not server.service.driver.running:
                threading.Event().wait(0.002)
            assert server.settled()
            assert server.service.sending == set()
        assert server.post(LONG | {"max_tokens": 2})[0] == 200


def test_what_is_left_unread_is_bounded(
    serve: Any, make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.http.answering.MOST_UNSENT", 50)
    body = LONG | {"stream": True, "n": 8, "logprobs": 20}
    with serve(make_engine(kv_tokens=8192), None, Limits(drain_s=0), None, 4096) as server:
        with server.connect(receive_bytes=4096) as connection:
            connection.sendall(request(body))
            while not server.service.driver.running:
                threading.Event().wait(0.002)
            assert server.settled()
        assert server.service.meter._ends["cancelled"] == 1


def test_draining_lets_answers_end_and_takes_no_more(serve: Any, make_engine: Make) -> None:
    with serve(make_engine(), None, Limits(drain_s=60)) as server:
        kept = server.connect()
        with server.connect() as connection:
            connection.sendall(request(LONG | {"stream": True, "max_tokens": 500}))
            data = connection.recv(65536)
            server.stop()
            while not server.service.draining:
                threading.Event().wait(0.002)
            for method, path, body in (("GET", "/health", None), ("POST", "/v1/completions", LONG)):
                status, _, said = server.call(method, path, body)
                assert status == 503
                assert "draining" in json.loads(said)["error"]["message"]
            while more := connection.recv(65536):
                data += more
        assert data.rstrip().endswith(b"0")  # the last chunk
        assert b"data: [DONE]" in data
        tokens = sum(len(event["choices"]) for event in events(data))
        assert tokens > 0
        assert events(data)[-1]["choices"][0]["finish_reason"] == "length"
        kept.close()
    assert server.engine.idle


def test_what_is_not_done_when_draining_ends_gets_an_error(serve: Any, make_engine: Make) -> None:
    with serve(make_engine(), None, Limits(drain_s=0)) as server:
        answers: list[tuple[int, Any]] = []
        thread = threading.Thread(target=lambda: answers.append(server.post(LONG | {"max_tokens": 500})))
        with server.connect() as connection:
            connection.sendall(request(LONG | {"stream": True, "max_tokens": 500}))
            data = connection.recv(65536)
            thread.start()
            while server.service.answered < 2 or server.service.driver.running < 2:
                threading.Event().wait(0.002)
            server.stop()
            while more := connection.recv(65536):
                data += more
        thread.join(60)
        assert events(data)[-1]["error"]["type"] == "service_unavailable_error"
        ((status, told),) = answers
        assert (status, told["error"]["code"]) == (503, "closed")
    assert server.engine.idle
    assert server.engine.used_kv_tokens == 0


def test_asked_twice_to_end_it_does_not_wait(
    serve: Any, make_engine: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(make_engine(), None, Limits(drain_s=3600)) as server:
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            assert let_go.wait(60)

        with server.connect() as connection:
            connection.sendall(request(LONG | {"max_tokens": 500}))
            while not server.service.driver.running:
                threading.Event().wait(0.002)
            server.service.driver.ask(hold)
            assert held.wait(60)
            server.stop()
            server.stop()
            while not server.service.driver.closed:
                threading.Event().wait(0.002)
            let_go.set()
            while connection.recv(65536):
                pass
    assert server.engine.idle
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_an_engine_that_fails_ends_the_server(serve: Any, make_engine: Make) -> None:
    with serve(make_engine()) as server:
        with server.connect() as connection:
            connection.sendall(request(LONG | {"stream": True, "max_tokens": 500}))
            data = connection.recv(65536)
            server.service.driver.ask(server.engine.close)
            while more := connection.recv(65536):
                data += more
        last = events(data)[-1]
        assert last["error"]["type"] == "server_error"
        assert "the engine has failed" in last["error"]["message"]
    assert "the engine has failed" in server.service.driver.error


def test_metrics_say_what_was_done(serve: Any, make_engine: Make) -> None:
    with serve(make_engine()) as server:
        assert server.post(LONG | {"max_tokens": 10, "n": 2})[0] == 200
        assert server.post(LONG | {"max_tokens": 5, "stream": False, "prompt": [[1], [2]]})[0] == 200
        assert server.post({"prompt": [-1]})[0] == 400
        status, headers, data = server.call("GET", "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
        told = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
        wanted = {
            "lamina_prompt_tokens_total": 5,
            "lamina_completion_tokens_total": 30,
            'lamina_requests_total{end="length"}': 3,
            "lamina_time_to_first_token_seconds_count": 3,
            "lamina_time_between_tokens_seconds_count": 30 - 4,
            "lamina_request_seconds_count": 3,
            "lamina_requests_running": 0,
            "lamina_requests_waiting": 0,
            "lamina_kv_tokens_used": 0,
            "lamina_kv_tokens_capacity": 2048,
            'lamina_http_answers_total{path="/v1/completions",status="200"}': 2,
            'lamina_http_answers_total{path="/v1/completions",status="400"}': 1,
        }
        assert {name: told[name] for name in wanted} == wanted
        assert told['lamina_time_between_tokens_seconds_bucket{le="+Inf"}'] == 26
        assert told["lamina_batch_size_sum"] == 30
