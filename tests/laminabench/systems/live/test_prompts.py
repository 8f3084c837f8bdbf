"""Prompts depend on the seed and the row alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from laminabench.systems.live.prompts import prompt_of


def test_a_row_s_prompt_does_not_depend_on_other_rows(trace_of: Any) -> None:
    one, other = trace_of([5, 7, 9], [1] * 3), trace_of([100, 7], [1] * 2)
    assert prompt_of(one, 0, 1000, 1) == prompt_of(one, 0, 1000, 1) == prompt_of(other, 0, 1000, 1)
    assert len(prompt_of(one, 0, 1000, 2)) == 9
    # A longer prompt of the same row begins with the same tokens.
    first = prompt_of(one, 0, 1000, 0)
    assert prompt_of(other, 0, 1000, 0)[:5] == first
    assert first != prompt_of(one, 0, 1000, 1)[:5]
    assert first != prompt_of(one, 1, 1000, 0)


def test_tokens_are_in_the_vocabulary_all_over(trace_of: Any) -> None:
    tokens = prompt_of(trace_of([20_000], [1]), 0, 16, 0)
    assert set(tokens) == set(range(16))
    assert np.bincount(tokens).max() < 1.2 * 20_000 / 16
