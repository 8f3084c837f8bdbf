"""How experts are loaded: evenly on average, or as the published tables were measured."""

from __future__ import annotations

import numpy as np
import pytest

from laminabench.catalog.routing import skewed, uniform


def test_uniform_loads_by_hand():
    found = uniform(128, 8, 4, [0, 1, 10_000])
    assert found.active == pytest.approx([0, 2, 32])
    assert found.pairs == pytest.approx([0, 2, 20_000])


@pytest.mark.parametrize("exponent", [1.01, 1.2])
def test_skewed_loads_add_up_on_one_rank(exponent):
    tokens = np.array([1, 4, 16, 64, 512])
    found, even = skewed(128, 8, 1, tokens, exponent), uniform(128, 8, 1, tokens)
    assert found.pairs == pytest.approx(8 * tokens)
    assert (found.active <= 128).all()
    assert (found.active[2:4] < even.active[2:4]).all()
    again = skewed(128, 8, 1, tokens, exponent)
    assert again.active.tolist() == found.active.tolist()


def test_of_several_ranks_the_busiest_counts():
    found = skewed(128, 8, 8, [256], 1.2)
    assert float(found.pairs[0]) > 1.2 * 256
    assert 1 <= float(found.active[0]) <= 16


def test_no_expert_has_a_token_twice():
    # Of two experts that each token takes both of, each has all tokens.
    found = skewed(2, 2, 2, [32], 1.2)
    assert (float(found.active[0]), float(found.pairs[0])) == (1, 32)
