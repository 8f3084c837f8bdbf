"""Each transform does what its flag says, and they apply in the documented order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from laminabench.traces.describe import prefix_share
from laminabench.traces.profile import named_profile
from laminabench.traces.synth import synthesise
from laminabench.traces.table import MAX_TOKENS, PrefixBlocks, Trace, TraceMeta, make_trace
from laminabench.traces.transform import Transforms
from laminabench.util.errors import UserError


def a_trace(requests: int = 100, *, sessions: int | None = None, gap_s: float = 1.0) -> Trace:
    index = np.arange(requests)
    return make_trace(
        index * gap_s,
        (index % 7 * 300 + 1).astype(np.int32),
        (index % 5 + 1).astype(np.int32),
        TraceMeta("made-up"),
        session=None if sessions is None else index % sessions,
        prefix_blocks=PrefixBlocks.from_lists(
            [list(range(-(-(i % 7 * 300 + 1) // 512))) for i in range(requests)]
        ),
    )


def test_no_request_changes_nothing() -> None:
    trace = a_trace()
    assert Transforms().apply(trace) is trace


def test_window_keeps_its_seconds_and_starts_at_zero() -> None:
    cut = Transforms(window_s=(10, 20)).apply(a_trace())
    assert len(cut) == 10
    assert cut.arrival_s[0] == 0
    assert cut.arrival_s[-1] == 9
    with pytest.raises(UserError, match="trace-empty-window"):
        Transforms(window_s=(200, 300)).apply(a_trace())


def test_rate_scale_two_is_twice_the_load_and_says_the_rate() -> None:
    scaled = Transforms(rate_scale=2).apply(a_trace())
    assert scaled.duration_s == pytest.approx(49.5)
    assert scaled.meta.notes == ("offered at 2 requests/s",)


def test_request_rate_gives_arrivals_to_a_trace_without() -> None:
    trace = a_trace(20_000)
    trace = replace(trace, arrival_s=np.zeros(len(trace)), meta=replace(trace.meta, has_arrivals=False))
    with pytest.raises(UserError, match="trace-no-arrivals"):
        Transforms(rate_scale=2).apply(trace)
    poisson = Transforms(request_rate=50).apply(trace)
    assert poisson.meta.has_arrivals
    assert (len(poisson) - 1) / poisson.duration_s == pytest.approx(50, rel=0.03)
    gaps = np.diff(poisson.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.05)
    bursty = np.diff(Transforms(request_rate=50, burstiness=0.25).apply(trace).arrival_s)
    assert bursty.std() / bursty.mean() == pytest.approx(2, rel=0.1)


def test_scaled_lengths_stay_positive() -> None:
    scaled = Transforms(scale_lengths=0.1).apply(a_trace())
    assert scaled.prompt_tokens.max() == 180
    assert scaled.prompt_tokens.min() == 1
    assert scaled.output_tokens.min() == 1
    nothing = Transforms(scale_lengths=1e-9).apply(a_trace())
    assert nothing.meta.block_tokens == 1
    assert nothing.prefix_blocks is not None
    assert nothing.prefix_blocks.lengths().max() == 1


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.7, 20])
@pytest.mark.parametrize(
    "trace", [a_trace(), synthesise(named_profile("kimi-conv"), 2000)], ids=["made-up", "kimi"]
)
def test_scaled_lengths_keep_the_share_of_repeated_prompt(trace: Trace, factor: float) -> None:
    scaled = Transforms(scale_lengths=factor).apply(trace)
    assert scaled.meta.block_tokens == round(512 * factor)
    assert prefix_share(scaled) == pytest.approx(prefix_share(trace), abs=0.01)
    assert scaled.prefix_blocks is not None
    assert (scaled.prefix_blocks.lengths() <= -(-scaled.prompt_tokens // scaled.meta.block_tokens)).all()


@pytest.mark.parametrize("factor", [1e6, 1e308])
def test_scaling_beyond_the_longest_length_counts_what_was_cut(factor: float) -> None:
    scaled = Transforms(scale_lengths=factor).apply(a_trace(70))
    assert scaled.prompt_tokens.max() == MAX_TOKENS
    assert scaled.meta.block_tokens == MAX_TOKENS
    assert scaled.meta.notes[0].endswith("of 70 requests were cut to 16,777,216 tokens")


@pytest.mark.parametrize(
    "flags",
    [
        {"rate_scale": 1e-300},
        {"rate_scale": 1e-9},
        {"rate_scale": 1e300},
        {"request_rate": 1e-300},
        {"request_rate": 1e-300, "burstiness": 1e-300},
        {"request_rate": 5, "rate_scale": 1e-300},
    ],
)
def test_rates_beyond_all_clocks_are_refused(flags: dict[str, float]) -> None:
    with pytest.raises(UserError, match="trace-bad-rate"):
        Transforms(**flags).apply(a_trace())


def test_too_long_truncates_or_drops_and_counts() -> None:
    trace = a_trace(70)
    truncated = Transforms(max_prompt=1000).apply(trace)
    assert len(truncated) == 70
    assert truncated.prompt_tokens.max() == 1000
    assert truncated.meta.notes == ("30 of 70 requests were too long and were truncated",)
    dropped = Transforms(max_prompt=1000, too_long="drop").apply(trace)
    assert len(dropped) == 40
    assert dropped.meta.notes == ("30 of 70 requests were too long and were dropped",)
    # The number is of what is left.
    assert len(Transforms(max_prompt=1000, too_long="drop", num_requests=40).apply(trace)) == 40
    with pytest.raises(UserError, match="trace-all-too-long"):
        Transforms(max_output=0, too_long="drop").apply(trace)


@example(sample=20, sessions=10, seed=0)
@given(sample=st.integers(1, 120), sessions=st.integers(1, 30), seed=st.integers(0, 5))
def test_sampling_takes_whole_sessions(sample: int, sessions: int, seed: int) -> None:
    trace = a_trace(sessions=sessions)
    sampled = Transforms(sample=sample, seed=seed).apply(trace)
    assert sampled.session is not None
    assert trace.session is not None
    largest = np.unique(trace.session, return_counts=True)[1].max()
    assert sample > len(sampled) - largest
    assert len(sampled) >= min(sample, 100)
    assert (np.diff(sampled.arrival_s) >= 0).all()
    for session in np.unique(sampled.session):
        assert (sampled.session == session).sum() == (trace.session == session).sum()


def test_sampling_is_repeatable_and_depends_on_the_seed() -> None:
    def lengths(seed: int) -> list[int]:
        return Transforms(sample=30, seed=seed).apply(a_trace()).prompt_tokens.tolist()

    assert len(lengths(1)) == 30
    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)


def test_prefix_needed_only_when_the_head_is_enough() -> None:
    assert Transforms(num_requests=5).prefix_needed() == 5
    assert Transforms(num_requests=5, sample=3).prefix_needed() is None
    assert Transforms(num_requests=5, max_prompt=3, too_long="drop").prefix_needed() is None
