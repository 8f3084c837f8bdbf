"""Choosing tokens: the right ones, with the right odds, the same for a seed in any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from lamina.model.sampler import Wishes, choose, uniform


def wishes(rows: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Wishes:
    return Wishes(
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k, np.int64),
        np.full(rows, top_p, np.float32),
        np.arange(rows, dtype=np.uint64),
        np.zeros(rows, np.int64),
    )


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Scores as transformers has them."""
    nothing, scores = torch.zeros(1, 1), logits / temperature
    if top_k:
        scores = transformers.TopKLogitsWarper(top_k)(nothing, scores)
    if top_p < 1:
        scores = transformers.TopPLogitsWarper(top_p)(nothing, scores)
    return scores[0]


def test_without_temperature_the_likeliest_is_chosen() -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(choose(logits, wishes(7, temperature=0)), logits.argmax(-1))


@given(
    st.integers(0, 2**32),
    st.integers(0, 12),
    st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    st.sampled_from([0.5, 2.0]),
)
def test_sampling_follows_transformers_filters(
    seed: int, top_k: int, top_p: float, temperature: float
) -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(seed)) * 3
    allowed = set(torch.nonzero(warped(logits, temperature, top_k, top_p) > -torch.inf)[:, 0].tolist())
    drawn = choose(logits.expand(400, -1), wishes(400, temperature=temperature, top_k=top_k, top_p=top_p))
    assert set(drawn.tolist()) <= allowed


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.8), (4, 0.7)])
def test_odds_are_those_of_the_distribution(top_k: int, top_p: float) -> None:
    draws = 20_000
    logits = torch.tensor([[1.0, 2.0, 0.5, 3.0, -1.0, 2.5]])
    expected = torch.softmax(warped(logits, 1.5, top_k, top_p), -1).numpy()
    drawn = choose(logits.expand(draws, -1), wishes(draws, temperature=1.5, top_k=top_k, top_p=top_p))
    observed = np.bincount(drawn.numpy(), minlength=6) / draws
    # Four standard deviations of a proportion; the seeds are fixed, so this holds or it does not.
    assert np.abs(observed - expected).max() < 4 * np.sqrt(0.25 / draws)
    assert (observed[expected == 0] == 0).all()


def test_a_seed_gives_the_same_sample_in_any_batch() -> None:
    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(3))
    mixed = Wishes(
        np.array([0, 1, 0.7, 1, 1.3, 2], np.float32),
        np.array([0, 0, 40, 5, 0, 2000], np.int64),
        np.array([1, 1, 0.9, 1, 0.5, 1], np.float32),
        np.arange(6, dtype=np.uint64) + np.uint64(2**63),
        np.array([0, 5, 2, 9, 0, 1], np.int64),
    )
    together = choose(logits, mixed)
    for row in range(6):
        alone = Wishes(*(getattr(mixed, name)[row : row + 1] for name in mixed.__dataclass_fields__))
        assert int(choose(logits[row : row + 1], alone)) == int(together[row])


def test_draws_of_a_seed_differ_from_each_other_and_look_uniform() -> None:
    number = np.arange(100_000)
    drawn = uniform(np.zeros(number.size, np.uint64), number)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert np.unique(drawn).size == drawn.size
    counts, _ = np.histogram(drawn, bins=64, range=(0, 1))
    chi_square = ((counts - number.size / 64) ** 2 / (number.size / 64)).sum()
    assert chi_square < 120  # of 63 degrees of freedom; beyond it with odds of one in 50,000
    across_seeds = uniform(number.astype(np.uint64), np.zeros(number.size, np.int64))
    assert abs(np.corrcoef(drawn, across_seeds)[0, 1]) < 0.02
