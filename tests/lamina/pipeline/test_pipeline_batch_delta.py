"""Deltas on their way to workers, and their columns."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from lamina.cluster.messages import MessageError, Plan, decode, encode
from lamina.pipeline import BatchDelta, Joined
from lamina.pipeline.batch_rows import places_of
from lamina.pipeline.options import ModelFacts

ROWS = st.integers(0, 4)


def columns(dtype: Any, shape: Any) -> st.SearchStrategy[Any]:
    return of_numpy.arrays(dtype, shape)


@st.composite
def joins(draw: st.DrawFn) -> Joined:
    rows = draw(ROWS)
    return Joined(*(draw(columns(empty.dtype, rows)) for empty in Joined().columns()))


@st.composite
def changes(draw: st.DrawFn) -> BatchDelta:
    pairs = st.tuples(ROWS, st.just(3))
    return BatchDelta(
        forks=draw(columns(np.int64, pairs)),
        renamed=draw(columns(np.int64, pairs)),
        left=draw(columns(np.int64, ROWS)),
        released=draw(columns(np.int64, ROWS)),
        joined=draw(joins()),
        expected=draw(columns(np.int64, st.tuples(ROWS, st.just(5)))),
        dropped=draw(columns(np.int64, st.tuples(ROWS, st.just(2)))),
        prompts=draw(st.dictionaries(st.integers(0, 2**40), columns(np.int32, ROWS), max_size=3)),
    )


def same(ours: Any, theirs: Any) -> bool:
    """To the last bit: not-a-number is itself."""
    return bool(
        ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    )


@given(changes())
def test_a_delta_arrives_as_it_was_sent(delta: BatchDelta) -> None:
    plan = decode(encode(Plan(1, 2, 3, True, delta)), "the front end")
    assert isinstance(plan, Plan)
    for name in ("forks", "renamed", "left", "released", "expected", "dropped"):
        assert same(getattr(delta, name), getattr(plan.delta, name)), name
    assert all(map(same, delta.joined.columns(), plan.delta.joined.columns()))
    assert list(delta.prompts) == list(plan.delta.prompts)
    assert all(same(delta.prompts[name], plan.delta.prompts[name]) for name in delta.prompts)


def test_empty_fields_are_not_sent() -> None:
    body = encode(Plan(0, 0, 0, False, BatchDelta()))
    assert len(body) < 64
    plan = decode(body, "the front end")
    assert isinstance(plan, Plan)
    delta = plan.delta
    assert (delta.forks.shape, delta.renamed.shape, len(delta.joined)) == ((0, 3), (0, 3), 0)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"no msgpack",
        [1, 2],
        {"type": "Plan"},
        {"type": "Sonnet", "batch": 1},
        {"batch": 1},
        {"type": "ChosenTokens", "batch": "soon", "tokens": b""},
        {"type": "ChosenTokens", "batch": 1, "tokens": 7},
        {"type": "ChosenTokens", "batch": 1, "tokens": b"1234567"},
        {"type": "WorkRecords", "rows": [7, b"12345678"], "sums": b"", "busy_ns": 1, "more": False},
        {"type": "WorkRecords", "rows": [b"12345678"], "sums": b"", "busy_ns": 1, "more": False},
    ],
)
def test_malformed_messages_are_refused(message: object) -> None:
    body = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    with pytest.raises(MessageError, match="worker-message-invalid"):
        decode(body, "model 0")


def test_a_fresh_engines_changes_are_independent() -> None:
    first, second = BatchDelta(), BatchDelta()
    first.prompts[1] = np.zeros(1, np.int32)
    assert not second.prompts


@given(joins(), st.data())
def test_selection_of_joined_rows(joined: Joined, data: st.DataObject) -> None:
    chosen = data.draw(columns(np.bool_, len(joined)))
    some = joined.where(chosen)
    assert len(some) == chosen.sum()
    assert all(
        same(ours, whole[chosen]) for ours, whole in zip(some.columns(), joined.columns(), strict=True)
    )


@given(st.lists(st.integers(-(2**60), 2**60), unique=True, min_size=1, max_size=8), st.data())
def test_places_are_where_they_are(among: list[int], data: st.DataObject) -> None:
    expected = data.draw(st.lists(st.sampled_from(among), max_size=8))
    places = places_of(np.array(expected, np.int64), np.array(among, np.int64))
    assert places.tolist() == [among.index(name) for name in expected]


def test_facts_of_a_model_arrive_as_they_were_sent() -> None:
    facts = ModelFacts(120, 256, (2, 7), 3, 8, 2, 8, 0, "bfloat16", 2, 12_345)
    assert decode(encode(facts), "the fork server") == facts
    assert facts.token_bytes == 2 * 3 * 2 * 8 * 2
