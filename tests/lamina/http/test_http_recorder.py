"""Clients that come back for the rest of a stream: to the same server, and to one with the same journal."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lamina.http import answering, recorder
from lamina.http.recorder import Recorder, RecordError
from lamina.http.service import Requests
from laminabench.runs.journal import Journal

TOKENS = 40
BODY = {
    "prompt": [3, 4, 5],
    "max_tokens": TOKENS,
    "temperature": 1.0,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
HEADER = {"kind": "test"}


@contextlib.contextmanager
def journal(path: Path) -> Iterator[Requests]:
    """The requests of a journal, new or not."""
    if path.exists():
        log, records = Journal.reopen(path)
    else:
        log, records = Journal.create(path, HEADER), [HEADER]
    with contextlib.closing(log):
        yield Requests(log, HEADER, records[1:])


class Part(NamedTuple):
    """Some of a stream."""

    tokens: list[int]
    text: str
    last: str  # the id of the last event with tokens
    usage: Any
    done: bool


def read(server: Any, body: Any, events: int = 1000, *, last: str | None = None, **headers: str) -> Part:
    """So many events of a stream, after which the client hangs up."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    sent = {"content-type": "application/json"} | headers | ({"last-event-id": last} if last else {})
    tokens, text, number, usage, done = list[int](), "", last or "", None, False
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), sent)
        with connection.getresponse() as answer:
            assert answer.status == 200, answer.read()
            while events and (line := answer.readline()):
                name, _, value = line.decode().strip().partition(": ")
                if name == "id":
                    number = value
                elif value == "[DONE]":
                    done = True
                elif name == "data":
                    event, events = json.loads(value), events - 1
                    usage = event.get("usage")
                    for choice in event["choices"]:
                        tokens += choice["token_ids"]
                        text += choice["text"]
                        assert number in ("", str(int(last or 0) + len(tokens)))
    return Part(tokens, text, number, usage, done)


def test_the_rest_of_a_stream_comes_on_another_connection(serve: Any, tokenizer: Any, tmp_path: Path) -> None:
    with journal(tmp_path / "one") as requests, serve(tokenizer, requests=requests) as server:
        body = BODY | {"seed": 5}
        whole = read(server, body)
        assert (len(whole.tokens), whole.last, whole.done) == (TOKENS, "", True)
        first = read(server, body | {"request_id": "a"}, 7)
        second = read(server, body | {"request_id": "a"}, 9, last=first.last)
        third = read(server, body | {"request_id": "a"}, last=second.last)
        assert first.tokens + second.tokens + third.tokens == whole.tokens
        assert first.text + second.text + third.text == whole.text
        assert (third.last, third.usage, third.done) == (str(TOKENS), whole.usage, True)
        after = read(server, body | {"request_id": "a"}, last=third.last)
        assert (after.tokens, after.usage, after.done) == ([], whole.usage, True)
        again = read(server, body | {"request_id": "a"})
        assert (again.tokens, again.text) == (whole.tokens, whole.text)
        server.require_sound()


@pytest.mark.parametrize("how", [{"temperature": 0}, {"seed": 5}, {"seed": 5, "top_k": 9, "stream": False}])
def test_a_server_with_the_same_journal_goes_on(serve: Any, tmp_path: Path, wire: Any, how: Any) -> None:
    body = BODY | how | {"request_id": "a", "max_tokens": 300}
    if not body["stream"]:
        del body["stream_options"]
    with journal(tmp_path / "one") as requests, serve(requests=requests) as server:
        plain = {name: value for name, value in body.items() if name != "request_id"}
        whole = server.post({**plain, "stream": False, "stream_options": None})[1]["choices"][0]["token_ids"]
        first = read(server, body, 5) if body["stream"] else None
        if first is None:
            with server.open_request(body):
                wire.until(lambda: any(one.tokens for one in server.service.recorder._recordings.values()))
        (recording,) = server.service.recorder._recordings.values()
    assert recording.tokens  # and not all, unless this thread has waited long for a core
    with journal(tmp_path / "one") as requests, serve(requests=requests) as server:
        resumed = server.service.recorder._recordings[recording.key].tokens
        assert resumed[: len(recording.tokens)] == recording.tokens
        if first is None:
            answer = server.post(body)[1]
            assert answer["choices"][0]["token_ids"] == whole
            assert answer["created"] == recording.created
        else:
            rest = read(server, body, last=first.last)
            assert first.tokens + rest.tokens == whole
            assert rest.done
        server.require_sound()


