"""Text as tokens come: the pieces add up to the whole, and stop strings are found wherever they fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.http.choice import LONGEST_WINDOW, Detokenizer, StopStrings


def of_bytes(ids: Sequence[int]) -> str:
    """Of a tokenizer whose tokens are bytes: the hardest case for characters of several."""
    return bytes(ids).decode(errors="replace")


@given(st.text(max_size=60))
def test_only_complete_characters_are_reported(text: str) -> None:
    detokenizer, reported = Detokenizer(of_bytes), ""
    for byte in text.encode():
        reported += detokenizer.feed([byte])
        assert text.startswith(reported)
    assert reported + detokenizer.flush() == text


@given(st.binary(max_size=LONGEST_WINDOW), st.integers(1, 5))
def test_pieces_of_anything_add_up(data: bytes, size: int) -> None:
    detokenizer, reported = Detokenizer(of_bytes), ""
    for begin in range(0, len(data), size):
        reported += detokenizer.feed(data[begin : begin + size])
    assert reported + detokenizer.flush() == data.decode(errors="replace")


def test_endless_garbage_is_an_error_early() -> None:
    detokenizer = Detokenizer(of_bytes)
    reported = "".join(detokenizer.feed([0x80]) for _ in range(10 * LONGEST_WINDOW))
    assert len(reported) > 9 * LONGEST_WINDOW
    assert len(detokenizer._window) <= LONGEST_WINDOW + 1


def test_a_token_keeps_the_space_that_begins_it() -> None:
    """Tokenizers of words leave out that of a text's first token."""
    detokenizer = Detokenizer(lambda ids: "".join(f" {token}" for token in ids)[1:])
    assert [detokenizer.feed([token]) for token in (1, 2, 3)] == ["1", " 2", " 3"]


@given(st.lists(st.integers(4, 319), max_size=80))
def test_pieces_of_a_real_tokenizer_add_up(tokenizer: Any, tokens: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer.decode)
    reported = "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.flush()
    expected = tokenizer.decode(tokens)
    # After a long run of bytes that are no text a character may be told as broken.
    if len(tokens) <= LONGEST_WINDOW:
        assert reported == expected


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4, unique=True),
    st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_stops_where_a_slow_reader_would(stops: list[str], pieces: list[str]) -> None:
    stopper, reported = StopStrings(stops), ""
    for piece in pieces:
        reported += stopper.feed(piece)
        if stopper.met is not None:
            break
    else:
        reported += stopper.flush()
    whole, expected, result = "".join(pieces), None, None
    for end in range(len(whole) + 1):
        ending = [stop for stop in stops if whole[:end].endswith(stop)]
        if ending:
            result = max(ending, key=len)
            expected = whole[: end - len(result)]
            break
    # Of stop strings that come in one piece the first to end is taken, as if they had come one by one.
    assert stopper.met == result
    assert reported == (whole if expected is None else expected)


def test_text_that_may_begin_a_stop_is_withheld() -> None:
    stopper = StopStrings(["END"])
    assert [stopper.feed(piece) for piece in ("a", "E", "N", "x", "E")] == ["a", "", "", "ENx", ""]
    assert stopper.flush() == "E"


@pytest.mark.parametrize("include", [True, False])
def test_stop_strings_are_included_only_on_request(include: bool) -> None:
    stopper = StopStrings(["--"], include=include)
    assert stopper.feed("ab--cd") == ("ab--" if include else "ab")
    assert stopper.met == "--"
