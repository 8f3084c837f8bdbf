"""Traces in memory: what `make_trace` does, and says so; descriptions beside numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.traces.describe import describe, prefix_share, reused_tokens
from laminabench.traces.table import PrefixBlocks, Trace, TraceMeta, make_trace
from laminabench.util.errors import UserError

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


def test_no_requests_and_a_span_of_centuries_are_errors() -> None:
    with pytest.raises(UserError, match="trace-empty"):
        make_trace(np.array([0.0]), ints(1), ints(0), META)
    with pytest.raises(UserError, match="trace-too-long"):
        make_trace(np.array([0.0, 1e12]), ints(1, 1), ints(1, 1), META)


def test_columns_are_read_only() -> None:
    prompt = ints(1, 2)
    trace = make_trace(np.zeros(2), prompt, ints(1, 1), META)
    with pytest.raises(ValueError, match="read-only"):
        trace.prompt_tokens[0] = 5
    prompt[0] = 5  # the maker's own stay writable
    blocks = PrefixBlocks.from_lists([[1], [2]])
    for column in (blocks.ids, blocks.offsets):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 5


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


def a_trace(blocks: list[list[int]], prompts: list[int]) -> Trace:
    return make_trace(
        np.arange(len(prompts), dtype=float),
        np.array(prompts, np.int32),
        np.full(len(prompts), 2, np.int32),
        TraceMeta("made-up", block_tokens=512),
        prefix_blocks=PrefixBlocks.from_lists(blocks),
    )


def test_prefix_share_by_hand() -> None:
    trace = a_trace([[0, 1, 2], [0, 1, 3], [4], [0, 5], [4]], [1500, 1400, 100, 1000, 100])
    reused = reused_tokens(trace)
    assert reused is not None
    assert reused.tolist() == [0, 1024, 0, 512, 100]
    assert prefix_share(trace) == pytest.approx((1024 + 512 + 100) / 4100)


@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=12))
def test_reuse_equals_the_obvious_loop(blocks: list[list[int]]) -> None:
    prompts = [max(1, 512 * len(row) - 100) for row in blocks]
    observed: set[int] = set()
    expected = []
    for row, prompt in zip(blocks, prompts, strict=True):
        leading = 0
        while leading < len(row) and row[leading] in observed:
            leading += 1
        expected.append(min(leading * 512, prompt))
        observed.update(row)
    reused = reused_tokens(a_trace(blocks, prompts))
    assert reused is not None
    assert reused.tolist() == expected


def test_describe_has_the_documented_keys() -> None:
    facts = describe(
        make_trace(
            np.array([5.0, 6, 8]),
            np.array([10, 20, 90], np.int32),
            np.array([1, 2, 3], np.int32),
            TraceMeta("x"),
        )
    )
    assert facts["requests"] == 3
    assert facts["duration_s"] == 3
    assert facts["rate_per_s"] == pytest.approx(2 / 3)
    assert facts["prompt"] == {"mean": 40.0, "p50": 20, "p90": 90, "p99": 90, "max": 90}
    assert facts["prefix_share"] is None
    assert facts["source"] == "file"


def test_a_single_request_has_no_rate() -> None:
    facts = describe(make_trace(np.zeros(1), np.ones(1, np.int32), np.ones(1, np.int32), TraceMeta("x")))
    assert facts["rate_per_s"] is None
    assert facts["interarrival_cv"] is None
