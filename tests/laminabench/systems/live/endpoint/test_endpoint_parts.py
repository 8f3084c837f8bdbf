"""The parts of a client: the URL, the events of a stream, and the tokens in each of them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.systems.live.endpoint import sse
from laminabench.systems.live.endpoint.setup import parse_url
from laminabench.systems.live.endpoint.sse import Events, EventsError, read_chunk, split_evenly, tokens_in
from laminabench.util.errors import UserError

LINES = st.sampled_from(
    ["data: {}", "data:x", "data: a: b", "data:", ": comment", "event: delta", "id", "", ""]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@pytest.mark.parametrize(
    ("text", "shown", "path"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", ""),
        ("https://example.test/gate/v1", "https://example.test/gate", "/gate"),
        ("http://[::1]:81/", "http://[::1]:81", ""),
        (" http://localhost ", "http://localhost", ""),
    ],
)
def test_a_url_is_read_with_or_without_the_version_of_the_api(text: str, shown: str, path: str) -> None:
    address = parse_url(text)
    assert (str(address), address.path) == (shown, path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("file:///etc/passwd", "http and https only"),
        ("127.0.0.1:8000", "http and https only"),
        ("http://", "no host"),
        ("http:///v1", "no host"),
        ("http://h:port", "Port could not"),
        ("http://h:99999", "Port out of range"),
        ("http://h:0", "port 0"),
        ("http://h/?key=secret", "leave out what follows the path"),
        ("http://h/a b", "characters"),
        ("http://[::1", "--url"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        parse_url(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["http://me:hidden@h", "ftp://me:hidden@h", "http://me:hidden@h:x"])
def test_a_password_in_a_url_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_url(text)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "loopback"), [("http://127.9.9.9", True), ("http://[::1]", True), ("http://10.0.0.1", False)]
)
def test_loopback_is_known_by_its_address(text: str, loopback: bool) -> None:
    assert parse_url(text).loopback is loopback


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"text": "ab", "token_ids": [5, 6, 7]}, (3, "token_ids")),
        ({"text": "ab", "logprobs": {"tokens": ["a", "b"]}}, (2, "logprobs")),
        ({"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}, (1, "logprobs")),
        ({"text": "ab", "logprobs": None, "token_ids": None}, (0, "even")),
    ],
)
def test_tokens_are_counted_by_the_best_that_an_event_says(
    choice: dict[str, Any], expected: tuple[int, str]
) -> None:
    chunk = read_chunk(json.dumps({"choices": [choice], "something": {"else": 1}}))
    assert chunk.choices
    assert tokens_in(chunk.choices[0]) == expected


@given(st.integers(0, 1000), st.integers(1, 50))
def test_tokens_are_split_evenly_and_none_is_lost(tokens: int, chunks: int) -> None:
    result = split_evenly(tokens, chunks)
    assert sum(result) == tokens
    assert max(result) - min(result) <= 1
    assert len(result) == chunks


def reference(text: str) -> list[bytes]:
    """The standard's own words: lines by any of three ends, an event at each empty line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    results: list[bytes] = []
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            results.append("\n".join(data).encode())
            data = []
    return results


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.sets(st.integers(0, 200)))
def test_events_are_the_same_wherever_the_pieces_are_cut(
    lines: list[tuple[str, str]], cuts: set[int]
) -> None:
    text = "".join(line + end for line, end in lines)
    whole = text.encode()
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    reader = Events()
    results = [event for a, b in pairwise(places) for event in reader.feed(whole[a:b])]
    # A carriage return at the very end may be half of a line's end: what it ends is not told of yet.
    expected = reference(text[:-1] if text.endswith("\r") else text)
    assert results == expected


def test_an_event_in_one_piece_and_byte_by_byte_are_the_same() -> None:
    piece = b'data: {"choices": []}\n\n'
    whole, single = Events(), Events()
    bytewise = [event for place in range(len(piece)) for event in single.feed(piece[place : place + 1])]
    assert whole.feed(piece) == bytewise == [b'{"choices": []}']


def feed_all(pieces: list[bytes]) -> list[bytes]:
    reader = Events()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_an_event_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 1000)
    for piece in (b"x" * 400, b"data: " + b"x" * 400 + b"\n"):
        with pytest.raises(EventsError):
            feed_all([piece] * 5)
