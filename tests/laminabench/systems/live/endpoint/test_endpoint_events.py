from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.systems.live.endpoint import stream
from laminabench.systems.live.endpoint.stream import Events, EventsError

LINES = st.sampled_from(
    ["data: {}", "data:x", "data: a: b", "data:", ": comment", "event: delta", "id", "", ""]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def reference(text: str) -> list[bytes]:
    """The standard's own words: lines by any of three ends, an event at each empty line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    found: list[bytes] = []
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            found.append("\n".join(data).encode())
            data = []
    return found


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.sets(st.integers(0, 200)))
def test_events_are_the_same_wherever_the_pieces_are_cut(
    lines: list[tuple[str, str]], cuts: set[int]
) -> None:
    text = "".join(line + end for line, end in lines)
    whole = text.encode()
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    reader = Events()
    found = [event for a, b in pairwise(places) for event in reader.feed(whole[a:b])]
    # A carriage return at the very end may be half of a line's end: what it ends is not told of yet.
    expected = reference(text[:-1] if text.endswith("\r") else text)
    assert found == expected


def test_an_event_in_one_piece_and_byte_by_byte_are_the_same() -> None:
    piece = b'data: {"choices": []}\n\n'
    whole, single = Events(), Events()
    bytewise = [event for place in range(len(piece)) for event in single.feed(piece[place : place + 1])]
    assert whole.feed(piece) == bytewise == [b'{"choices": []}']


def feed_all(pieces: list[bytes]) -> list[bytes]:
    reader = Events()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_an_event_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_BYTES", 1000)
    for piece in (b"x" * 400, b"data: " + b"x" * 400 + b"\n"):
        with pytest.raises(EventsError):
            feed_all([piece] * 5)
