"""Attainment curves and the TBT CDF, held to the numbers that a summary gives for one limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_outcome import trace_of

from laminabench.analysis.attainment import DEFAULT_LIMITS, cdf, curve, joint, worst_gaps
from laminabench.analysis.metrics import summarise
from laminabench.analysis.tbt import tbt, tokens_of
from laminabench.analysis.window import whole_run, window
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Mode, Spec, Timing
from laminabench.traces.table import Trace
from laminabench.util.json import to_json

LIMITS_MS = (0.5, 1.0, 2.0, 3.5, 8.0, 20.0, 1000.0)


def small(seed: int, rows: int = 40) -> tuple[Trace, Outcome]:
    """Three batches in rotation, memory so small that requests are preempted."""
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0, 0.05, rows))
    trace = trace_of(rng.integers(1, 9, rows), rng.integers(1, 40, rows), arrival_s)
    table = rng.integers(1, 900, 9) * 1e-6
    timing = Timing(table, table, table, table, np.full(9, 3e-6), host_fixed=5e-5, recompute_per_token=1e-5)
    spec = Spec(
        2, timing, tokens_per_pool=60, max_requests=8, batches=3, pipelining="rotational", admission="grow"
    )
    return trace, simulate(trace, spec, Offered("open", 0), check=True)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("saturate", "open")))
def test_a_curve_says_what_summaries_say_limit_by_limit(seed: int, mode: Mode) -> None:
    trace, outcome = small(seed)
    assert len(outcome.stints["request"]), "nobody was preempted: the case is too easy"
    result = curve(outcome, window(outcome, mode), LIMITS_MS)
    for place, limit_ms in enumerate(LIMITS_MS):
        slo = to_json(summarise(outcome, trace, mode=mode, slo_tbt_ms=limit_ms, usd_per_hour=None))["slo"]
        ours = (result.token_attainment, result.request_attainment, result.goodput_tokens_per_s)
        theirs = (slo["token_attainment"], slo["request_attainment"], slo["goodput_tokens_per_s"])
        for our, their in zip(ours, theirs, strict=True):
            assert np.isnan(our[place]) if their is None else our[place] == pytest.approx(their)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(("saturate", "open")))
def test_both_limits_together_are_what_summaries_say(seed: int, mode: Mode) -> None:
    trace, outcome = small(seed)
    result, limits = joint(outcome, window(outcome, mode)), np.array(LIMITS_MS)
    # Where there are requests, one meets each of these exactly.
    first_ms, gap_ms = (
        np.quantile([*of, 10**8], 0.5, method="lower") / 1e7 for of in (result.waits, result.gaps)
    )
    for place, limit_ms in enumerate(LIMITS_MS):
        for tbt_ms, ttft_ms, shares in (
            (limit_ms, first_ms, result.over_tbt(limits, first_ms)),
            (gap_ms, limit_ms, result.over_ttft(limits, gap_ms)),
        ):
            limited = {"slo_tbt_ms": tbt_ms, "slo_ttft_ms": ttft_ms}
            slo = summarise(outcome, trace, mode=mode, usd_per_hour=None, **limited).slo
            expected = np.nan if slo.joint_attainment is None else slo.joint_attainment
            assert shares[place] == pytest.approx(expected, nan_ok=True)


def test_default_limits_span_every_gap() -> None:
    _, outcome = small(1)
    result = curve(outcome)
    assert len(result.limits_ms) == DEFAULT_LIMITS
    assert result.token_attainment[0] < 0.5
    assert (result.token_attainment[-1], result.request_attainment[-1]) == (1.0, 1.0)
    assert (np.diff(result.request_attainment) >= 0).all()


def test_one_token_each_has_no_gap_and_is_in_time() -> None:
    trace, outcome = small(2)
    trace = trace_of(trace.prompt_tokens, [1] * len(trace), trace.arrival_s)
    timing = Timing(*(np.full(9, 1e-3) for _ in range(4)), np.full(9, 1e-6))
    outcome = simulate(trace, Spec(1, timing, tokens_per_pool=60, max_requests=8), Offered("saturate", 0))
    result = curve(outcome)
    assert np.isnan(result.token_attainment).all()
    assert (result.request_attainment == 1.0).all()
    assert (result.goodput_tokens_per_s == len(trace) / outcome.end_s).all()
    assert [len(each) for each in cdf(outcome)] == [0, 0]
    assert not worst_gaps(outcome, tokens_of(outcome))[1].any()


@pytest.mark.parametrize("points", [20, 10_000])
def test_a_cdf_passes_through_gaps_that_occurred(points: int) -> None:
    _, outcome = small(3, rows=200)
    gaps = tbt(tokens_of(outcome), whole_run(outcome))
    ms, share = cdf(outcome, whole_run(outcome), points)
    distinct = len(np.unique(gaps.values))
    assert len(ms) == distinct if points > distinct else len(ms) <= points
    assert (np.diff(ms) > 0).all()
    assert (np.diff(share) > 0).all()
    assert share[-1] == 1.0
    for at_ms, part in zip(ms, share, strict=True):
        assert part == pytest.approx(gaps.at_most(round(at_ms * 1e7)) / gaps.count)
