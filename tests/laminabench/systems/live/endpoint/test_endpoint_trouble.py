"""Servers that misbehave: every failure is counted under its name, and the replay goes on."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from laminabench.runs.status import DONE, FAILED, UNFINISHED
from laminabench.sim.simulate import Offered
from laminabench.systems.live.endpoint.attempts import Attempts
from laminabench.systems.live.endpoint.records import Records
from laminabench.systems.live.endpoint.replaying import replay
from laminabench.systems.live.endpoint.setup import Behind, EndpointSetup, Served, parse_url
from laminabench.systems.live.endpoint.sse import Stream
from laminabench.systems.live.endpoint.wire import CLOSED, Connection, Departures, NoConnectionError, Pool
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.redact import Secret

Replayed = Callable[..., Any]
MakeTrace = Callable[..., Trace]


def does(*steps: Any) -> Any:
    """An answer of these steps: what `Request` can do, by its name, with arguments where it takes any."""

    async def answer(requested: Any) -> None:
        for step in steps:
            name, arguments = step if isinstance(step, tuple) else (step, {})
            done = getattr(requested, name)(**arguments)
            if done is not None:
                await done

    return answer


def refusal(status: int, **fields: str) -> Any:
    return does(("plain", {"status": status, "body": {"error": {"message": "no"}}, **fields}))


BEGUN = ("stream", ("token", {"usage": 1}))
reset_at_once, reset_in_mid_stream, cut_short = does("reset"), does(*BEGUN, "reset"), does(*BEGUN, "over")
garbage_events = does("stream", ("event", {"message": "{not json"}), "end")
NESTED = '{"x": ' + "[" * 100_000
nested_event = does("stream", ("event", {"message": NESTED}), "end")
nested_refusal = does(("plain", {"status": 400, "body": NESTED.encode()}))
error_in_stream = does("stream", ("event", {"message": {"error": {"message": "out of memory"}}}), "end")
no_stream = does(("plain", {"status": 200, "body": {"choices": [{"text": "all of it"}]}}))
nothing_in_it = does("stream", ("end", {"usage": 0}))
no_number = does("stream", ("token", {"usage": 2**70}), "end")
fewer_than_none = does(*BEGUN, ("end", {"usage": -1}))
not_found, broken, busy = refusal(404), refusal(500), refusal(429, Retry_After="0")


async def no_http(requested: Any) -> None:
    requested.writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")


async def silent(_: Any) -> None:
    await asyncio.sleep(60)


async def stuck(requested: Any) -> None:
    requested.stream()
    await requested.token(usage=1)
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("answer", "error", "status", "tokens"),
    [
        (reset_at_once, "connection", -1, 0),
        (reset_in_mid_stream, "connection", 200, 1),
        (cut_short, "the stream stopped before its end", 200, 1),
        (garbage_events, "an event that is no part of a completion", 200, 0),
        (nested_event, "an event that is no part of a completion", 200, 0),
        (error_in_stream, "an error in the stream", 200, 0),
        (no_number, "an event that is no part of a completion", 200, 0),
        (fewer_than_none, "an event that is no part of a completion", 200, 1),
        (no_stream, "the answer is no stream of events", 200, 0),
        (no_http, "not an answer in HTTP", -1, 0),
        (nothing_in_it, "a stream without tokens", 200, 0),
        (not_found, "HTTP 404", 404, 0),
        (broken, "HTTP 500", 500, 0),
    ],
)
def test_what_goes_wrong_is_named_and_the_replay_goes_on(
    server: Any, observed: Replayed, make_trace: MakeTrace, answer: Any, error: str, status: int, tokens: int
) -> None:
    server.answers.append(answer)
    result = observed(make_trace(requests=3, output=2), mode="closed", concurrency=1)
    calls, chunks = result.outcome.calls, result.outcome.chunks
    assert result.outcome.requests["status"].tolist() == [FAILED, DONE, DONE]
    assert calls["error"][0].startswith(error)
    assert calls["error"][1:].tolist() == ["", ""]
    assert calls["status_code"][0] == status
    assert chunks["tokens"][chunks["request"] == 0].sum() == tokens
    assert calls["error"][0] in result.facts["first_errors"]


@pytest.mark.parametrize(
    ("answer", "again"),
    [(reset_at_once, True), (busy, True), (broken, True), (not_found, False), (reset_in_mid_stream, False)],
)
def test_transient_failures_are_retried_and_counted(
    server: Any, observed: Replayed, make_trace: MakeTrace, answer: Any, again: bool
) -> None:
    server.answers.extend([answer, answer])
    result = observed(make_trace(requests=1), retries=3, mode="closed", concurrency=1)
    assert result.outcome.calls["attempts"].tolist() == [3 if again else 1]
    assert result.outcome.requests["status"].tolist() == [DONE if again else FAILED]


def test_a_server_says_when_to_come_again(server: Any, observed: Replayed, make_trace: MakeTrace) -> None:
    came: list[float] = []

    async def later(requested: Any) -> None:
        came.append(time.monotonic())
        requested.plain(429, {}, Retry_After="0.4")

    async def now(requested: Any) -> None:
        came.append(time.monotonic())
        await server.good(requested)

    server.answers.extend([later, now])
    result = observed(make_trace(requests=1), retries=1)
    assert result.outcome.requests["status"].tolist() == [DONE]
    assert came[1] - came[0] >= 0.4


@pytest.mark.parametrize(
    ("answer", "limits", "error"),
    [
        (silent, {"first_byte_timeout": 0.2}, "time-out: no answer in 0.2 s"),
        (stuck, {"timeout": 0.4}, "time-out: not done in 0.4 s"),
    ],
)
def test_nothing_waits_forever(
    server: Any, observed: Replayed, make_trace: MakeTrace, answer: Any, limits: dict[str, float], error: str
) -> None:
    server.answers.append(answer)
    result = observed(make_trace(requests=1), **limits)
    assert result.outcome.calls["error"].tolist() == [error]
    assert result.outcome.requests["status"].tolist() == [FAILED]


def test_a_lost_server_ends_the_replay_early(server: Any, observed: Replayed, make_trace: MakeTrace) -> None:
    async def last_words(requested: Any) -> None:
        server.go_away()
        await server.good(requested)

    server.answers.append(last_words)
    # Far longer than this machine may stand still: what is late is sent at once, and would all have failed.
    result = observed(make_trace(requests=3000, gap_s=0.01), retries=0)
    assert result.partial is not None
    assert "took no connection" in result.partial.why
    status = result.outcome.requests["status"].tolist()
    assert status[0] == DONE
    assert status.count(FAILED) >= 16
    assert status[-1] == UNFINISHED
    assert not result.interrupted


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("nobody", "endpoint-unreachable"),
        ("no TLS", "endpoint-unreachable"),
        ("no host", "endpoint-unknown-host"),
    ],
)
def test_an_unreachable_server_is_an_error(server: Any, make_trace: MakeTrace, where: str, code: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without a listener
        url = {
            "nobody": f"http://127.0.0.1:{taken.getsockname()[1]}",
            "no TLS": server.url.replace("http:", "https:"),
            "no host": "http://no-such-host.invalid",
        }[where]
        setup = EndpointSetup(Behind(parse_url(url)), Served("m"))
        with pytest.raises(UserError, match=code):
            replay(make_trace(), setup, Offered("open", 0, None), seed=0)


def test_no_thread_or_connection_is_left(server: Any, observed: Replayed, make_trace: MakeTrace) -> None:
    before = threading.active_count()
    server.answers.append(stuck)
    observed(make_trace(requests=2), timeout=0.3)
    assert threading.active_count() == before


def test_a_connection_that_was_lost_before_it_was_used_is_one_that_closed() -> None:
    async def fetch() -> Stream:
        connection = Connection(lambda lost: None, Departures())
        connection.connection_made(asyncio.Transport())
        connection.connection_lost(None)
        stream = Stream(Records(np.zeros(1, np.int64)), 0, asyncio.get_running_loop().create_future())
        connection.send_request(b"GET / HTTP/1.1\r\n\r\n", stream)
        await stream.over
        return stream

    assert asyncio.run(fetch()).error == CLOSED


def test_what_is_lost_on_the_way_to_the_server_is_not_lateness_of_the_client() -> None:
    class Slow(Pool):
        async def take(self) -> Connection:
            await asyncio.sleep(0.2)
            raise NoConnectionError("no connection in time", "none")

    records = Records(np.zeros(1, np.int64))
    pool = Slow(parse_url("http://127.0.0.1:1"), [], None)
    began_s = time.monotonic()
    attempts = Attempts(pool, records, 9.0, 9.0, retries=0)
    asyncio.run(attempts.serve(0, b"", attempts.begin(0, b"", began_s)))
    assert records.calls["error"] == ["no connection in time"]
    assert time.monotonic() - records.calls["sent_s"][0] >= 0.2


def test_nested_json_is_a_refusal_like_others(server: Any, observed: Replayed, make_trace: MakeTrace) -> None:
    server.usual = nested_refusal
    with pytest.raises(UserError) as raised:
        observed(make_trace(requests=1))
    assert raised.value.code == "endpoint-refused"


@pytest.mark.parametrize("length", [480, 495])
def test_a_secret_is_hidden_before_what_it_is_in_is_cut(
    server: Any, observed: Replayed, make_trace: MakeTrace, length: int
) -> None:
    async def echo(requested: Any) -> None:
        requested.plain(404, ("." * length + requested.fields["x-mine"]).encode())

    server.answers.append(echo)
    result = observed(make_trace(requests=1), fields=(("X-Mine", Secret("private-as-can-be")),))
    (message,) = result.facts["first_errors"].values()
    assert "p" not in message
    assert len(message) <= 500


@pytest.mark.parametrize("workers", [1, 2])
def test_an_overloaded_client_is_reported(
    observed: Replayed, make_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    idle = observed(make_trace(requests=3), client_workers=workers)
    assert idle.facts["busiest_client"] > 0
    monkeypatch.setattr("laminabench.systems.live.endpoint.replaying.TOO_BUSY", 0.0)
    busy = observed(make_trace(requests=3), client_workers=workers)
    assert any("--client-workers" in note for note in busy.notes)
