"""Fitting profiles: from made-up traces whose truth is known, and the committed ones from the real files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench.errors import UserError
from laminabench.traces.describe import compare, ks_distance, mean_error, minute_dispersion, spearman
from laminabench.traces.fit import fit, moment_match
from laminabench.traces.formats import load_file
from laminabench.traces.profile import named_profile, parse_profile, profile_text
from laminabench.traces.reuse import root_blocks
from laminabench.traces.synth import synthesise
from laminabench.traces.table import MAX_TOKENS, PrefixBlocks, Trace, TraceMeta, make_trace

FILES = {
    "azure-conv": "AzureLLMInferenceTrace_conv.csv",
    "azure-code": "AzureLLMInferenceTrace_code.csv",
    "kimi-conv": "conversation_trace.jsonl",
    "sharegpt": "sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
}


@pytest.mark.parametrize("name", FILES)
def test_the_committed_profile_is_what_fit_gives(name: str, real_traces: Path) -> None:
    fitted = fit(load_file(real_traces / FILES[name], name=name), name)
    # Sums and standard deviations may differ in the last printed digit between machines.
    assert_close(msgspec.to_builtins(fitted), msgspec.to_builtins(named_profile(name)))


def assert_close(found: object, wanted: object) -> None:
    if isinstance(wanted, dict):
        assert isinstance(found, dict)
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_close(found[key], wanted[key])
    elif isinstance(wanted, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(wanted)
        for each, other in zip(found, wanted, strict=True):
            assert_close(each, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    else:
        assert found == wanted


def trace_of(
    prompt: np.ndarray,
    output: np.ndarray,
    arrival_s: np.ndarray | None = None,
    blocks: PrefixBlocks | None = None,
) -> Trace:
    meta = TraceMeta("made-up", has_arrivals=arrival_s is not None)
    times_s = np.zeros(len(prompt)) if arrival_s is None else arrival_s
    return make_trace(times_s, prompt.astype(np.int32), output.astype(np.int32), meta, prefix_blocks=blocks)


def test_heavy_tails_atoms_and_dependence_come_back() -> None:
    random = np.random.Generator(np.random.PCG64(1))
    hidden = random.standard_normal((2, 20_000))
    hidden[1] = 0.7 * hidden[0] + 0.5 * hidden[1]
    prompt, output = np.exp(6 + 1.5 * hidden[0]).astype(int) + 1, np.exp(4 + hidden[1]).astype(int) + 1
    prompt[random.random(20_000) < 0.05] = 777
    trace = trace_of(prompt, output, np.sort(random.random(20_000)) * 3000)
    errors = fit(trace, "made-up").errors
    assert errors is not None
    assert max(errors.ks_prompt, errors.ks_output) < 0.01
    assert max(abs(errors.mean_error_prompt), abs(errors.mean_error_output)) < 0.01
    assert abs(errors.spearman_real) > 0.5
    assert errors.spearman_synthetic == pytest.approx(errors.spearman_real, abs=0.02)


def test_equal_lengths_do_not_become_dependence() -> None:
    profile = fit(trace_of(np.full(5000, 64), np.arange(5000) % 7 + 1), "made-up")
    assert np.ptp(profile.copula) < 0.9 * np.mean(profile.copula) * 4
    synthetic = synthesise(profile)
    assert set(synthetic.prompt_tokens.tolist()) == {64}
    assert ks_distance(synthetic.output_tokens, np.arange(5000) % 7 + 1) < 0.01


def test_batches_of_simultaneous_requests_stay_batches() -> None:
    arrival_s = np.repeat(np.arange(300) * 3.0, 10)
    trace = trace_of(np.full(3000, 100), np.full(3000, 10), arrival_s)
    synthetic = synthesise(fit(trace, "made-up"))
    same = np.mean(np.diff(synthetic.arrival_s) == 0)
    assert same == pytest.approx(np.mean(np.diff(arrival_s) == 0), abs=0.02)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 10**9)), min_size=1, max_size=60
    ),
    st.booleans(),
)
def test_any_trace_can_be_fitted(rows: list[tuple[int, int, int]], has_blocks: bool) -> None:
    prompt, output, arrival_ms = (np.array(column) for column in zip(*rows, strict=True))
    ids = [[0, *range(row * 100 + 1, row * 100 + -(-int(p) // 512))] for row, p in enumerate(prompt)]
    blocks = PrefixBlocks.from_lists(ids) if has_blocks else None
    trace = trace_of(prompt, output, np.sort(arrival_ms) / 1000, blocks)
    profile = fit(trace, "made-up")
    text = profile_text(profile)
    assert parse_profile(text, "text") == profile
    assert len(text) < 20_000
    synthetic = synthesise(profile, seed=1)
    assert len(synthetic) == len(trace)
    assert synthetic.prompt_tokens.max() <= prompt.max()
    assert synthetic.duration_s <= trace.duration_s + 1e-5


def test_conversations_that_always_go_on_are_measured_as_that() -> None:
    # 20 conversations of 20 turns, one after the other, 600 tokens longer each time; a shared system prompt
    # of two blocks.
    turn = np.repeat(np.arange(20), 20)
    prompt = 1200 + 600 * turn
    ids: list[list[int]] = []
    following = 2
    for row, tokens in enumerate(prompt.tolist()):
        kept = ids[row - 20][: int(prompt[row - 20]) // 512] if row >= 20 else [0, 1]
        missing = -(-tokens // 512) - len(kept)
        ids.append([*kept, *range(following, following + missing)])
        following += missing
    trace = trace_of(prompt, np.full(400, 10), np.arange(400.0), PrefixBlocks.from_lists(ids))
    profile = fit(trace, "made-up")
    assert profile.reuse is not None
    assert profile.reuse.root_blocks == 2
    assert profile.reuse.continues == (0.0, *[1.0] * 9)  # only first turns are in the shortest class
    assert max(profile.reuse.branches) == 0
    assert profile.reuse.continue_lag_s.mean() == 20
    assert profile.errors is not None
    assert profile.errors.prefix_share_synthetic == pytest.approx(profile.errors.prefix_share_real, abs=0.05)


def test_root_blocks_are_those_that_nearly_all_share() -> None:
    assert root_blocks(PrefixBlocks.from_lists([[0, 1, 2], [0, 1, 3], [0, 1]])) == 2
    assert root_blocks(PrefixBlocks.from_lists([[0], [1]])) == 0
    assert root_blocks(PrefixBlocks.from_lists([[0, 1], [0, 1]])) == 2


def test_moment_matching_keeps_the_shape_and_hits_the_means() -> None:
    base = named_profile("azure-conv")
    matched = moment_match(base, name="x", requests=50, mean_prompt=9000, mean_output=3, note="why")
    assert (matched.name, matched.method, matched.note, matched.errors) == (
        "x",
        "moment-matched",
        "why",
        None,
    )
    assert matched.prompt.mean() == pytest.approx(9000, rel=1e-3)
    # Most outputs would be scaled below one token: they become one, and the mean is right all the same.
    assert min(matched.output.values) == 1
    assert matched.output.mean() == pytest.approx(3, rel=0.02)
    for mean in (0.5, MAX_TOKENS + 1, 1e300, float("nan")):
        with pytest.raises(UserError, match="profile-impossible-mean"):
            moment_match(base, name="x", requests=50, mean_prompt=mean, mean_output=3, note="")


@pytest.mark.parametrize("mean", [MAX_TOKENS / 20, MAX_TOKENS / 1.5])
def test_moment_matching_never_exceeds_the_longest_length(mean: float) -> None:
    base = named_profile("azure-code")
    matched = moment_match(base, name="x", requests=50, mean_prompt=mean, mean_output=3, note="")
    assert matched.prompt.values[-1] <= MAX_TOKENS
    assert matched.prompt.mean() == pytest.approx(mean, rel=0.01)


def test_the_comparison_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.Generator(np.random.PCG64(3))
    first, second = random.integers(0, 30, 500), random.integers(0, 40, 500)
    assert ks_distance(first, second) == pytest.approx(stats.ks_2samp(first, second).statistic)
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert spearman(first, np.ones(500)) == 0
    assert mean_error(np.array([1, 3]), np.array([2, 4])) == 0.5


def test_poisson_noise_has_dispersion_one_and_a_trace_is_like_itself() -> None:
    random = np.random.Generator(np.random.PCG64(4))
    # Exact counts against Poisson ones.
    even = np.arange(60_000) * 0.6
    noisy = np.sort(random.random(60_000)) * 36_000
    assert minute_dispersion(even, noisy) == pytest.approx(1, abs=0.2)
    trace = synthesise(named_profile("kimi-conv"), 500)
    found = compare(trace, trace)
    assert (found.ks_prompt, found.mean_error_output, found.minute_dispersion, found.ks_prefix) == (
        0,
        0,
        0,
        0,
    )
