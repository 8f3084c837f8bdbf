"""Clients that leave, do not read, or are still there when the server ends."""

from __future__ import annotations

import http.client
import json
import logging
import threading
from typing import Any

import pytest
from grafana import metrics_used
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed_text

LONG = {"prompt": [5, 6, 7], "max_tokens": 400, "temperature": 1.0, "seed": 1, "ignore_eos": True}


def events(data: bytes) -> list[dict[str, Any]]:
    """Of a chunked answer, whose chunks are whole events here."""
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"stream": False},
        {"stream": True, "n": 3},
        {"stream": False, "n": 2, "prompt": [[1], [2, 3]]},
    ],
)
def test_a_client_that_leaves_is_served_no_more(server: Any, more: dict[str, Any], wire: Any) -> None:
    before = server.service.meter._ends["cancelled"]
    with server.open_request(LONG | more) as connection:
        if more["stream"]:
            assert b"data: " in connection.recv(65536) + connection.recv(65536)
        else:
            wire.until(lambda: server.driver.running)
    assert server.settled()
    expected = len(more.get("prompt", [1]))
    assert server.service.meter._ends["cancelled"] == before + expected


def test_one_connection_serves_many(server: Any) -> None:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    for stream in (False, True, False):
        body = json.dumps(LONG | {"max_tokens": 3, "stream": stream})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        assert (b"[DONE]" in answer.read()) == stream
    connection.close()


@pytest.mark.parametrize(("client_s", "most_unsent"), [(0.5, 4096), (30.0, 50)], ids=["in time", "in tokens"])
def test_a_client_that_does_not_read_is_hung_up_on(
    serve: Any, wire: Any, monkeypatch: pytest.MonkeyPatch, client_s: float, most_unsent: int
) -> None:
    monkeypatch.setattr("lamina.http.answering.MOST_UNSENT", most_unsent)
    body = LONG | {"stream": True, "n": 8, "logprobs": 20, "return_token_ids": True}
    with serve(engine={"kv_tokens": 8192}, client_s=client_s, send_bytes=4096) as server:
        with server.open_request(body, receive_bytes=4096) as connection:
            data = connection.recv(1)
            wire.until(lambda: not server.service.sending)
            assert server.settled()
            # A quick engine may have made all tokens before: what it has not is the end of its answer.
            while more := connection.recv(65536):
                data += more
            assert b"data: {" in data
            assert b"[DONE]" not in data
        assert server.post(LONG | {"max_tokens": 2})[0] == 200


def test_draining_lets_answers_end_and_takes_no_more(serve: Any, wire: Any) -> None:
    with serve(drain_s=60) as server:
        saved = server.connect()
        with server.open_request(LONG | {"stream": True, "max_tokens": 500}) as connection:
            data = connection.recv(65536)
            server.stop()
            wire.until(lambda: server.service.draining)
            for method, path, body in (("GET", "/health", None), ("POST", "/v1/completions", LONG)):
                assert "draining" in server.call(method, path, body).error(503)["message"]
            while more := connection.recv(65536):
                data += more
        assert data.rstrip().endswith(b"0")  # the last chunk
        assert b"data: [DONE]" in data
        tokens = sum(len(event["choices"]) for event in events(data))
        assert tokens > 0
        assert events(data)[-1]["choices"][0]["finish_reason"] == "length"
        saved.close()
    assert server.engine.idle


def test_requests_unfinished_after_draining_fail(serve: Any, wire: Any) -> None:
    with serve() as server:
        answers: list[tuple[int, Any]] = []
        thread = threading.Thread(target=lambda: answers.append(server.post(LONG | {"max_tokens": 500})))
        with server.open_request(LONG | {"stream": True, "max_tokens": 500}) as connection:
            data = connection.recv(65536)
            thread.start()
            wire.until(lambda: min(server.service.answered, server.driver.running) >= 2)
            server.stop()
            while more := connection.recv(65536):
                data += more
        thread.join(60)
        assert events(data)[-1]["error"]["type"] == "service_unavailable_error"
        ((status, reported),) = answers
        assert (status, reported["error"]["code"]) == (503, "closed")
    assert server.engine.idle
    assert server.engine.used_kv_tokens == 0