def test_a_request_without_a_seed_keeps_its_draws(serve: Any, tmp_path: Path) -> None:
    body = BODY | {"request_id": "a", "max_tokens": 200}
    with journal(tmp_path / "one") as requests, serve(requests=requests) as server:
        first = read(server, body, 5)
        seed = next(iter(server.service.recorder._recordings.values())).sampling.seed
    with journal(tmp_path / "one") as requests, serve(requests=requests) as server:
        rest = read(server, body, last=first.last)
        wanted = read(server, BODY | {"max_tokens": 200, "seed": seed})
        assert first.tokens + rest.tokens == wanted.tokens


def test_a_stop_string_ends_it_at_the_same_place(serve: Any, tokenizer: Any, tmp_path: Path) -> None:
    with journal(tmp_path / "one") as requests, serve(tokenizer, requests=requests) as server:
        text = read(server, BODY | {"seed": 5}).text
        body = BODY | {"seed": 5, "stop": text[len(text) // 2 :][:3]}
        whole = read(server, body)
        assert 0 < len(whole.tokens) < TOKENS
        parts = [read(server, body | {"request_id": "a"}, 3)]
        parts.append(read(server, body | {"request_id": "a"}, last=parts[0].last))
        assert "".join(part.text for part in parts) == whole.text
        assert [token for part in parts for token in part.tokens] == whole.tokens
        assert parts[1].usage == whole.usage
        assert read(server, body | {"request_id": "a"}).text == whole.text
        server.require_sound()


def test_what_no_client_comes_back_for_is_paused(serve: Any, tmp_path: Path, wire: Any) -> None:
    body = BODY | {"seed": 5, "max_tokens": 400, "request_id": "a"}
    with journal(tmp_path / "one") as requests, serve(requests=requests, client_s=0.05) as server:
        first = read(server, body, 3)
        (recording,) = server.service.recorder._recordings.values()
        wire.until(lambda: recording.run is None)
        assert 3 <= len(recording.tokens) <= 400
        assert server.settled()
        rest = read(server, body, last=first.last)
        assert first.tokens + rest.tokens == read(server, BODY | {"seed": 5, "max_tokens": 400}).tokens


def test_what_was_made_before_counts_for_each_client_that_comes_for_it(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is fed at once; new streams only have what waits for their reader."""
    monkeypatch.setattr(answering, "MOST_UNSENT", 10)
    body = BODY | {"seed": 5, "request_id": "a"}
    with journal(tmp_path / "one") as requests, serve(requests=requests) as server:
        first = read(server, body)
        monkeypatch.setattr(server.service, "most_unread", TOKENS - 1)
        status, refused = server.post(body)
        assert (status, refused["error"]["code"]) == (503, "answers_too_large")
        monkeypatch.setattr(server.service, "most_unread", TOKENS)
        assert read(server, body).tokens == first.tokens
        server.require_sound()


def test_prompts_of_absent_clients_are_bounded(
    serve: Any, tmp_path: Path, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that leaves its prompts behind is no way around the limit of all bodies together."""
    monkeypatch.setattr(recorder, "MOST_ABSENT", 50)
    monkeypatch.setattr(recorder, "MOST_TOKENS", 0)
    body = BODY | {"prompt": [3] * 60, "seed": 5, "max_tokens": 400, "request_id": "a"}
    with journal(tmp_path / "one") as requests, serve(requests=requests, client_s=1000) as server:
        read(server, body, 3)
        wire.until(lambda: not server.service.recorder._recordings)
        assert server.settled()
        server.require_sound()


def test_what_is_refused(serve: Any, tmp_path: Path) -> None:
    def refused(body: Any, last: str | None = None, key: str = "one") -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}"} | ({"last-event-id": last} if last else {})
        answer = server.call("POST", "/v1/completions", body, headers)
        return answer.status, answer.error(answer.status)["code"]

    body = BODY | {"seed": 5, "request_id": "a"}
    with journal(tmp_path / "one") as requests, serve(requests=requests, api_key="one") as server:
        read(server, body, authorization="Bearer one")
        assert refused(body | {"seed": 6}) == (409, "request_id_conflict")
        assert refused(body | {"prompt": [3, 4, 6]}) == (409, "request_id_conflict")
        assert refused(body, str(TOKENS + 1)) == (409, "last_event_unknown")
        assert refused(body, "a") == (400, "last_event")
        assert refused(body | {"request_id": "b", "prompt": [2**32]}) == (400, "less_than")
        assert refused(body | {"request_id": "b"}, "3") == (404, "stream_unknown")
        assert refused(body | {"n": 2}, "3") == (404, "stream_unknown")
    with journal(tmp_path / "one") as requests, serve(requests=requests, api_key="two") as server:
        # An id belongs to a key.
        assert refused(body, "3", key="two") == (404, "stream_unknown")
        assert read(server, body | {"seed": 6}, 1, authorization="Bearer two").last
    with serve(api_key="one") as server:
        assert refused(body, "3") == (404, "stream_unknown")


def test_old_requests_leave_a_small_journal(
    serve: Any, tmp_path: Path, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SLACK_BYTES", 2000)
    monkeypatch.setattr(recorder, "MOST_RECORDINGS", 2)
    path = tmp_path / "one"
    with journal(path) as requests, serve(requests=requests) as server:
        for number in range(12):
            read(server, BODY | {"seed": number, "request_id": f"r{number}"})
        live = server.service.recorder._recordings
        wire.until(lambda: len(live) == 2 and requests.log.size < 5000)
        assert path.stat().st_size == requests.log.size
        whole = read(server, BODY | {"seed": 11, "request_id": "r11"})
        assert (
            server.call(
                "POST", "/v1/completions", BODY | {"seed": 1, "request_id": "r1"}, {"last-event-id": "3"}
            ).error(404)["code"]
            == "stream_unknown"
        )
    with journal(path) as requests, serve(requests=requests) as server:
        assert len(server.service.recorder._recordings) == 2
        rest = read(server, BODY | {"seed": 11, "request_id": "r11"}, last="4")
        assert rest.tokens == whole.tokens[4:]


def test_a_journal_that_cannot_be_written_ends_no_stream(serve: Any, tmp_path: Path) -> None:
    with journal(tmp_path / "one") as requests, serve(requests=requests) as server:

        def full(_: Any) -> None:
            raise OSError("the disk is full")

        requests.log.append = full  # type: ignore[method-assign]
        assert len(read(server, BODY | {"request_id": "a"}).tokens) == TOKENS
        answer = server.call("POST", "/v1/completions", BODY | {"request_id": "b"})
        assert answer.error(503)["code"] == "journal_failed"
        assert len(read(server, BODY).tokens) == TOKENS


BEGIN = ["begin", 0, b"k", b"d", 1, b"\0\0\0\0", b'{"max_tokens": 3}']


@pytest.mark.parametrize(
    "records",
    [
        ["?"],
        [["begin"]],
        [[*BEGIN[:-1], b'{"max_tokens": "3"}']],
        [[*BEGIN[:5], b"\0", BEGIN[-1]]],
        [["tokens", 0, b"", None]],
        [BEGIN, ["tokens", 0, b"\0", None]],
        [BEGIN, ["tokens", 0, b"", "cancelled"]],
        [BEGIN, ["drop", 1]],
    ],
)
def test_records_that_no_server_has_written(records: Any) -> None:
    made = Recorder(None, None, None, 1.0, None)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="makes no sense") as error:
        made.load(records)
    assert error.value.code == "journal-damaged"
