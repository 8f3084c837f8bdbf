"""Intervals of measured numbers: they cover the truth about as often as they say, and not by being wide."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from made_outcome import outcome_of

from laminabench.analysis.bootstrap import BLOCKS, FEWEST_ITERATIONS, RESAMPLES, resamples
from laminabench.analysis.estimate import Estimate, of_resamples, of_rounds, ratio
from laminabench.analysis.window import whole_run
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Float64

SIZE, SLO_MS = 10, 25.0
# Of gaps exp(SPREAD * normal) * MEDIAN_S: what a replay without an end would measure.
MEDIAN_S, SPREAD = 0.02, 0.2
THROUGHPUT = SIZE / (MEDIAN_S * math.exp(SPREAD**2 / 2))


def equal(rng: np.random.Generator, iterations: int, likeness: float) -> Float64:
    """Durations each of which resembles the one before it."""
    drawn = rng.normal(size=iterations)
    state = drawn[0]
    for at in range(1, iterations):
        state = drawn[at] = likeness * state + math.sqrt(1 - likeness**2) * drawn[at]
    return MEDIAN_S * np.exp(SPREAD * drawn)


def measured(durations_s: Float64) -> Outcome:
    """One batch of SIZE requests from the first iteration to the last."""
    count = len(durations_s)
    requests = {
        "finished_s": np.full(SIZE, durations_s.sum()),
        "first_iteration": np.zeros(SIZE, np.int64),
        "last_iteration": np.full(SIZE, count - 1),
        "batch": np.zeros(SIZE, np.int32),
    }
    return outcome_of(durations_s, SIZE, requests=requests)


def throughputs(cases: int, likeness: float, iterations: int = 400) -> Iterator[Estimate]:
    for seed in range(cases):
        outcome = measured(equal(np.random.default_rng(seed), iterations, likeness))
        drawn = resamples(outcome, whole_run(outcome), SLO_MS, seed)
        yield of_resamples(iterations * SIZE / outcome.end_s, drawn["throughput_tokens_per_s"])


def covered(estimates: Iterator[Estimate], truth: float) -> float:
    intervals = [estimate.interval for estimate in estimates]
    assert all(intervals)
    return float(np.mean([each.low <= truth <= each.high for each in intervals if each]))


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standard error needs no more, and hundreds of replays are resampled."""
    monkeypatch.setattr("laminabench.analysis.bootstrap.RESAMPLES", 200)


@pytest.mark.long
@pytest.mark.usefixtures("few_resamples")
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    assert 0.88 <= covered(throughputs(200, likeness=0.8), THROUGHPUT) < 1
    # The same intervals do not cover what is not the truth: they are not just wide.
    assert covered(throughputs(40, likeness=0.8), 1.2 * THROUGHPUT) < 0.1


@pytest.mark.long
def test_iterations_drawn_one_by_one_would_promise_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are what makes the test above pass."""
    for name in ("BLOCKS", "MOST_SLICES"):
        monkeypatch.setattr(f"laminabench.analysis.bootstrap.{name}", 390)
    monkeypatch.setattr("laminabench.analysis.bootstrap.ITERATIONS_A_SLICE", 1)
    assert covered(throughputs(50, likeness=0.9), THROUGHPUT) < 0.8


@pytest.mark.usefixtures("few_resamples")
def test_ratios_of_two_runs_cover_theirs() -> None:
    one, other = list(throughputs(40, 0.8)), list(throughputs(80, 0.8))[40:]
    assert 0.85 <= covered((ratio(a, b) for a, b in zip(one, other, strict=True)), 1.0) <= 1


def test_every_headline_number_has_resamples_around_it() -> None:
    outcome = measured(equal(np.random.default_rng(5), 4000, 0.5))
    result = resamples(outcome, whole_run(outcome), SLO_MS)
    gaps = np.sort(outcome.iterations["duration_s"][1:]) * 1e3
    truth = {
        "throughput_tokens_per_s": 4000 * SIZE / outcome.end_s,
        "slo.goodput_tokens_per_s": SIZE * (1 + (gaps <= SLO_MS).sum()) / outcome.end_s,
        "slo.token_attainment": (gaps <= SLO_MS).mean(),
        "tbt_ms.mean": gaps.mean(),
        "tbt_ms.p50": np.median(gaps),
        "tbt_ms.p90": np.quantile(gaps, 0.9),
        "tbt_ms.p99": np.quantile(gaps, 0.99),
    }
    # Not one request ended in most resamples, and next to nothing is beyond the last percentile.
    assert result.keys() == truth.keys()
    for name, value in truth.items():
        assert len(result[name]) == RESAMPLES
        assert np.quantile(result[name], 0.001) < value < np.quantile(result[name], 0.999), name
        assert result[name].std() < 0.05 * value


def test_resamples_are_the_same_for_the_same_seed() -> None:
    outcome = measured(equal(np.random.default_rng(6), 500, 0.5))
    one, same, other = (resamples(outcome, whole_run(outcome), SLO_MS, seed) for seed in (1, 1, 2))
    for name, values in one.items():
        np.testing.assert_array_equal(values, same[name])
    assert (one["throughput_tokens_per_s"] != other["throughput_tokens_per_s"]).any()


def test_few_iterations_have_no_resamples() -> None:
    outcome = measured(np.full(FEWEST_ITERATIONS - 1, 0.02))
    assert resamples(outcome, whole_run(outcome), SLO_MS) == {}
    assert of_resamples(1.0, None).interval is None


def test_rounds_by_hand() -> None:
    result = of_rounds([8.0, 32.0])
    assert result.value == pytest.approx(16.0)
    assert result.interval is not None
    # A standard error of ln(2) with one degree of freedom.
    assert result.interval.low == pytest.approx(16.0 / 2**12.706)
    assert of_rounds([1.0, None]).value is None
    assert of_rounds([0.0, 2.0]) == Estimate(1.0, None)


def test_ratio_by_hand() -> None:
    exact = Estimate(4.0)
    assert ratio(exact, Estimate(2.0)).value == 2.0
    assert ratio(exact, Estimate(2.0)).exact
    one_sided = ratio(Estimate(8.0, 0.1, BLOCKS - 1), exact)
    assert one_sided.interval is not None
    assert one_sided.interval.high == pytest.approx(2 * math.exp(2.365 * 0.1))
    # As sure as each other, they have the freedom of both.
    both = ratio(Estimate(8.0, 0.1, 7), Estimate(4.0, 0.1, 7))
    assert (both.error, both.freedom) == (pytest.approx(0.1 * math.sqrt(2)), pytest.approx(14))
    assert ratio(exact, Estimate(0.0)).value is None
    assert ratio(exact, Estimate(2.0, None)).interval is None
