"""What clients that mean a server no good need: a server to themselves, and sockets that send anything."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lamina.http.tokenizer import Tokenizer
    from lamina.serve import Engine

PATIENCE_S = 60
BODY_BYTES = 1_000_000


@dataclass(frozen=True)
class Heard:
    """An HTTP answer."""

    status: int
    headers: Message
    body: bytes

    def require_error(self, *statuses: int) -> str:
        """The message of an error in the API's format; fails if it is another status, or another format."""
        assert self.status in statuses, f"{self.status}: {self.body[:300]!r}"
        assert self.headers["content-type"] == "application/json"
        told = json.loads(self.body)
        assert list(told) == ["error"]
        error = told["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["type"], str)
        assert all(isinstance(error[name], str | None) for name in ("param", "code"))
        assert isinstance(error["message"], str)
        assert error["message"]
        return error["message"]


@dataclass(frozen=True)
class Target:
    """A server of the folder above, to be talked to by the byte."""

    server: Any

    def connect(self) -> socket.socket:
        """A connection that waits for nothing longer than a test may."""
        return socket.create_connection((self.server.host, self.server.port), timeout=PATIENCE_S)

    def say(self, raw: bytes) -> Heard:
        """Send bytes as they are, and hear the answer."""
        with self.connect() as connection:
            connection.sendall(raw)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            with answer:
                return Heard(answer.status, answer.msg, answer.read())

    def post(self, path: str, body: bytes, kind: str = "application/json") -> Heard:
        """A request as it should be, with any body."""
        head = f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}"
        return self.say(head.encode() + b"\r\n\r\n" + body)

    def require_sound(self) -> None:
        """Fails unless nothing is left of anybody, and it still makes the tokens that it is asked for."""
        assert self.server.settled(), "somebody is still served, or KV belongs to nobody"
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True}).encode()
        told = self.post("/v1/completions", body)
        assert told.status == 200
        assert json.loads(told.body)["usage"]["completion_tokens"] == 5


@pytest.fixture(scope="session")
def resident_bytes() -> Callable[[], int]:
    """How much memory this process has, which the server is a thread of."""
    status = Path("/proc/self/status")
    return lambda: int(status.read_text().split("VmRSS:")[1].split()[0]) * 1024


@pytest.fixture(scope="module")
def target(serve: Any, make_engine: Callable[..., Engine], tokenizer: Tokenizer) -> Iterator[Target]:
    """One server for all tests of a file; afterwards nothing may be left of anybody."""
    from lamina.http.service import Limits

    with serve(
        make_engine(kv_tokens=4096, max_sequences=32), tokenizer, Limits(BODY_BYTES, drain_s=0)
    ) as server:
        found = Target(server)
        yield found
        found.require_sound()


@pytest.fixture(scope="module")
def hasty(serve: Any, make_engine: Callable[..., Engine], tokenizer: Tokenizer) -> Iterator[Target]:
    """One that has little patience with its clients."""
    from lamina.http.service import Limits

    with serve(make_engine(), tokenizer, Limits(client_s=3.0, drain_s=0)) as server:
        found = Target(server)
        yield found
        found.require_sound()
