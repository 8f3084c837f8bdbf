"""What a connection, a body, and all of them together may cost the server, and by which name it is asked."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lamina.http.address import bound
from lamina.http.answering import Answering, CompletionForm
from lamina.http.api import ChatRequest, CompletionRequest, read
from lamina.http.choice import Delta
from lamina.http.driver import Update
from lamina.http.errors import ApiError
from lamina.serve import Piece, Sampling

SHORT = {"prompt": [5, 6], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
GET = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
KEY = "sk-local-123"


@pytest.fixture(scope="module")
def narrow(serve: Any) -> Iterator[Any]:
    with serve(body_bytes=50_000, most_connections=8) as running:
        yield running


@pytest.fixture(scope="module")
def named(serve: Any) -> Iterator[Any]:
    with serve(allowed_hosts=("my-machine",)) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(serve: Any) -> Iterator[Any]:
    with serve(api_key=KEY) as running:
        yield running


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (CHUNKED + b"2\r\n{}\r\n0\r\na: b\r\n\r\n", 400, "trailers"),
        (CHUNKED + b"2\r\n{}\r\n0\r\na: " + b"b" * 100_000, 431, "header"),
        (CHUNKED + b"2;a=" + b"b" * 100_000, 431, "header"),
        (HEAD + b"a:b\r\n" * 300 + b"\r\n", 431, "header"),
    ],
    ids=["trailers", "an endless trailer", "an endless extension", "headers"],
)
def test_headers_are_bounded(server: Any, wire: Any, sent: bytes, status: int, code: str) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        assert wire.received(connection, last=True).error(status)["code"] == code


def test_requests_wait_in_the_socket_and_not_here(server: Any, wire: Any) -> None:
    requested = 3000
    with server.connect() as connection:
        with wire.stored(server.driver):
            writer = threading.Thread(target=connection.sendall, args=(wire.posted(SHORT) + GET * requested,))
            writer.start()
            gate = server.serving.gate
            wire.until(lambda: gate.paused)
            (here,) = gate.paused
            assert len(here.waiting) < 60
            assert len(here._unparsed) < 300_000
        received = b""
        while received.count(b"HTTP/1.1 200") <= requested:
            received += connection.recv(1 << 20)
        writer.join()
    wire.until(lambda: not gate.paused)


def test_clients_that_disconnect_while_waiting_are_noticed(server: Any, wire: Any) -> None:
    with wire.stored(server.driver):
        with server.connect() as connection:
            connection.sendall(wire.posted(SHORT) + GET * 100)
            wire.until(lambda: server.serving.gate.paused)
        wire.until(lambda: server.service.answered == 0)
    assert server.settled()


@pytest.mark.parametrize("path", ["/v1/completions", "/nothing"])
def test_clients_answered_early_are_disconnected(keyed: Any, wire: Any, path: str) -> None:
    key = f"authorization: Bearer {KEY}\r\n" if path == "/nothing" else ""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{key}content-length: 1000\r\n\r\n"
    with keyed.connect() as connection:
        connection.sendall(head.encode() + b"x")
        assert wire.received(connection, last=True).status == (404 if key else 401)


def test_all_bodies_have_room_together(narrow: Any, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow.service, "most_buffered_bytes", 70_000)
    begun = HEAD + b"content-length: 40000\r\n\r\n" + b" " * 39_000
    with narrow.connect() as first, narrow.connect() as second:
        first.sendall(begun)
        wire.until(lambda: narrow.service.buffered_bytes == 39_000)
        second.sendall(begun)
        reported = wire.received(second)
        assert reported.error(503)["code"] == "bodies_too_large"
        assert reported.headers["retry-after"] == "1"
    wire.until(lambda: narrow.service.buffered_bytes == 0)
    narrow.require_sound()


def test_a_body_counts_until_its_answer(server: Any, wire: Any) -> None:
    body = wire.posted(SHORT)
    with server.connect() as connection, wire.stored(server.driver):
        connection.sendall(body)
        wire.until(lambda: server.driver.waiting)
        assert server.service.buffered_bytes == len(body.partition(b"\r\n\r\n")[2])
    assert server.settled()
    wire.until(lambda: server.service.buffered_bytes == 0)


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2, "logprobs": 3}])
def test_all_answers_have_room_together(
    server: Any, wire: Any, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    values = 2 * (2 * 5 if "n" in more else 1)
    monkeypatch.setattr(server.service, "most_unread", values + 1)
    with server.connect() as first, server.connect() as second:
        with wire.stored(server.driver):
            first.sendall(wire.posted(SHORT | more))
            wire.until(lambda: server.service.unread == values)
            second.sendall(wire.posted(SHORT | more))
            refused = wire.received(second)
            assert refused.error(503)["code"] == "answers_too_large"
            assert refused.headers["retry-after"] == "1"
        assert wire.received(first).status == 200
    wire.until(lambda: server.service.unread == 0)
    assert server.post({"prompt": [5, 6], "max_tokens": 10**6, "ignore_eos": True})[0] == 400
    assert server.service.unread == 0
    monkeypatch.undo()
    server.require_sound()


def test_an_answer_counts_until_it_is_read(serve: Any, wire: Any) -> None:
    body = SHORT | {"prompt": [[5, 6]] * 4, "n": 16, "max_tokens": 60, "logprobs": 20}
    with serve(send_bytes=4096) as running:
        with running.open_request(body, receive_bytes=4096) as connection:
            wire.until(lambda: running.service.unread)
            assert running.settled()
            assert running.service.unread == 4 * 16 * 60 * 22
            assert len(wire.received(connection).body) > 1_000_000
            wire.until(lambda: running.service.unread == 0)
        with running.open_request(body, receive_bytes=4096):
            wire.until(lambda: running.service.unread)
            assert running.settled()
            assert running.service.unread
        wire.until(lambda: running.service.unread == 0)


def test_the_largest_body_is_what_the_longest_prompt_takes(server: Any) -> None:
    service = server.service
    assert service.body_bytes == 262_144 + 32 * service.context
    prompt = [319] * (service.context - 2)
    assert len(json.dumps({"prompt": prompt})) < service.body_bytes


class Noting(ThreadPoolExecutor):
    """Counts what is done aside."""

    requested = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        self.requested += 1
        return super().submit(fn, *args, **more)


@pytest.mark.parametrize(
    ("body", "aside", "code"),
    [
        (b'{"prompt":[1]}', 0, None),
        (b'{"prompt":"' + b"[{,\\\\\\" + b'"' + b"[" * 70_000 + b'"}', 1, None),
        (b'{"prompt":[' + b",".join([b"319"] * 131_072) + b"]}", 1, None),
        (b'{"prompt":[' + b",".join([b"[1]"] * 1_000_000) + b"]}", 1, "body_too_many_values"),
        (b'{"prompt":[' + b",".join([b"1"] * 1_000_000) + b"]}", 1, "body_too_many_values"),
        (b'{"prompt":[' + b",".join([b'"a"'] * 40_000) + b"]}", 1, "body_too_many_values"),
        (b'{"prompt":[' + b",".join([b"[]"] * 2000) + b"]}", 1, "int_type"),
    ],
    ids=["small", "text", "numbers", "lists", "too many numbers", "texts", "many small lists"],
)
def test_large_bodies_are_read_aside_and_in_bounded_time(body: bytes, aside: int, code: str | None) -> None:
    with Noting(1) as threads:
        try:
            asyncio.run(read(body, CompletionRequest, threads))
            result = None
        except ApiError as error:
            result = error.code
    assert (result, threads.requested) == (code, aside)


@pytest.mark.parametrize(
    "metadata", [{"a": [1]}, {"a": {"b": "c"}}, {"a": 1}, {"a" * 65: "b"}, {"a": "b" * 513}]
)
def test_metadata_is_a_few_short_texts(metadata: Any) -> None:
    requested = {"messages": [{"role": "user", "content": "hi"}]}
    ChatRequest.model_validate_json(json.dumps(requested | {"metadata": {"a" * 64: "b" * 512}}))
    with pytest.raises(ValidationError):
        ChatRequest.model_validate_json(json.dumps(requested | {"metadata": metadata}))


class CountedTokens(tuple[int, ...]):
    """Tokens that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        CountedTokens.times += 1
        return super().__iter__()


