"""Profiles fitted to traces, and traces made from profiles: close to the real ones, the same everywhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from laminabench.traces.describe import (
    compare,
    ks_distance,
    mean_error,
    minute_dispersion,
    prefix_share,
    spearman,
)
from laminabench.traces.draws import BLOCK, Draws
from laminabench.traces.fit import fit, moment_match
from laminabench.traces.formats import load_file
from laminabench.traces.profile import Profile, named_profile, parse_profile, profile_sha256, profile_text
from laminabench.traces.reuse import root_blocks
from laminabench.traces.synth import synthesise
from laminabench.traces.table import MAX_TOKENS, PrefixBlocks, Trace, TraceMeta, make_trace
from laminabench.util.errors import UserError

NUMBER = re.compile(r"(?<![\w.])-?\d[\d.]*(?:e[+-]?\d+)?(?!\w)")
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
    (words, numbers), (expected, wanted_numbers) = map(words_and_numbers, (fitted, named_profile(name)))
    assert words == expected
    assert numbers == pytest.approx(wanted_numbers, rel=1e-3, abs=1e-6)


def words_and_numbers(profile: Profile) -> tuple[list[str], list[float]]:
    text = profile_text(profile)
    return NUMBER.sub("", text).split(), [float(number) for number in NUMBER.findall(text)]


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
        saved = ids[row - 20][: int(prompt[row - 20]) // 512] if row >= 20 else [0, 1]
        missing = -(-tokens // 512) - len(saved)
        ids.append([*saved, *range(following, following + missing)])
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
    messages = (matched.name, matched.method, matched.note, matched.errors)
    assert messages == ("x", "moment-matched", "why", None)
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
    result = compare(trace, trace)
    assert not any((result.ks_prompt, result.mean_error_output, result.minute_dispersion, result.ks_prefix))


@pytest.fixture(scope="module", params=FILES)
def real(request: pytest.FixtureRequest, real_traces: Path) -> Trace:
    return load_file(real_traces / FILES[request.param], name=request.param)


@pytest.mark.parametrize("seed", [0, 1, 2, 17, 2**40])
def test_close_to_the_real_trace(real: Trace, seed: int) -> None:
    synthetic = synthesise(named_profile(real.meta.name), len(real), seed)
    result = compare(real, synthetic)
    assert len(synthetic) == len(real)
    assert result.ks_prompt <= 0.02
    assert result.ks_output <= 0.02
    assert abs(result.mean_error_prompt) <= 0.01
    assert abs(result.mean_error_output) <= 0.01
    assert abs(result.spearman_real - result.spearman_synthetic) <= 0.03
    if real.meta.has_arrivals:
        # About 59 minutes: the mean of that many squared Poisson deviations stays below this.
        assert result.minute_dispersion is not None
        assert result.minute_dispersion <= 1 + 4 * (2 / 59) ** 0.5
        assert result.gap_cv_real is not None
        assert result.gap_cv_synthetic == pytest.approx(result.gap_cv_real, rel=0.2)
        assert synthetic.duration_s == pytest.approx(real.duration_s, rel=0.01)
    if real.prefix_blocks is not None:
        assert result.prefix_share_synthetic == pytest.approx(result.prefix_share_real, abs=0.02)
        assert result.ks_prefix is not None
        assert result.ks_prefix <= 0.03
        assert result.distinct_blocks_synthetic == pytest.approx(result.distinct_blocks_real, rel=0.03)


def digest(trace: Trace) -> str:
    """Of whole numbers only: microseconds, tokens and block ids."""
    columns = [np.rint(trace.arrival_s * 1e6), trace.prompt_tokens, trace.output_tokens]
    if trace.prefix_blocks is not None:
        columns += [trace.prefix_blocks.offsets, trace.prefix_blocks.ids]
    sum_ = hashlib.sha256()
    for column in columns:
        sum_.update(np.ascontiguousarray(column, "<i8").tobytes())
    return sum_.hexdigest()[:16]


# Pinned: a change here means that every replay from a profile changes, which the changelog has to say.
DIGESTS = {
    "azure-conv": "83bd8ab66c73c4cd",
    "azure-code": "20a44d491e3357e6",
    "kimi-conv": "15a40095dd44ef01",
    "sharegpt": "523beb430bcec08d",
    "kimi-ta": "63e8a8345f27f5ef",
    "azure-2024-conv": "b685ec16d80db267",
    "azure-2024-code": "1a03f3d77b4ec3f9",
    "burstgpt": "5e394aadf5febd88",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_the_same_on_every_machine(name: str) -> None:
    trace = synthesise(named_profile(name), 10_000, seed=7)
    assert digest(trace) == DIGESTS[name]
    assert digest(synthesise(named_profile(name), 10_000, seed=8)) != DIGESTS[name]


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize("requests", [1, 2, 100, 8192, 8193])
def test_any_number_of_requests_is_a_valid_trace(name: str, requests: int) -> None:
    profile = named_profile(name)
    trace = synthesise(profile, requests, seed=3)
    assert len(trace) == requests
    assert trace.arrival_s[0] == 0
    assert (np.diff(trace.arrival_s) >= 0).all()
    for tokens, table in ((trace.prompt_tokens, profile.prompt), (trace.output_tokens, profile.output)):
        assert tokens.min() >= table.values[0] - 0.5
        assert tokens.max() <= table.values[-1] + 0.5
        assert tokens.min() >= 1


def test_a_trace_says_where_it_comes_from() -> None:
    profile = named_profile("kimi-ta")
    meta = synthesise(profile, 10, seed=5).meta
    assert (meta.name, meta.source, meta.sha256) == ("kimi-ta", "profile", profile_sha256(profile))
    assert meta.origin == "profile kimi-ta (moment-matched to kimi-conv, sha256 b8cbb061a852)"
    assert "seed 5" in meta.notes[0]
    assert meta.notes[1] == profile.note
    assert not synthesise(named_profile("sharegpt"), 10).meta.has_arrivals


def test_kimi_ta_has_its_published_size_and_means() -> None:
    trace = synthesise(named_profile("kimi-ta"))
    assert len(trace) == 23608
    assert trace.prompt_tokens.mean() == pytest.approx(8560.0, rel=0.01)
    assert trace.output_tokens.mean() == pytest.approx(182.1, rel=0.01)


def test_fewer_requests_come_at_the_same_rate_with_the_same_lengths() -> None:
    profile = named_profile("azure-conv")
    whole, part = synthesise(profile), synthesise(profile, 5000)
    rate = np.searchsorted(whole.arrival_s, part.duration_s) / len(part)
    assert rate == pytest.approx(1, abs=0.05)
    assert ks_distance(whole.prompt_tokens, part.prompt_tokens) < 0.002
    assert ks_distance(whole.output_tokens, part.output_tokens) < 0.002


def test_ten_requests_of_a_busy_trace_take_no_hour() -> None:
    profile = named_profile("azure-2024-conv")
    assert profile.arrivals is not None
    gap_s = 3600 / profile.arrivals.counts[0]
    assert synthesise(profile, 1000).duration_s == pytest.approx(1000 * gap_s, rel=0.2)


def test_more_requests_repeat_the_curve() -> None:
    profile = named_profile("azure-code")
    assert profile.arrivals is not None
    trace = synthesise(profile, 3 * profile.requests)
    assert trace.duration_s == pytest.approx(3 * profile.arrivals.duration_s, rel=0.01)
    thirds = np.bincount((trace.arrival_s // profile.arrivals.duration_s).astype(int))
    assert thirds == pytest.approx(profile.requests, rel=0.05)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="profile-no-requests"):
        synthesise(named_profile("azure-conv"), 0)
    with pytest.raises(UserError, match="profile-negative-seed"):
        synthesise(named_profile("azure-conv"), 1, seed=-1)


def assert_trie(trace: Trace, blocks: PrefixBlocks) -> None:
    parents: dict[int, int] = {}
    full = trace.prompt_tokens // trace.meta.block_tokens
    owners: dict[int, int] = {}
    for row in range(len(trace)):
        ids = blocks[row].tolist()
        assert len(ids) == -(-int(trace.prompt_tokens[row]) // trace.meta.block_tokens)
        for depth, block in enumerate(ids):
            before = ids[depth - 1] if depth else -1
            assert parents.setdefault(block, before) == before
            # A part-filled last block is not shared.
            if depth >= full[row]:
                assert block not in owners
            owners[block] = row
    assert sorted(parents) == list(range(len(parents)))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), requests=st.integers(1, 400), root=st.integers(0, 3))
def test_equal_blocks_mean_equal_beginnings(seed: int, requests: int, root: int) -> None:
    profile = with_root(named_profile("kimi-conv"), root)
    trace = synthesise(profile, requests, seed)
    assert trace.prefix_blocks is not None
    assert_trie(trace, trace.prefix_blocks)


def with_root(profile: Profile, root: int) -> Profile:
    assert profile.reuse is not None
    return replace(profile, reuse=replace(profile.reuse, root_blocks=root))


def test_prefix_share_lasts_in_longer_traces() -> None:
    profile = named_profile("kimi-conv")
    assert prefix_share(synthesise(profile, 30_000)) == pytest.approx(
        prefix_share(synthesise(profile, 10_000)), abs=0.02
    )


@settings(max_examples=25)
@given(seed=st.integers(0, 2**63), block=st.integers(1, BLOCK), rows=st.integers(1, 3))
def test_stratified_numbers_are_one_in_each_part(seed: int, block: int, rows: int) -> None:
    draws = Draws(seed, 0)
    numbers = draws.stratified(rows, block)
    moved = draws.restratified(numbers**2, rows, block)
    for each in (numbers, moved):
        parts = np.sort((each.reshape(rows, block) * block).astype(int), axis=1)
        assert (parts == np.arange(block)).all()
    order = np.argsort(numbers.reshape(rows, block), axis=1)
    assert (np.argsort(moved.reshape(rows, block), axis=1) == order).all()
