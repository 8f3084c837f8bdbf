"""Malformed requests: each is refused in the API's own form, and none costs memory or time."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HUGE = 100_000_000
REQUEST = {"prompt": [1, 2, 3], "max_tokens": 4}
CHAT_REQUEST = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"text"',
        b"{",
        b'{"prompt": [1, 2',
        b'{"prompt": [1], }',
        b'{"prompt": "a"} {"prompt": "b"}',
        b"{'prompt': 'a'}",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b"\xff\xfe{\x00}\x00",
        b'{"prompt": [1], "temperature": NaN}',
        b'{"prompt": [1], "temperature": Infinity}',
        b'{"prompt": [1], "top_p": -Infinity}',
        b'{"prompt": [1], "temperature": 1e999}',
        b'{"prompt": [1], "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": [' + b"9" * 5000 + b"]}",
        b'{"prompt": [1], "seed": 1e400}',
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"logit_bias": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    ],
    ids=range(24),
)
def test_invalid_requests_are_refused(target: Any, body: bytes) -> None:
    for path in (COMPLETIONS, CHAT):
        target.call("POST", path, body).error(400)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (
            "prompt",
            [None, "", [], [[]], [""], [-1], [320], [2**63], [1.5], [True], [1, "a"], [[1], "a"], {}, 7],
        ),
        ("prompt", [[[1]] * 8_000, [1] * 600, "a" * 600, [[1], [1] * 600]]),
        ("max_tokens", [-1, 0, 1.5, "4", True, 10**6, 2**63, 2**64]),
        ("n", [-1, 0, 1.5, "1", True, 65, 10**6, 33]),
        ("temperature", [-0.1, "1", True, [], 1e320]),
        ("top_p", [0, -1, 1.1, "1"]),
        ("top_k", [-2, 2**31, 1.5, "1"]),
        ("seed", [1.5, "1", 2**63, 2**64]),
        ("stop", ["", [""], ["a"] * 5, "a" * 10_000, [1], 1, {}]),
        ("stop_token_ids", [[-1], [320], [2**64], ["a"], 1, [1] * 1000]),
        ("logprobs", [-1, 21, 1000, True, "1"]),
        ("stream", ["yes", 1, []]),
        ("stream_options", [{"include_usage": True}, {"surprise": True}, []]),
        ("model", ["", 7, "a" * 10_000]),
        ("user", [7, "a" * 10_000]),
        ("request_id", ["a\r\nset-cookie: b", "", "a" * 1000]),
        ("min_tokens", [-1, 10, "1"]),
        ("best_of", [2]),
        ("echo", [True]),
        ("suffix", ["a"]),
        ("presence_penalty", [1, "0", 1e400]),
        ("frequency_penalty", [False]),
        ("repetition_penalty", [1.1]),
        ("logit_bias", [{"1": 100}]),
        ("response_format", [{"type": "json_object"}]),
        ("surprise", [1, None]),
        ("__proto__", [{}]),
        ("", [1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_asks_for_nonsense_is_refused_by_name(
    target: Any, field: str, values: list[Any]
) -> None:
    for value in values:
        reported = target.call("POST", COMPLETIONS, REQUEST | {field: value})
        error = reported.error(*((400, 404) if field == "model" else (400,)))
        # What the engine refuses, and not the server's own checks, names no field.
        of_engine = error["param"] is None and error["code"] in (None, "not_servable")
        assert error["param"] == field or of_engine, f"{value!r}: {error}"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hello",
        [None],
        [{}],
        [{"role": "user"}],
        [{"content": "hello"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": 1}],
        [{"role": "nobody", "content": "hello"}],
        [{"role": "tool", "content": "hello", "tool_call_id": "1"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
        [{"role": "user", "content": "hello", "surprise": 1}],
        [{"role": "user", "content": "a" * 600}],
        [{"role": "user", "content": "a"}] * 5000,
    ],
    ids=range(16),
)
def test_a_conversation_that_is_none_is_refused(target: Any, messages: Any) -> None:
    target.call("POST", CHAT, {"messages": messages, "max_tokens": 4}).error(400)


def test_refusals_do_not_echo_the_request(target: Any) -> None:
    secret = "do-not-repeat-this"
    for path, body in ((COMPLETIONS, {"prompt": {"a": secret}}), (CHAT, {"messages": [{"role": secret}]})):
        assert secret not in target.call("POST", path, body).error(400)["message"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_only_json_is_read(target: Any, kind: str) -> None:
    for path, body in ((COMPLETIONS, REQUEST), (CHAT, CHAT_REQUEST)):
        target.call("POST", path, body, {"content-type": kind}).error(415)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (405, "GET /v1/completions"),
        (405, "DELETE /v1/completions"),
        (405, "PUT /v1/chat/completions"),
        (405, "OPTIONS /v1/chat/completions"),
        (405, "TRACE /v1/models"),
        (405, "POST /health"),
        (405, "POST /metrics"),
        (405, "DELETE /v1/models"),
        (400, "BREW /health"),
        (404, "GET /"),
        (404, "GET /docs"),
        (404, "GET /v1/completions/"),
        (404, "POST //v1/completions"),
        (404, "GET /v1/models/another"),
        (404, "GET /v1/models/../../etc/passwd"),
        (404, "GET /v1/models/%00%ff%0d%0a"),
        (404, "POST /v1/embeddings"),
        (404, "GET /" + "a" * 10_000),
    ],
)
def test_another_method_or_place_is_refused(target: Any, status: int, line: str) -> None:
    raw = f"{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    target.send_raw(raw.encode()).error(status)


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,  # how TLS begins
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: many\r\n\r\n",
        HEAD + b"content-length: 99999999999999999999999999\r\n\r\n",
        HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
        HEAD + b"no colon here\r\n\r\n",
        HEAD + b"a: b\x00c\r\n\r\n",
    ],
    ids=range(13),
)
def test_invalid_http_is_refused_and_disconnected(target: Any, raw: bytes) -> None:
    with target.connect() as connection:
        connection.sendall(raw)
        message = everything(connection)
    assert message.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), message[:200]
    error = json.loads(message[message.index(b"\r\n\r\n") + 4 :])["error"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "endless", [b"a" * 1_000_000, b"a: " + b"b" * 1_000_000, b"a: b\r\n" * 200_000], ids=range(3)
)
def test_a_header_without_end_is_hung_up_on(target: Any, endless: bytes) -> None:
    with target.connect() as connection:
        with contextlib.suppress(OSError):  # hung up before all of it was sent
            connection.sendall(HEAD + endless)
        message = everything(connection)
    # A client that still sends when the server hangs up may not receive the reason.
    assert message[:12] in (b"HTTP/1.1 431", b"")


def everything(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    message = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65_536):
            message += more
    return message


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_mb_is_refused_without_being_stored(
    target: Any, resident_bytes: Callable[[], int], chunked: bool
) -> None:
    before = resident_bytes()
    megabyte = b" " * 1_000_000
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % HUGE
    sent, piece = 0, b"%x\r\n%b\r\n" % (len(megabyte), megabyte) if chunked else megabyte
    with target.connect() as connection:
        connection.sendall(HEAD + framing + b"\r\n\r\n")
        with contextlib.suppress(OSError):  # hung up
            while sent < HUGE:
                connection.sendall(piece)
                sent += len(megabyte)
        message = everything(connection)
    assert sent < HUGE / 2, "all of it was read"
    # The client may have been cut off before it looked; nothing else may be what it got.
    assert message[:12] in (b"HTTP/1.1 413", b"")
    assert resident_bytes() - before < 30_000_000


def test_a_too_large_body_is_refused(target: Any) -> None:
    reported = target.call("POST", COMPLETIONS, REQUEST | {"user": "a" * 2_000_000})
    assert "1,000,000" in reported.error(413)["message"]


def test_stalled_clients_are_disconnected(hasty: Any) -> None:
    """With nothing, half a line, half a header and half a body."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(hasty.connect()) for _ in range(4)]
        begun = (b"", HEAD[:12], HEAD, HEAD + b"content-length: 100\r\n\r\n{")
        for connection, message in zip(waiting, begun, strict=True):
            connection.sendall(message)
        for connection in waiting:
            everything(connection)
    assert time.monotonic() - began > 0.9 * hasty.service.limits.client_s


def test_slow_clients_do_not_block_others(hasty: Any) -> None:
    """Fifty clients that send a byte now and then, and never a whole header."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(hasty.connect()) for _ in range(50)]
        for letter in HEAD * 100:
            slow = [connection for connection in slow if goes_on(connection, letter)]
            hasty.require_sound()
            if not slow:
                return
    pytest.fail(f"{len(slow)} were never hung up on")


def goes_on(connection: socket.socket, letter: int) -> bool:
    """Whether the other side still takes a byte."""
    try:
        connection.send(bytes([letter]))
    except OSError:
        return False
    return True