def test_an_answer_is_joined_once(server: Any) -> None:
    request, pieces = CompletionRequest(prompt=[1], return_token_ids=True), 500

    async def answered() -> bytes:
        form = CompletionForm(request, "small", None)
        answering = Answering(server.driver, request, [[1]], Sampling(max_tokens=pieces), form, None)
        (ticket,) = answering.tickets
        whole = asyncio.create_task(answering.complete())
        for number in range(pieces):
            last = number == pieces - 1
            piece = Piece(0, CountedTokens((number,)), None, "length" if last else None)
            answering._receive(Update(ticket, pieces=[piece], ended=last))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return await whole

    CountedTokens.times = 0
    (choice,) = json.loads(asyncio.run(answered()))["choices"]
    assert choice["token_ids"] == list(range(pieces))
    assert CountedTokens.times <= 2 * pieces
    assert Delta.joined([]) == Delta(tokens=[])


def test_answers_have_a_size(server: Any) -> None:
    status, reported = server.post({"prompt": [[1]] * 256, "max_tokens": 300, "n": 16, "logprobs": 20})
    assert (status, reported["error"]["code"]) == (400, "answer_too_large")


def test_text_of_disconnected_clients_is_not_tokenized(
    server: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    encode = server.service.tokenizer.encode

    def noted(text: str, **more: Any) -> Any:
        begun.append(text)
        return encode(text, **more)

    monkeypatch.setattr(server.service.tokenizer, "encode", noted)
    let_go = threading.Event()
    busy = [server.service.threads.submit(let_go.wait, 60) for _ in range(2)]
    try:
        with server.open_request({"prompt": "a b " * 1000}):
            wire.until(lambda: server.service.answered == 1)
        wire.until(lambda: server.service.answered == 0)
    finally:
        let_go.set()
    for each in busy:
        assert each.result(60)
    server.service.threads.submit(int).result(60)  # what was in the queue has had its turn
    assert begun == []


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("host", "localhost:8000", 200),
        ("host", "LOCALHOST", 200),
        ("host", "127.0.0.7:1", 200),
        ("host", "[::1]:8000", 200),
        ("host", "my-machine:8000", 200),
        ("host", "evil.example", 421),
        ("host", "localhost.evil.example", 421),
        ("host", "localhost:80@evil.example", 421),
        ("host", "", 421),
        ("origin", "http://localhost:3000", 200),
        ("origin", "https://my-machine", 200),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
    ],
)
def test_without_a_key_it_answers_to_names_of_this_machine(
    named: Any, keyed: Any, name: str, value: str, status: int
) -> None:
    headers = {"host": "localhost", name: value}
    reported = named.call("GET", "/v1/models", headers=headers)
    assert reported.status == status
    if status != 200:
        expected = {"host": "host_not_allowed", "origin": "origin_not_allowed"}[name]
        assert reported.error(status)["code"] == expected
    assert keyed.call("GET", "/v1/models", headers=headers | {"authorization": f"Bearer {KEY}"}).status == 200


