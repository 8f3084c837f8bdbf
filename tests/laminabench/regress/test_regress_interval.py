"""What is measured is told from noise, and noise is not taken for a change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from laminabench.regress.interval import LEAST_ROUNDS, change_interval

SEEDS = range(200)
NOISE, TOLERANCE, ROUNDS = 0.01, 0.01, 10


def rounds(rng: np.random.Generator, middle: float) -> list[float]:
    return list(middle * np.exp(rng.normal(0, NOISE, ROUNDS)))


def moved(seed: int, change: float) -> bool:
    rng = np.random.default_rng(seed)
    found = change_interval(rounds(rng, 100), rounds(rng, 100 * (1 + change)))
    return found.low > TOLERANCE or found.high < -TOLERANCE


@pytest.mark.parametrize("change", [-0.03, 0.03])
def test_a_change_of_three_per_cent_is_found_in_one_per_cent_of_noise(change: float) -> None:
    assert sum(moved(seed, change) for seed in SEEDS) >= 0.95 * len(SEEDS)


def test_noise_alone_is_no_change() -> None:
    assert sum(moved(seed, 0) for seed in SEEDS) <= 0.05 * len(SEEDS)


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_the_interval_covers_the_truth_as_often_as_it_says(noise: str) -> None:
    covered = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        draw = rng.standard_cauchy if noise == "heavy" else rng.standard_normal
        before, after = (list(middle * np.exp(0.01 * draw(6))) for middle in (1.0, 1.1))
        found = change_interval(before, after)
        covered += found.low <= 0.1 <= found.high
    assert 0.92 <= covered / len(SEEDS) < 1


def test_one_disturbed_round_moves_little() -> None:
    before = [99.0, 99.5, 100.0, 100.5, 101.0, 101.5]
    found = change_interval(before, [*before[:-1], 1.0])
    assert abs(found.estimate) < 0.01
    assert found.low < 0 < found.high


def test_its_ends_are_those_of_every_order_counted() -> None:
    """Of 5 and 5 measurements: cut off as many ratios as U can be small, counted out one by one."""
    first, second = [1.0, 1.13, 1.31, 1.52, 1.71], [2.0, 2.2, 2.44, 2.69, 2.93]
    below: dict[int, int] = {}
    for chosen in itertools.combinations(range(10), 5):
        u = sum(place - rank for rank, place in enumerate(chosen))
        below[u] = below.get(u, 0) + 1
    cut = max(u for u in below if 2 * sum(below[each] for each in range(u + 1)) <= 0.05 * 252)
    ratios = sorted(new / old for new in second for old in first)
    found = change_interval(first, second)
    assert (found.low, found.high) == (ratios[cut] - 1, ratios[-1 - cut] - 1)
    assert found.low <= found.estimate <= found.high


def test_the_least_rounds_can_tell_a_change() -> None:
    before = [1.0, 1.01, 1.02, 1.03]
    assert len(before) == LEAST_ROUNDS
    # All orders at the end of the distribution are few enough only from here on.
    assert change_interval(before, [2 * each for each in before]).low > 0.9
