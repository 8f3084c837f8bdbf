"""`laminabench serve` as a process: it says where it is, survives its workers, and ends when asked to."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from processes import children_of

from laminabench.systems.live.lamina import served
from laminabench.util.errors import UserError

TOKENS = 60
REQUEST = {"prompt": [3, 4, 5], "max_tokens": TOKENS, "temperature": 1.0, "seed": 9, "return_token_ids": True}
JOURNALED = REQUEST | {"stream": True, "request_id": "one", "max_tokens": 400, "ignore_eos": True}


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process, self.ready = process, ready
        self.address = urllib.parse.urlsplit(ready["url"])
        (self.fork_server,) = children_of(process.pid)

    @contextlib.contextmanager
    def requested(
        self, method: str, path: str, body: Any = None, more: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer that has begun."""
        connection = http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=120)
        with contextlib.closing(connection):
            headers = {"content-type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, {**headers, **(more or {})})
            with connection.getresponse() as answer:
                yield answer

    def call(self, method: str, path: str, body: Any = None) -> str:
        with self.requested(method, path, body) as answer:
            return answer.read().decode()

    def tokens(self, **more: Any) -> list[int]:
        answer = json.loads(self.call("POST", "/v1/completions", REQUEST | more))
        results: list[int] = answer["choices"][0]["token_ids"]
        return results

    def streamed(self, meanwhile: Callable[[], object], **more: Any) -> list[int]:
        """Tokens of a stream, after whose first line something is done."""
        with self.requested("POST", "/v1/completions", REQUEST | {"stream": True} | more) as answer:
            lines = [answer.readline()]
            meanwhile()
            lines += answer.readlines()
        assert lines[-2].strip() == b"data: [DONE]"
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        return [token for event in events for token in event["choices"][0]["token_ids"]]


@contextlib.contextmanager
def serving(*more: str) -> Iterator[Served]:
    """One that serves the smallest model."""
    # In float32 tokens that are computed again are the same.
    command = ["serve", "--model", "llama-tiny", "--dtype", "fp32", "--port", "0", "--json", "-q"]
    limits = ["--kv-tokens", "20000", "--max-num-seqs", "16", "--drain-timeout", "120"]
    with subprocess.Popen(
        [sys.executable, "-m", "laminabench", *command, *limits, "--oversubscribe", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            yield Served(process, json.loads(line))
        finally:
            process.kill()


def part(server: Served, last: int) -> Iterator[tuple[int, list[int]]]:
    """Yield ids and tokens of the events of one stream after the last that a client has."""
    headers = {"last-event-id": str(last)} if last else {}
    with server.requested("POST", "/v1/completions", JOURNALED, headers) as answer:
        assert answer.status == 200
        for line in answer:
            if line.startswith(b"id: "):
                last = int(line[4:])
            elif line.startswith(b"data: {"):
                yield last, json.loads(line[6:])["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The journal of a server that was killed during a stream, and the tokens that a client has."""
    journal = tmp_path_factory.mktemp("killed") / "journal"
    tokens: list[int] = []
    with serving("--journal", str(journal)) as server:
        assert journal.stat().st_mode & 0o777 == 0o600
        for last, new in part(server, 0):
            tokens += new
            if last >= 20:
                break
        server.process.kill()
        server.process.wait()
    assert 20 <= len(tokens) == last < JOURNALED["max_tokens"]
    with journal.open("ab") as file:
        file.write(b"\x20\0\0\0 torn")
    return journal, tokens


@pytest.fixture(scope="module")
def running(killed: tuple[Path, list[int]]) -> Iterator[Served]:
    """A server that resumes from that journal: a start takes long, so it is every test's."""
    with serving("--journal", str(killed[0])) as served:
        yield served


def test_it_says_where_it_is_and_serves_there(running: Served) -> None:
    assert running.ready == {"url": f"http://127.0.0.1:{running.address.port}", "model": "llama-tiny"}
    (model,) = json.loads(running.call("GET", "/v1/models"))["data"]
    assert (model["id"], model["max_model_len"]) == ("llama-tiny", 20000)
    first = running.tokens()
    assert len(first) == TOKENS
    assert running.tokens(seed=10) != first


def test_a_killed_server_resumes_from_its_journal(
    running: Served, killed: tuple[Path, list[int]], refused: Any, tmp_path: Path
) -> None:
    journal, tokens = killed
    resumed = [*tokens, *(token for _, new in part(running, len(tokens)) for token in new)]
    body = {name: JOURNALED[name] for name in ("max_tokens", "ignore_eos")}
    assert resumed == running.tokens(**body)
    refused("is in use", "serve --model llama-tiny --port 0 --journal", str(journal))
    copy = tmp_path / "journal"
    shutil.copyfile(journal, copy)
    refused("and this server", "serve --model llama-mini --port 0 --journal", str(copy))
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    refused("is damaged: the record at byte", "serve --model llama-tiny --port 0 --journal", str(copy))
    assert copy.read_bytes() == data


def test_a_worker_that_is_lost_ends_no_stream(running: Served) -> None:
    expected = running.tokens()
    victim = children_of(running.fork_server)[-1]
    assert running.streamed(lambda: os.kill(victim, signal.SIGKILL)) == expected
    metrics = running.call("GET", "/metrics")
    assert "lamina_faults_total 1.0" in metrics
    assert 'lamina_worker_busy_seconds_total{worker="attention 0"}' in metrics


def test_a_port_that_is_taken(running: Served, refused: Any) -> None:
    refused(
        f"cannot listen on 127.0.0.1 port {running.address.port}",
        "serve --model llama-tiny --port",
        str(running.address.port),
    )


def test_it_drains_when_it_is_terminated(running: Served) -> None:
    workers = [running.fork_server, *children_of(running.fork_server)]
    assert len(workers) == 3
    tokens = running.streamed(lambda: running.process.send_signal(signal.SIGTERM), max_tokens=2 * TOKENS)
    assert len(tokens) == 2 * TOKENS
    assert running.process.wait(60) == 0
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert running.process.stderr
    assert running.process.stderr.read() == ""


@pytest.mark.long
def test_several_engines_have_requests_in_turn_and_end_together() -> None:
    """Long because a server's start is."""
    with serving("--instances", "2") as running:
        assert json.loads(running.call("GET", "/health"))["instances"] == ["open", "open"]
        workers = [running.fork_server, *children_of(running.fork_server)]
        assert len(workers) == 5
        expected = running.tokens()
        assert worked(running, "0/model 0", "0/attention 0") == {"0/model 0", "0/attention 0"}
        assert running.tokens() == expected
        both = {f"{number}/{kind} 0" for number in (0, 1) for kind in ("model", "attention")}
        assert worked(running, *both) == both
        assert running.streamed(lambda: running.process.send_signal(signal.SIGTERM)) == expected
        assert running.process.wait(60) == 0
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        assert running.process.stderr
        assert running.process.stderr.read() == ""


def worked(running: Served, *expected: str) -> set[str]:
    """Workers that have computed; asked until these have, as a report is of when it was asked for before."""
    line = r'^lamina_worker_busy_seconds_total{worker="(.*)"} (.*)$'
    while True:
        result = re.findall(line, running.call("GET", "/metrics"), re.M)
        busy = {worker for worker, seconds in result if float(seconds)}
        if busy >= set(expected):
            return busy
        select.select([], [], [], 0.01)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "192.168.1.1"])
def test_other_machines_need_a_key(refused: Any, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def bound(*_: Any) -> None:
        raise AssertionError("it has listened")

    monkeypatch.delenv(served.KEY_VARIABLE, raising=False)
    monkeypatch.setattr(socket.socket, "bind", bound)
    refused(
        f"--host {host} is reachable from other machines: give an API key",
        "serve --model llama-tiny --host",
        host,
    )


def test_where_the_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(served.KEY_VARIABLE, raising=False)
    assert served.api_key(None) is None
    monkeypatch.setenv(served.KEY_VARIABLE, "of-the-environment")
    assert served.api_key(None) == "of-the-environment"
    file = tmp_path / "key"
    file.write_text("of-the-file\n")
    assert served.api_key(file) == "of-the-file"
    for wrong in ("", "  \n", "two words", "two\nlines", "schlüssel"):
        file.write_text(wrong)
        with pytest.raises(UserError, match="serve-api-key"):
            served.api_key(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="serve-api-key"):
        served.api_key(file)


def test_where_the_tokenizer_is(tmp_path: Path) -> None:
    assert served.tokenizer_of("llama-tiny", None) is None
    assert served.tokenizer_of(str(tmp_path), None) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    assert served.tokenizer_of(str(tmp_path), None) == tmp_path
    assert served.tokenizer_of(str(tmp_path / "config.json"), None) == tmp_path
    assert served.tokenizer_of("llama-tiny", tmp_path) == tmp_path
    with pytest.raises(UserError, match="serve-no-tokenizer"):
        served.tokenizer_of("llama-tiny", tmp_path / "none")


def test_flags_that_make_no_sense(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("not JSON")
    for arguments, sentence in ((("--tokenizer", str(tmp_path)), "no tokenizer that can be read"),):
        refused(sentence, "serve", "--model", "llama-tiny", "--port", "0", *arguments)
