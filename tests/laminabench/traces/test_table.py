"""make_trace sorts, shifts and drops, and says what it did."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.errors import UserError
from laminabench.traces.table import PrefixBlocks, TraceMeta, make_trace

META = TraceMeta("made-up", origin="made-up.csv")


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_backward_timestamps_are_sorted_with_a_notice() -> None:
    blocks = PrefixBlocks.from_lists([[1], [2, 3], []])
    trace = make_trace(np.array([3.0, 1, 2]), ints(30, 10, 20), ints(3, 1, 2), META, prefix_blocks=blocks)
    assert trace.arrival_s.tolist() == [0, 1, 2]
    assert trace.prompt_tokens.tolist() == [10, 20, 30]
    assert trace.prefix_blocks is not None
    assert [row.tolist() for row in map(trace.prefix_blocks.__getitem__, range(3))] == [[2, 3], [], [1]]
    assert "run backwards 1 times" in trace.meta.notes[0]


def test_requests_without_output_are_left_out_and_counted() -> None:
    trace = make_trace(np.array([0.0, 1, 2]), ints(1, 2, 3), ints(0, 5, 0), META)
    assert trace.prompt_tokens.tolist() == [2]
    assert trace.meta.notes == ("2 of 3 requests have no output tokens and were left out",)


def test_no_requests_is_an_error_that_names_the_file() -> None:
    with pytest.raises(UserError, match="trace-empty"):
        make_trace(np.array([0.0]), ints(1), ints(0), META)


def test_a_span_of_centuries_is_a_wrong_unit() -> None:
    with pytest.raises(UserError, match="trace-too-long"):
        make_trace(np.array([0.0, 1e12]), ints(1, 1), ints(1, 1), META)


def test_columns_are_read_only() -> None:
    trace = make_trace(np.zeros(2), ints(1, 2), ints(1, 1), META)
    with pytest.raises(ValueError, match="read-only"):
        trace.prompt_tokens[0] = 5
    blocks = PrefixBlocks.from_lists([[1], [2]])
    for column in (blocks.ids, blocks.offsets):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 5


def test_the_makers_own_arrays_stay_writable() -> None:
    prompt = ints(1, 2)
    make_trace(np.zeros(2), prompt, ints(1, 1), META)
    prompt[0] = 5


@given(
    st.lists(st.lists(st.integers(), max_size=4).map(lambda row: [i % 2**62 for i in row]), max_size=8),
    st.data(),
)
def test_prefix_blocks_take_and_limit_like_lists(rows: list[list[int]], data: st.DataObject) -> None:
    blocks = PrefixBlocks.from_lists(rows)
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)) if rows else []
    taken = blocks.take(np.array(order, np.int64))
    assert [taken[i].tolist() for i in range(len(order))] == [rows[i] for i in order]
    bounds = data.draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    limited = blocks.limit(np.array(bounds, np.int64))
    assert [limited[i].tolist() for i in range(len(rows))] == [
        row[:n] for row, n in zip(rows, bounds, strict=True)
    ]