def test_a_second_signal_ends_at_once(serve: Any, wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    with serve(drain_s=3600) as server, server.open_request(LONG | {"max_tokens": 500}) as connection:
        wire.until(lambda: server.driver.running)
        with wire.stored(server.driver):
            server.stop()
            server.stop()
            wire.until(lambda: server.driver.closed)
        while connection.recv(65536):
            pass
    assert server.engine.idle
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_an_engine_that_fails_ends_the_server(serve: Any) -> None:
    with serve() as server:
        with server.open_request(LONG | {"stream": True, "max_tokens": 500}) as connection:
            data = connection.recv(65536)
            server.driver.schedule_call(server.engine.close)
            while more := connection.recv(65536):
                data += more
        last = events(data)[-1]
        assert last["error"]["type"] == "server_error"
        assert "the engine has failed" in last["error"]["message"]
    assert "the engine has failed" in server.driver.error


def test_metrics_count_the_work_done(serve: Any) -> None:
    with serve() as server:
        assert server.post(LONG | {"max_tokens": 10, "n": 2})[0] == 200
        assert server.post(LONG | {"max_tokens": 5, "stream": False, "prompt": [[1], [2]]})[0] == 200
        assert server.post({"prompt": [-1]})[0] == 400
        status, headers, data = server.call("GET", "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
        reported = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
        expected = {
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
        assert {name: reported[name] for name in expected} == expected
        assert reported['lamina_time_between_tokens_seconds_bucket{le="+Inf"}'] == 26
        assert reported["lamina_batch_size_sum"] == 30


OPENMETRICS, PLAIN = "application/openmetrics-text", "text/plain"
# What readers of metrics send as `accept`, and what they get.
ACCEPTED = {
    f"{OPENMETRICS}; version=1.0.0": OPENMETRICS,
    f"{OPENMETRICS};version=1.0.0;escaping=allow-utf-8;q=0.5,{PLAIN};q=0.2": OPENMETRICS,
    f"text/html, {OPENMETRICS};q=0.5": OPENMETRICS,
    f"{PLAIN};version=0.0.4": PLAIN,
    "": PLAIN,
    OPENMETRICS: OPENMETRICS,
    **{
        f"{OPENMETRICS}; version={odd}": PLAIN
        for odd in ("x.y.z", "1..0", "\xb2", "0.0.1", "", "1" + ".1" * 999 + "x")
    },
}


def test_metrics_come_as_the_reader_accepts_them(serve: Any) -> None:
    with serve() as server:
        assert server.post(LONG | {"max_tokens": 10})[0] == 200
        for accept, kind in ACCEPTED.items():
            status, headers, data = server.call("GET", "/metrics", headers={"accept": accept})
            assert (status, headers["content-type"].partition(";")[0]) == (200, kind), accept
            parsed = parsed_openmetrics if kind == OPENMETRICS else parsed_text
            families = list(parsed(data.decode()))
            samples = [sample for family in families for sample in family.samples]
            reported = {sample.name: sample.value for sample in samples if not sample.labels}
            assert reported["lamina_completion_tokens_total"] == 10
            assert reported["lamina_time_between_tokens_seconds_count"] == 9
        page = server.call("GET", "/metrics").body.decode()
    # A worker's time is there once it was requested, its counter always; the dashboard queries no other.
    families = list(parsed_text(page))
    there = {f"{family.name}_total" for family in families if family.type == "counter"}
    there |= {sample.name for family in families for sample in family.samples}
    requested = metrics_used("lamina_")
    assert len(requested) > 10
    assert requested <= there
