"""Changes on their way to workers: what is heard is what was said."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgpack
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from lamina.pipeline import BatchDelta, Joined
from lamina.pipeline.batch_delta import names, places_of
from lamina.pipeline.facts import ModelFacts

ROWS = st.integers(0, 4)


def columns(dtype: Any, shape: Any) -> st.SearchStrategy[Any]:
    return of_numpy.arrays(dtype, shape)


@st.composite
def joins(draw: st.DrawFn) -> Joined:
    rows, empty = draw(ROWS), Joined()
    return Joined(
        **{each.name: draw(columns(getattr(empty, each.name).dtype, rows)) for each in fields(Joined)}
    )


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
def test_what_is_said_is_heard(delta: BatchDelta) -> None:
    heard = BatchDelta.heard(msgpack.unpackb(msgpack.packb({"batch": 1, **delta.said()})))
    for name in ("forks", "renamed", "left", "released", "expected", "dropped"):
        assert same(getattr(delta, name), getattr(heard, name)), name
    for each in fields(Joined):
        assert same(getattr(delta.joined, each.name), getattr(heard.joined, each.name)), each.name
    assert list(delta.prompts) == list(heard.prompts)
    assert all(same(delta.prompts[name], heard.prompts[name]) for name in delta.prompts)


def test_nothing_new_is_nothing_said() -> None:
    assert BatchDelta().said() == {}
    heard = BatchDelta.heard({})
    assert (heard.forks.shape, heard.renamed.shape, len(heard.joined)) == ((0, 3), (0, 3), 0)


def test_a_fresh_engines_changes_are_independent() -> None:
    first, second = BatchDelta(), BatchDelta()
    first.prompts[1] = np.zeros(1, np.int32)
    assert not second.prompts


@given(joins(), st.data())
def test_some_of_those_who_join(joined: Joined, data: st.DataObject) -> None:
    chosen = data.draw(columns(np.bool_, len(joined)))
    some = joined.where(chosen)
    assert len(some) == chosen.sum()
    for each in fields(Joined):
        assert same(getattr(some, each.name), getattr(joined, each.name)[chosen])


@given(st.lists(st.integers(-(2**60), 2**60), unique=True, min_size=1, max_size=8), st.data())
def test_places_are_where_they_are(among: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(among), max_size=8))
    assert places_of(names(wanted), names(among)).tolist() == [among.index(each) for each in wanted]


def test_facts_of_a_model_are_heard_as_they_were_said() -> None:
    facts = ModelFacts(120, 256, (2, 7), 3, 8, 2, 8, "bfloat16", 2, 12_345)
    heard = ModelFacts.heard(msgpack.unpackb(msgpack.packb(facts.said())))
    assert heard == facts
    assert isinstance(heard.eos_token_ids, tuple)
    assert facts.token_bytes == 2 * 3 * 2 * 8 * 2
