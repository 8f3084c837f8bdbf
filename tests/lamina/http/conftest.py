"""A small model with a tokenizer of its own, served over real sockets by a thread of the test."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from email.message import Message
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from lamina.http.app import Serving
    from lamina.http.choice import Tokenizer
    from lamina.http.driver import Driver
    from lamina.serve import Engine

VOCAB = 320
END = "<end>"
WORDS = (
    "the quick brown fox jumps over the lazy dog and the cat sat on the mat while rain in Spain stays mainly"
)
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('a system message comes first') }}{% endif %}"
    "<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A byte-level tokenizer, trained on a few words, with a chat template."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END, "<user>", "<assistant>", "<system>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([WORDS] * 4, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Any) -> Tokenizer:
    from lamina.http.choice import Tokenizer

    return Tokenizer.load(tokenizer_folder)


@pytest.fixture(scope="session")
def text_model() -> Any:
    """A model of the tokenizer's vocabulary, which ends at its end token."""
    import torch
    import transformers

    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def make_engine(text_model: Any) -> Callable[..., Engine]:
    """An engine in this process, with little memory."""
    from lamina.serve import Engine

    def make(**options: Any) -> Engine:
        return Engine(text_model, **({"kv_tokens": 2048, "max_sequences": 16, "threads": 1} | options))

    return make


class Response(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: Message
    body: bytes

    def error(self, *statuses: int) -> dict[str, Any]:
        """The error, whose form is checked; fails if it is another status."""
        assert self.status in statuses, f"{self.status}: {self.body[:300]!r}"
        assert self.headers["content-type"] == "application/json"
        reported = json.loads(self.body)
        assert list(reported) == ["error"]
        error: dict[str, Any] = reported["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["type"], str)
        assert all(isinstance(error[name], str | None) for name in ("param", "code"))
        assert isinstance(error["message"], str)
        assert error["message"]
        return error


class Server:
    """A server that runs in a thread, and what is needed to look behind it."""

    def __init__(self, serving: Serving, service: Any, url: str) -> None:
        self.serving, self.service, self.url = serving, service, url
        self.engine, self.driver = service.engine, service.driver
        self.loop: asyncio.AbstractEventLoop | None = None
        self.host, port = url.removeprefix("http://").split(":")
        self.port = int(port)

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Response:
        """The answer to one request on a connection of its own."""
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=60)) as connection:
            kind = {"content-type": "application/json"} if body is not None else {}
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, kind | (headers or {}))
            answer = connection.getresponse()
            return Response(answer.status, answer.headers, answer.read())

    def post(self, body: Any, path: str = "/v1/completions", **headers: str) -> tuple[int, Any]:
        """Status and JSON of a request's answer."""
        reported = self.call("POST", path, body, headers)
        return reported.status, json.loads(reported.body)

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """A connection to write on what one likes."""
        made = socket.socket()
        if receive_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.settimeout(60)
        made.connect((self.host, self.port))
        return made

    def open_request(self, body: Any, receive_bytes: int | None = None) -> socket.socket:
        """A connection with a request on it."""
        made = self.connect(receive_bytes)
        made.sendall(posted(body))
        return made

    def send_raw(self, raw: bytes) -> Response:
        """Send bytes as they are, and hear the answer."""
        with self.connect() as connection:
            connection.sendall(raw)
            return received(connection)

    def stop(self) -> None:
        """As a signal does."""
        assert self.loop
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self.serving.stop)

    def settled(self) -> bool:
        """Return whether no request waits or runs and all memory is free, after waiting a while for it."""
        requested = threading.Event()
        free: list[bool] = []

        def look() -> None:
            self.engine.check_integrity()
            free.append(self.engine.idle and self.engine.used_kv_tokens == 0)
            requested.set()

        for _ in range(400):
            requested.clear()
            self.driver.schedule_call(look)
            assert requested.wait(30)
            if free[-1] and self.driver.waiting == 0 and self.service.answered == 0:
                return True
            threading.Event().wait(0.01)
        return False

    def require_sound(self) -> None:
        """Fails unless nothing is left of anybody, and it still makes the tokens that it is asked for."""
        assert self.settled(), "somebody is still served, or KV belongs to nobody"
        status, reported = self.post({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True})
        assert (status, reported["usage"]["completion_tokens"]) == (200, 5)


def posted(body: Any, path: str = "/v1/completions", kind: str = "application/json") -> bytes:
    """A whole request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def received(connection: socket.socket, *, last: bool = False) -> Response:
    """The answer that comes over a connection; `last`: after which that is closed."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    with answer:
        result = Response(answer.status, answer.msg, answer.read())
    assert not last or connection.recv(1) == b""
    return result


def until(holds: Callable[[], object]) -> None:
    """Wait for it."""
    while not holds():
        time.sleep(0.002)


@contextlib.contextmanager
def stored(driver: Driver) -> Iterator[None]:
    """The driver's thread does nothing before the end of the block."""
    begun, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert let_go.wait(60)

    driver.schedule_call(hold)
    assert begun.wait(60)
    try:
        yield
    finally:
        let_go.set()


@pytest.fixture(scope="session")
def wire() -> Any:
    """What tests of the server are written with."""
    return SimpleNamespace(posted=posted, received=received, until=until, stored=stored)


Serve = Callable[..., contextlib.AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def serve(make_engine: Callable[..., Engine]) -> Serve:
    """Serve an engine until the block ends, with the socket, protocol and event loop of the real thing.

    With these options of the engine, or several engines, and these limits.
    """
    import uvloop

    from lamina.http.address import bound
    from lamina.http.app import Serving
    from lamina.http.service import Limits, Service
    from lamina.serve import Fleet

    @contextlib.contextmanager
    def serve(
        tokenizer: Tokenizer | None = None,
        *,
        api_key: str | None = None,
        send_bytes: int | None = None,
        engine: dict[str, Any] | None = None,
        engines: int = 1,
        requests: Any = None,
        **limits: Any,
    ) -> Iterator[Server]:
        made = make_engine(**engine or {}) if engines == 1 else Fleet([make_engine] * engines)
        with bound("127.0.0.1", 0) as sock:
            if send_bytes:  # that the system keeps for a client that does not read
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
            within = Limits(**({"drain_s": 0} | limits))
            service = Service(made, "small", tokenizer, within, api_key, "test", requests)
            ready = threading.Event()
            serving = Serving(service, sock, ready=ready.set)
            server = Server(serving, service, f"http://127.0.0.1:{sock.getsockname()[1]}")

            async def run() -> None:
                server.loop = asyncio.get_running_loop()
                await serving.serve()

            def loop() -> None:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(run())

            thread = threading.Thread(target=loop)
            thread.start()
            try:
                assert ready.wait(60)
                yield server
            finally:
                server.stop()
                thread.join(60)
                assert not thread.is_alive()

    return serve


@pytest.fixture(scope="session")
def server(serve: Serve, tokenizer: Tokenizer) -> Iterator[Server]:
    """One for all tests that only ask."""
    with serve(tokenizer) as running:
        yield running
