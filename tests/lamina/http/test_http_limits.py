"""What the server refuses, in the API's own form, whatever is done to it."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from lamina.http.api import ChatRequest, CompletionRequest

KEY = "sk-local-123"
SHORT = {"prompt": [5, 6], "max_tokens": 2, "temperature": 0}
LONG = {"prompt": [5, 6], "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def strict(serve: Any) -> Iterator[Any]:
    """A server with narrow limits, and a key."""
    with serve(api_key=KEY, engine={"max_sequences": 2}, body_bytes=100_000, most_waiting=4) as running:
        yield running


@pytest.fixture(scope="module")
def few(serve: Any) -> Iterator[Any]:
    """A server that takes few connections."""
    with serve(most_connections=40) as running:
        yield running


@pytest.fixture(scope="module")
def hurried(serve: Any) -> Iterator[Any]:
    """A server that does not wait for its clients."""
    with serve(client_s=1.0) as running:
        yield running


def authorised() -> dict[str, str]:
    return {"authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    "harmless",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0},
        {"logit_bias": {}, "use_beam_search": False, "best_of": 1, "echo": False, "suffix": None},
        {"top_k": -1, "user": "me", "ignore_eos": True, "min_tokens": 2, "add_special_tokens": False},
        {"stop": [], "stop_token_ids": [], "logprobs": None, "response_format": {"type": "text"}},
        {"stream": False, "stream_options": None, "model": None, "request_id": "abc-1"},
    ],
)
def test_neutral_options_of_other_clients_are_accepted(server: Any, harmless: dict[str, Any]) -> None:
    status, reported = server.post(SHORT | harmless)
    assert (status, reported["usage"]["completion_tokens"]) == (200, 2)
    if "request_id" in harmless:
        assert reported["id"] == "cmpl-abc-1"


@pytest.mark.parametrize("items", [b"[]", b'""', b"-1", b"1.5"])
def test_only_the_first_of_many_wrong_items_is_reported(items: bytes) -> None:
    for field in (b"prompt", b"stop", b"stop_token_ids"):
        body = b'{"' + field + b'": [' + items + (b"," + items) * 10_000 + b"]}"
        with pytest.raises(ValidationError) as result:
            CompletionRequest.model_validate_json(body)
        assert result.value.error_count() < 10, field
    with pytest.raises(ValidationError) as result:
        ChatRequest.model_validate_json(b'{"messages": [' + items + (b"," + items) * 10_000 + b"]}")
    assert result.value.error_count() < 10


def test_thousands_of_unknown_fields_are_counted(server: Any) -> None:
    reported = server.call("POST", "/v1/completions", {f"f{i}": 1 for i in range(2000)} | SHORT)
    assert reported.error(400)["message"] == "2,000 things are wrong with the body"


def test_without_a_tokenizer_text_is_refused(strict: Any) -> None:
    for path, body, param in (
        ("/v1/completions", {"prompt": "text"}, "prompt"),
        ("/v1/completions", SHORT | {"stop": "a"}, "stop"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
    ):
        status, reported = strict.post(body, path, **authorised())
        assert (status, reported["error"]["param"]) == (400, param)
        assert "without a tokenizer" in reported["error"]["message"]
    status, reported = strict.post(SHORT | {"return_token_ids": True, "logprobs": 1}, **authorised())
    (choice,) = reported["choices"]
    assert (status, choice["text"], len(choice["token_ids"])) == (200, "", 2)
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


def test_the_api_key_is_required(strict: Any) -> None:
    wrong: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": KEY},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY}\u00e9"},
    ]
    for headers in wrong:
        for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/metrics")):
            reported = strict.call(method, path, SHORT if method == "POST" else None, headers)
            assert reported.error(401)["code"] == "invalid_api_key"
            assert reported.headers["www-authenticate"] == "Bearer"
            assert KEY not in reported.body.decode()
    assert strict.call("GET", "/v1/models", None, {"authorization": f"bearer {KEY}"})[0] == 200
    assert strict.call("GET", "/health")[0] == 200
    assert KEY not in repr(strict.service)


def test_a_large_body_is_refused_by_its_length(strict: Any, wire: Any) -> None:
    with strict.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {KEY}\r\nexpect: 100-continue\r\n".encode()
            + b"content-length: 100000000\r\n\r\n"
        )
        assert wire.received(connection, last=True).error(413)["code"] == "body_too_large"


def test_too_many_waiting(strict: Any, wire: Any) -> None:
    statuses = []

    def send() -> None:
        statuses.append(strict.call("POST", "/v1/completions", SHORT, authorised()).status)

    with wire.stored(strict.driver):
        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        wire.until(lambda: strict.driver.waiting >= 4)
        reported = strict.call("POST", "/v1/completions", SHORT, authorised())
    for thread in threads:
        thread.join()
    assert reported.error(429)["code"] == "rate_limit_exceeded"
    assert reported.headers["retry-after"] == "1"
    assert statuses == [200] * 4
    # Of a list all or none are taken.
    status, refused = strict.post(SHORT | {"prompt": [[1]] * 5}, **authorised())
    assert (status, refused["error"]["param"]) == (400, "prompt")
    assert strict.settled()


def test_a_long_header_is_refused_in_the_same_form(few: Any, wire: Any) -> None:
    with few.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 200_000)
        wire.received(connection, last=True).error(431)


@pytest.mark.parametrize("sent", [b"GET /health HTT", b""])
def test_a_header_that_does_not_come_is_not_waited_for(hurried: Any, sent: bytes, wire: Any) -> None:
    with hurried.connect() as connection:
        connection.sendall(sent)
        wire.received(connection, last=True).error(408)


def test_empty_lines_keep_no_connection(hurried: Any, wire: Any) -> None:
    with hurried.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert wire.received(connection).status == 200
        connection.sendall(b"\r\n")
        wire.received(connection, last=True).error(408)


@pytest.mark.parametrize("then", [b"", b"NONSENSE\r\n\r\n"], ids=["more of them", "nonsense"])
def test_clients_that_do_not_read_are_disconnected(serve: Any, wire: Any, then: bytes) -> None:
    requested = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * (1 if then else 100)
    with serve(client_s=0.3, send_bytes=4096) as server:
        with server.connect(receive_bytes=4096) as connection:
            connection.sendall(requested)
            there = server.serving.gate
            wire.until(lambda: there.answers)
            connection.sendall(then)
            wire.until(lambda: not there.connections)
        server.require_sound()


def test_a_length_of_thousands_of_digits_is_a_number(hurried: Any) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + b"0" * 5000
    assert hurried.send_raw(head + b"\r\n\r\n").status == 200


def test_too_many_connections(few: Any, wire: Any) -> None:
    idle = [few.connect() for _ in range(60)]
    try:
        messages = [wire.received(connection, last=True) for connection in idle[40:]]
        assert any(one.status == 503 and one.error(503)["code"] == "connections" for one in messages)
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("begun", [False, True])
def test_nonsense_after_a_request_ends_its_answer(
    few: Any, caplog: pytest.LogCaptureFixture, begun: bool, wire: Any
) -> None:
    with few.connect() as connection:
        if begun:
            connection.sendall(wire.posted(LONG))
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
            connection.sendall(b"NONSENSE\r\n\r\n")
            rest = b""
            with contextlib.suppress(OSError):  # it has hung up
                while more := connection.recv(65536):
                    rest += more
            assert b"HTTP/1.1" not in rest
            assert b"[DONE]" not in rest
        else:
            connection.sendall(wire.posted(LONG) + b"NONSENSE\r\n\r\n")
            assert wire.received(connection, last=True).error(400)["code"] == "not_http"
    assert few.settled()
    # That it was no HTTP is no error of the server.
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_refused_clients_get_no_100_continue(few: Any, caplog: pytest.LogCaptureFixture, wire: Any) -> None:
    body = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    body += b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\nNONSENSE\r\n"
    with few.connect() as connection:
        connection.sendall(body)
        assert wire.received(connection, last=True).error(400)["code"] == "not_http"
    assert few.settled()
    gc.collect()  # an unretrieved error of a task is reported when the task is collected
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
