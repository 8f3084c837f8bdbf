"""Descriptions against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.traces.describe import describe, prefix_share, reused_tokens
from laminabench.traces.table import PrefixBlocks, Trace, TraceMeta, make_trace


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
    seen: set[int] = set()
    expected = []
    for row, prompt in zip(blocks, prompts, strict=True):
        leading = 0
        while leading < len(row) and row[leading] in seen:
            leading += 1
        expected.append(min(leading * 512, prompt))
        seen.update(row)
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
