"""Which tokens of prompts go through the slices together: all of them, in order, up to a chunk a call."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lamina.model.prefill import CHUNK
from lamina.pipeline import BatchDelta, Joined
from lamina.pipeline.batch_rows import PromptPart
from lamina.pipeline.prompt_calls import Call, calls_of, without_text


def text(tokens: int, name: int) -> np.ndarray:
    return np.arange(tokens, dtype=np.int32) + 10_000 * name


def part(name: int, begin: int, end: int, tokens: int) -> PromptPart:
    return PromptPart(name, begin, end, tokens, 0, 0, text(tokens, name)[begin:end])


def joining(lengths: list[int], first: int = 100) -> BatchDelta:
    """Sequences whose prompts have so many tokens to compute; of one with none there is no text."""
    names = np.arange(first, first + len(lengths))
    zeros = np.zeros(len(lengths), np.int64)
    prompts = {int(name): text(n + 1, int(name)) for name, n in zip(names, lengths, strict=True) if n}
    return BatchDelta(joined=Joined(name=names, shared=zeros, pool=names % 2), prompts=prompts)


def places(calls: list[Call]) -> list[list[tuple[int, int, int]]]:
    return [[(one.name, one.begin, one.end) for one in call] for call in calls]


def test_short_prompts_share_a_call_and_long_ones_are_cut_as_they_are_alone() -> None:
    delta = joining([100, 0, CHUNK - 150, 60, CHUNK + 7])
    delta.parts = [part(1, CHUNK, CHUNK + 20, 2000)]
    assert places(calls_of(delta, alone=False)) == [
        [(1, CHUNK, CHUNK + 20), (100, 0, 100), (102, 0, CHUNK - 150)],
        [(103, 0, 60)],
        [(104, 0, CHUNK)],
        [(104, CHUNK, CHUNK + 7)],
    ]
    assert [len(call) for call in calls_of(delta, alone=True)] == [1] * 6, "layers keep state"


def test_attention_workers_get_only_their_sequences() -> None:
    calls = calls_of(joining([100, 20, 30, CHUNK]), alone=False)
    own = without_text(calls, {101, 103})
    assert places(own) == [[(101, 0, 20)], [(103, 0, CHUNK)]]
    assert not any(len(one.text) for call in own for one in call)
    assert without_text(calls, set()) == []


@given(st.lists(st.integers(0, 3 * CHUNK), max_size=12), st.booleans())
def test_every_token_is_computed_once(lengths: list[int], alone: bool) -> None:
    delta = joining(lengths)
    calls = calls_of(delta, alone=alone)
    results: dict[int, list[np.ndarray]] = {}
    for call in calls:
        assert 0 < sum(one.end - one.begin for one in call) <= CHUNK
        for one in call:
            done = sum(map(len, results.get(one.name, [])))
            assert (one.begin, one.end) == (done, done + len(one.text))
            results.setdefault(one.name, []).append(one.text)
    assert [*results] == [*delta.prompts], "in their order"
    for name, texts in results.items():
        assert np.concatenate(texts).tolist() == delta.prompts[name][:-1].tolist()
