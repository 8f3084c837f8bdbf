from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.systems.live.endpoint.stream import dealt, read_chunk, tokens_in


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
def test_tokens_are_dealt_evenly_and_none_is_lost(tokens: int, chunks: int) -> None:
    found = dealt(tokens, chunks)
    assert sum(found) == tokens
    assert max(found) - min(found) <= 1
    assert len(found) == chunks
