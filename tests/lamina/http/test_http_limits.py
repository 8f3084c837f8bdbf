"""What the server refuses, in the API's own form, whatever is done to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from lamina.http.api import ChatRequest, CompletionRequest
from lamina.http.service import Limits

ErrorOf = Callable[[bytes], dict[str, Any]]
Raw = Callable[[socket.socket], tuple[int, bytes]]
KEY = "sk-local-123"
SHORT = {"prompt": [5, 6], "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def strict(serve: Any, make_engine: Callable[..., Any]) -> Iterator[Any]:
    """A server with narrow limits, and a key."""
    limits = Limits(body_bytes=100_000, most_waiting=4, drain_s=0)
    with serve(make_engine(max_sequences=2), None, limits, KEY) as running:
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
def test_what_other_clients_send_and_means_nothing_is_taken(server: Any, harmless: dict[str, Any]) -> None:
    status, told = server.post(SHORT | harmless)
    assert (status, told["usage"]["completion_tokens"]) == (200, 2)
    if "request_id" in harmless:
        assert told["id"] == "cmpl-abc-1"


@pytest.mark.parametrize("items", [b"[]", b'""', b"-1", b"1.5"])
def test_of_millions_of_wrong_items_one_is_told(items: bytes) -> None:
    for field in (b"prompt", b"stop", b"stop_token_ids"):
        body = b'{"' + field + b'": [' + items + (b"," + items) * 10_000 + b"]}"
        with pytest.raises(ValidationError) as found:
            CompletionRequest.model_validate_json(body)
        assert found.value.error_count() < 10, field
    with pytest.raises(ValidationError) as found:
        ChatRequest.model_validate_json(b'{"messages": [' + items + (b"," + items) * 10_000 + b"]}")
    assert found.value.error_count() < 10


def test_thousands_of_unknown_fields_are_counted(server: Any, error_of: ErrorOf) -> None:
    status, _, data = server.call("POST", "/v1/completions", {f"f{i}": 1 for i in range(2000)} | SHORT)
    assert status == 400
    assert error_of(data)["message"] == "2,000 things are wrong with the body"


def test_without_a_tokenizer_text_is_refused(strict: Any) -> None:
    for path, body, param in (
        ("/v1/completions", {"prompt": "text"}, "prompt"),
        ("/v1/completions", SHORT | {"stop": "a"}, "stop"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
    ):
        status, told = strict.post(body, path, **authorised())
        assert (status, told["error"]["param"]) == (400, param)
        assert "without a tokenizer" in told["error"]["message"]
    status, told = strict.post(SHORT | {"return_token_ids": True, "logprobs": 1}, **authorised())
    (choice,) = told["choices"]
    assert (status, choice["text"], len(choice["token_ids"])) == (200, "", 2)
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


def test_the_key_is_asked_for(strict: Any, error_of: ErrorOf) -> None:
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
            status, told, data = strict.call(method, path, SHORT if method == "POST" else None, headers)
            assert status == 401
            assert told["www-authenticate"] == "Bearer"
            assert KEY not in data.decode()
            assert error_of(data)["code"] == "invalid_api_key"
    assert strict.call("GET", "/v1/models", None, {"authorization": f"bearer {KEY}"})[0] == 200
    assert strict.call("GET", "/health")[0] == 200
    assert KEY not in repr(strict.service)


def test_a_large_body_is_refused_by_its_length(strict: Any, error_of: ErrorOf, raw: Raw) -> None:
    with strict.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {KEY}\r\nexpect: 100-continue\r\n".encode()
            + b"content-length: 100000000\r\n\r\n"
        )
        status, body = raw(connection)
    assert status == 413
    assert error_of(body)["code"] == "body_too_large"


def test_too_many_waiting(strict: Any, error_of: ErrorOf) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert let_go.wait(60)

    statuses = []

    def ask() -> None:
        statuses.append(strict.call("POST", "/v1/completions", SHORT, authorised())[0])

    strict.service.driver.ask(hold)
    assert held.wait(60)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while strict.service.driver.waiting < 4:
        threading.Event().wait(0.005)
    status, headers, data = strict.call("POST", "/v1/completions", SHORT, authorised())
    let_go.set()
    for thread in threads:
        thread.join()
    assert (status, headers["retry-after"]) == (429, "1")
    assert error_of(data)["code"] == "rate_limit_exceeded"
    assert statuses == [200] * 4
    # Of a list all or none are taken.
    status, told = strict.post(SHORT | {"prompt": [[1]] * 5}, **authorised())
    assert (status, told["error"]["param"]) == (400, "prompt")
    assert strict.settled()
