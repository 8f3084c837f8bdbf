"""Prompts are the seed's, the row's and nobody else's."""

from __future__ import annotations

import numpy as np

from laminabench.systems.live.lamina.prompts import Prompts
from laminabench.traces.table import Trace, TraceMeta


def prompts(lengths: list[int], seed: int = 0, vocab: int = 1000) -> Prompts:
    rows = len(lengths)
    columns = np.zeros(rows), np.array(lengths, np.int32), np.ones(rows, np.int32)
    return Prompts(Trace(*columns, TraceMeta("small")), seed, vocab)


def test_a_row_has_its_prompt_whoever_else_is_there() -> None:
    one, other = prompts([5, 7, 9]), prompts([100, 7])
    assert one.of(1) == one.of(1) == other.of(1)
    assert len(one.of(2)) == 9
    # A longer prompt of the same row begins with the same tokens.
    assert other.of(0)[:5] == one.of(0)
    assert one.of(0) != one.of(1)[:5]
    assert prompts([5], seed=1).of(0) != one.of(0)


def test_tokens_are_in_the_vocabulary_all_over() -> None:
    tokens = prompts([20_000], vocab=16).of(0)
    assert set(tokens) == set(range(16))
    assert np.bincount(tokens).max() < 1.2 * 20_000 / 16