LIMITED = """
import resource, sys
from pathlib import Path
from lamina.http.connection import room
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
there = len(list(Path("/proc/self/fd").iterdir()))
found = room(1000)
print(*found, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - there)
"""


@pytest.mark.long(but=["128-200-False"])
@pytest.mark.parametrize(("soft", "hard", "whole"), [(128, 4096, True), (128, 200, False), (200, 200, False)])
def test_descriptors_are_for_all_connections_and_some_files(soft: int, hard: int, whole: bool) -> None:
    arguments = [sys.executable, "-c", LIMITED, str(soft), str(hard)]
    reported = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=120).stdout
    connections, rejected, spare = map(int, reported.split())
    assert (connections == 1000) == whole
    assert connections > 20
    assert spare - connections - rejected > 20


def test_a_flood_of_openings_leaves_no_descriptors(narrow: Any, wire: Any) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    narrow.call("GET", "/health")
    before, gate = open_files(), narrow.serving.gate
    gate.room = gate.room._replace(rejected=20)
    there = [narrow.connect() for _ in range(8)]
    for connection in there:
        connection.sendall(GET)
        assert wire.received(connection).status == 200
    flood = [narrow.connect() for _ in range(100)]
    wire.until(lambda: open_files() <= before + 2 * 8 + 100 + 21)
    reported = wire.received(flood[-1], last=True)
    assert reported.error(503)["code"] == "connections"
    for connection in (*there, *flood):
        connection.close()
    wire.until(lambda: open_files() <= before)
    narrow.require_sound()


def test_the_kernel_keeps_little_of_a_connection() -> None:
    buffers = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    with bound("127.0.0.1", 0) as sock:
        sock.listen()
        with socket.create_connection(sock.getsockname()), sock.accept()[0] as here:
            assert sum(here.getsockopt(socket.SOL_SOCKET, each) for each in buffers) <= 393_216
