"""What is saved comes back, whole and from any suffix."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from laminabench.traces import store
from laminabench.traces.formats import load_file
from laminabench.traces.table import PrefixBlocks, Trace, TraceMeta, make_trace
from laminabench.util.errors import UserError

META = TraceMeta(
    "kimi “x”",
    source="profile",
    sha256="abc",
    origin="https://example.org/a\nb",
    license="Apache-2.0",
    citation="Qin et al.",
    tokenizer="llama",
    block_tokens=16,
    notes=("one", "two"),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy, dtype: type) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=rows, max_size=rows)), dtype)

    has_arrivals = draw(st.booleans())
    times = (
        np.sort(column(st.floats(0, 1e8, allow_subnormal=False), float)) if has_arrivals else np.zeros(rows)
    )
    ids = st.lists(st.integers(0, (1 << 63) - 1), max_size=3)
    return make_trace(
        times - times[0],
        column(st.integers(1, 1 << 24), np.int32),
        column(st.integers(1, 1 << 24), np.int32),
        replace(META, has_arrivals=has_arrivals),
        prefix_blocks=PrefixBlocks.from_lists([draw(ids) for _ in range(rows)])
        if draw(st.booleans())
        else None,
        session=column(st.integers(-(1 << 62), 1 << 62), np.int64) if draw(st.booleans()) else None,
    )


def assert_same_requests(left: Trace, right: Trace, *, blocks: bool = True) -> None:
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "session"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    if blocks:
        ours, theirs = left.prefix_blocks, right.prefix_blocks
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            np.testing.assert_array_equal(ours.offsets, theirs.offsets)
            np.testing.assert_array_equal(ours.ids, theirs.ids)


@settings(max_examples=25)
@given(traces())
def test_round_trip(trace):
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".parquet", ".jsonl", ".csv"):
            path = Path(folder, "trace" + suffix)
            store.save(trace, path)
            loaded = load_file(path)
            assert_same_requests(loaded, trace, blocks=suffix != ".csv")
            assert loaded.meta.has_arrivals == trace.meta.has_arrivals
            if suffix == ".parquet":
                assert loaded.meta == trace.meta


def small(rows: int = 3, **meta: object) -> Trace:
    ones = np.ones(rows, np.int32)
    blocks = PrefixBlocks.from_lists([list(range(row % 3)) for row in range(rows)])
    return make_trace(np.arange(rows) / 8, ones, ones, replace(META, **meta), prefix_blocks=blocks)


def test_written_a_slice_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_ROWS", 3)
    trace = small(10)
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        store.save(trace, tmp_path / name)
        assert_same_requests(load_file(tmp_path / name), trace, blocks=name != "a.csv")


def test_the_columns_and_types_of_the_file(tmp_path):
    store.save(small(), tmp_path / "a.parquet")
    schema = pq.read_schema(tmp_path / "a.parquet")
    types = {field.name: str(field.type).replace("element", "item") for field in schema}
    assert types == {
        "arrival_s": "double",
        "prompt_tokens": "int32",
        "output_tokens": "int32",
        "prefix_blocks": "list<item: int64>",
    }
    assert b'"block_tokens": 16' in schema.metadata[b"laminabench"]
    store.save(small(), tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines()[:3] == [
        "arrival_s,prompt_tokens,output_tokens",
        "0,1,1",
        "0.125,1,1",
    ]


def test_a_new_name_and_the_sum_of_a_file_that_never_had_one(tmp_path):
    store.save(small(sha256=""), tmp_path / "a.parquet")
    loaded = load_file(tmp_path / "a.parquet", name="mine")
    assert loaded.meta.name == "mine"
    assert len(loaded.meta.sha256) == 64


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5])
def test_a_flipped_bit_is_noticed(tmp_path, place):
    path = tmp_path / "a.parquet"
    rows = np.random.default_rng(0).integers(1, 1 << 20, 5000).astype(np.int32)
    store.save(make_trace(np.arange(5000) / 8, rows, rows, META), path)
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="trace-damaged"):
        load_file(path)


WRONG = [
    json.dumps({"name": "x", "notes": [], **wrong}).encode()
    for wrong in (
        {"block_tokens": True},
        {"block_tokens": 0},
        {"block_tokens": (1 << 24) + 1},
        {"source": "guess"},
        {"has_arrivals": 1},
        {"notes": "abc"},
        {"notes": [5]},
    )
]


@pytest.mark.parametrize(
    "metadata", [b"", b"[]", b"{}", b'{"notes": []}', b'{"notes": [], "name": 5}', *WRONG]
)
def test_damaged_metadata(tmp_path, metadata):
    path = tmp_path / "a.parquet"
    store.save(small(), path)
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"laminabench": metadata}), path)
    with pytest.raises(UserError, match="trace-damaged"):
        load_file(path)


def test_a_suffix_that_is_not_written(tmp_path):
    with pytest.raises(UserError, match="trace-bad-suffix"):
        store.save(small(), tmp_path / "a.xlsx")
    assert list(tmp_path.iterdir()) == []
