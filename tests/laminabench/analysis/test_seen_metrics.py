"""Metrics of what only a client saw, held to a slow look at every token and to cases worked out by hand."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_outcome import described, flat, outcome_of, to_ticks, trace_of

from laminabench.analysis.attainment import cdf, curve, joint, worst_gaps
from laminabench.analysis.bootstrap import FEWEST_ITERATIONS, resamples
from laminabench.analysis.metrics import summarise
from laminabench.analysis.over_time import over_time
from laminabench.analysis.tbt import gaps_of, tbt, tokens_of
from laminabench.analysis.window import Window, whole_run, window
from laminabench.runs.status import DONE, FAILED, UNFINISHED
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import TICKS_PER_S, Spec, Timing
from laminabench.traces.table import Trace
from laminabench.util.json import to_json

ObserveRun = Callable[..., Outcome]


def outputs_of(*outputs: int, prompt: int = 1) -> Trace:
    return trace_of([prompt] * len(outputs), outputs)


def reported(outcome: Outcome, trace: Trace, mode: Any, slo_tbt_ms: float) -> dict[str, Any]:
    return to_json(summarise(outcome, trace, mode=mode, slo_tbt_ms=slo_tbt_ms, usd_per_hour=None))


# Small random streams


@st.composite
def drawn_streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    results = []
    for _ in range(draw(st.integers(1, 8))):
        sent = draw(st.integers(0, 30))
        steps = draw(st.lists(st.tuples(st.integers(0, 25), st.integers(1, 4)), max_size=8))
        at = itertools.accumulate((step for step, _ in steps), initial=sent)
        next(at)
        chunks = [(moment * 1e-3, tokens) for moment, (_, tokens) in zip(at, steps, strict=True)]
        ended = draw(st.sampled_from((DONE, DONE, FAILED, UNFINISHED))) if chunks else FAILED
        due = draw(st.integers(0, sent))
        results.append({"due_s": due * 1e-3, "sent_s": sent * 1e-3, "chunks": chunks, "status": ended})
    return results


# The slow way: when every token of every request came


def token_times(streams: Sequence[Any]) -> list[list[int]]:
    return [[to_ticks(at) for at, tokens in each.chunks for _ in range(tokens)] for each in streams]


def slow_metrics(streams: Sequence[Any], of: Window, limit: int) -> dict[str, Any]:
    start, end = to_ticks(of.start_s), to_ticks(of.end_s)

    def inside(at: int) -> bool:
        return start < at <= end

    times = token_times(streams)
    gaps = [b - a for each in times for a, b in itertools.pairwise(each) if inside(b)]
    chunk_times = [[to_ticks(at) for at, _ in each.chunks] for each in streams]
    between = [b - a for each in chunk_times for a, b in itertools.pairwise(each) if inside(b)]
    made = sum(inside(at) for each in times for at in each)
    done = [
        each
        for each, stream in zip(times, streams, strict=True)
        if stream.status == DONE and inside(each[-1])
    ]
    saved = [all(b - a <= limit for a, b in itertools.pairwise(each)) for each in done]
    served = sum(max(0, min(each[-1], end) - max(each[0], start)) for each in times if each)
    sent = [to_ticks(each.sent_s) for each in streams]
    waited = sum(
        max(0, min(each[0], end) - max(at, start)) for at, each in zip(sent, times, strict=True) if each
    )
    seconds = Fraction(end - start, TICKS_PER_S)
    late = sum(gap > limit for gap in gaps)
    return {
        "throughput_tokens_per_s": float(made / seconds),
        "mean_batch": served / (end - start),
        "tbt_ms": described(gaps),
        "slo": {
            "token_attainment": 1 - late / len(gaps) if gaps else None,
            "request_attainment": sum(saved) / len(saved) if saved else None,
            "goodput_tokens_per_s": float((made - late) / seconds),
        },
        "itl_ms": described(between),
        "ttft_ms": described(
            [each[0] - at for at, each in zip(sent, times, strict=True) if each and inside(each[0])]
        ),
        "e2e_ms": described(
            [
                each[-1] - at
                for at, each, stream in zip(sent, times, streams, strict=True)
                if stream.status == DONE and inside(each[-1])
            ]
        ),
        "tpot_ms": described(
            [round(Fraction(each[-1] - each[0], len(each) - 1)) for each in done if len(each) > 1]
        ),
        "mean_waiting": waited / (end - start),
    }


@settings(max_examples=80)
@given(
    drawn=drawn_streams(), mode=st.sampled_from(("saturate", "open", "closed")), limit_ms=st.integers(0, 26)
)
def test_summary_equals_the_look_at_every_token(
    stream: Any, observed: ObserveRun, drawn: list[dict[str, Any]], mode: Any, limit_ms: int
) -> None:
    streams = [stream(**each) for each in drawn]
    outcome = observed(streams)
    trace = outputs_of(*(max(1, sum(tokens for _, tokens in each.chunks)) for each in streams))
    if outcome.end_s == 0:
        return
    result = reported(outcome, trace, mode, limit_ms)
    json.dumps(result, allow_nan=False)
    of = window(outcome, mode)
    slow = flat(slow_metrics(streams, of, to_ticks(limit_ms / 1000)))
    fast = flat(result)
    assert {key: fast[key] for key in slow} == {
        key: None if value is None else pytest.approx(value, rel=1e-12, abs=1e-12)
        for key, value in slow.items()
    }
    assert result["tokens_generated"] == sum(map(len, token_times(streams)))
    # What a client cannot know is not guessed.
    unknown = [
        result[name] for name in ("time_shares", "utilisation", "bubbles", "kv", "preemptions", "queueing_s")
    ]
    assert all(value in (None, [None]) for each in unknown for value in flat(each).values())


@settings(max_examples=60)
@given(drawn=drawn_streams(), bounds=st.tuples(st.integers(0, 60), st.integers(0, 160)))
def test_gaps_and_worst_gaps_are_those_of_single_tokens(
    stream: Any, observed: ObserveRun, drawn: list[dict[str, Any]], bounds: tuple[int, int]
) -> None:
    streams = [stream(**each) for each in drawn]
    outcome = observed(streams)
    of = Window(start_s=bounds[0] * 1e-3, end_s=sum(bounds) * 1e-3, kind="arrivals")
    tokens, times = tokens_of(outcome), token_times(streams)
    slow = sorted((b, b - a) for each in times for a, b in itertools.pairwise(each) if of.start < b <= of.end)
    gaps = gaps_of(tokens, of)
    each_token = zip(np.repeat(gaps.end, gaps.count), np.repeat(gaps.gap, gaps.count), strict=True)
    assert sorted((int(end), int(gap)) for end, gap in each_token) == slow
    lengths = tbt(tokens, of)
    assert lengths.count == len(slow)
    assert lengths.sum == sum(gap for _, gap in slow)
    finished, worst = worst_gaps(outcome, tokens, of)
    assert sorted(zip(finished.tolist(), worst.tolist(), strict=True)) == sorted(
        (each[-1], max((b - a for a, b in itertools.pairwise(each)), default=0))
        for each, stream_ in zip(times, streams, strict=True)
        if stream_.status == DONE and of.start < each[-1] <= of.end
    )


@settings(max_examples=25)
@given(drawn=drawn_streams(), limits_ms=st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_curves_have_what_summaries_have(
    stream: Any, observed: ObserveRun, drawn: list[dict[str, Any]], limits_ms: list[int]
) -> None:
    outcome = observed([stream(**each) for each in drawn])
    trace = outputs_of(*[1] * len(drawn))
    result = curve(outcome, whole_run(outcome), limits_ms)
    for place, limit_ms in enumerate(limits_ms):
        slo = reported(outcome, trace, "saturate", limit_ms)["whole_run"]["slo"]
        for name in ("token_attainment", "request_attainment", "goodput_tokens_per_s"):
            ours = getattr(result, name)[place]
            assert (None if math.isnan(ours) else pytest.approx(ours)) == slo[name]
    ms, shares = cdf(outcome)
    gaps = tbt(tokens_of(outcome))
    assert len(ms) == len(np.unique(gaps.values))
    assert not len(shares) or shares[-1] == 1
    slices = over_time(outcome, 7)
    made = sum(tokens for each in drawn for _, tokens in each["chunks"])
    assert slices.tokens_per_s.sum() * outcome.end_s / 7 == pytest.approx(made if outcome.end_s else 0)


# By hand


def test_the_first_token_of_a_chunk_waited_and_the_others_came_with_it(
    stream: Any, observed: ObserveRun
) -> None:
    outcome = observed([stream(sent_s=0.1, chunks=[(0.5, 2), (0.9, 3), (1.0, 1)])])
    result = reported(outcome, outputs_of(6), "saturate", 150)
    assert np.unique(tbt(tokens_of(outcome)).values).tolist() == [0, to_ticks(0.1), to_ticks(0.4)]
    assert result["tbt_ms"]["mean"] == pytest.approx(100)  # five gaps: 0, 400, 0, 0 and 100
    assert result["tbt_ms"]["p50"] == 0
    assert result["itl_ms"]["mean"] == pytest.approx(250)  # two gaps of chunks: 400 and 100
    assert result["ttft_ms"]["max"] == pytest.approx(400)
    assert result["e2e_ms"]["max"] == pytest.approx(900)
    assert result["tpot_ms"]["max"] == pytest.approx(100)
    assert result["tokens_per_chunk"] == {"mean": 2.0, "max": 3, "even_share": 0.0}
    assert result["slo"]["token_attainment"] == pytest.approx(0.8)
    assert result["slo"]["request_attainment"] == 0
    assert result["mean_batch"] == pytest.approx(0.5)
    assert result["mean_waiting"] == pytest.approx(0.4)


def test_both_limits_count_from_when_a_request_was_sent(stream: Any, observed: ObserveRun) -> None:
    outcome = observed(
        [stream(sent_s=0.1, chunks=[(0.5, 2), (0.9, 3)]), stream(sent_s=0.2, chunks=[(0.4, 1)])]
    )
    result, limits = joint(outcome), np.array([150.0, 250.0, 450.0])
    assert result.over_ttft(limits, 400).tolist() == [0, 0.5, 1]
    assert result.over_tbt(limits, 300).tolist() == [0.5, 0.5, 0.5]
    # An answer that ends without a token has kept no limit on the first one.
    outcome.requests["first_token_s"][1] = np.nan
    assert joint(outcome).over_tbt(limits, 1e9).tolist() == [0, 0, 0.5]


def test_attempts_errors_and_counts_are_reported(stream: Any, observed: ObserveRun) -> None:
    streams = [
        stream(chunks=[(0.1, 4)], attempts=3, prompt_counted=10, completion_counted=4, even=True),
        stream(chunks=[(0.2, 2)], prompt_counted=12, completion_counted=2),
        stream(chunks=[(0.3, 1)], status=FAILED, error="the connection was reset"),
        stream(status=FAILED, attempts=4, status_code=503, error="503 Service Unavailable"),
        stream(status=FAILED, attempts=4, status_code=-1, error="503 Service Unavailable"),
        stream(sent_s=math.nan, status=UNFINISHED, attempts=0, status_code=-1),
    ]
    result = reported(observed(streams), outputs_of(4, 3, 4, 4, 4, 4, prompt=10), "closed", 1)
    assert result["requests"] == {"completed": 2, "rejected": 0, "unfinished": 1, "failed": 3}
    assert result["attempts"] == {
        "sent": 13,
        "retried": 8,
        "failed": 3,
        "by_error": {"503 Service Unavailable": 2, "the connection was reset": 1},
        "by_status": {"200": 3, "503": 1},
    }
    assert result["counted"] == {
        "prompt_tokens": {"requests": 2, "asked": 20, "said": 22, "other": 1},
        "completion_tokens": {"requests": 2, "asked": 7, "said": 6, "other": 1},
        "other_length": 1,  # of those that came to an end; one got 2 instead of 3
    }
    assert result["tokens_per_chunk"]["even_share"] == pytest.approx(4 / 7)
    assert result["lateness_ms"] is None


def test_rare_errors_are_counted_together(stream: Any, observed: ObserveRun) -> None:
    streams = [stream(status=FAILED, error=f"error {row}") for row in range(30)]
    streams += [stream(status=FAILED, error="often")] * 2
    result = reported(observed(streams, 1.0), outputs_of(*[1] * 32), "open", 1)
    by_error = result["attempts"]["by_error"]
    assert next(iter(by_error.items())) == ("often", 2)
    assert len(by_error) == 21
    assert sum(by_error.values()) == 32


def test_lateness_is_the_clients_own(stream: Any, observed: ObserveRun) -> None:
    streams = [stream(due_s=row, sent_s=row + row * 1e-3, chunks=[(row + 0.5, 1)]) for row in range(101)]
    result = reported(observed(streams), outputs_of(*[1] * 101), "open", 1)
    assert result["lateness_ms"] == {
        "p50": pytest.approx(50),
        "p99": pytest.approx(99),
        "max": pytest.approx(100),
    }


def test_the_window_of_a_closed_replay_ends_with_the_last_request_that_was_sent(
    stream: Any, observed: ObserveRun
) -> None:
    streams = [stream(due_s=row, sent_s=row, chunks=[(row + 0.5, 1)]) for row in range(20)]
    never = stream(due_s=99.0, sent_s=math.nan, status=UNFINISHED, attempts=0)
    assert window(observed([*streams, never]), "closed") == Window(
        start_s=0.0, end_s=19.0, kind="concurrency_held"
    )
    few = [stream(due_s=row, sent_s=row, chunks=[(row + 0.5, 1)]) for row in range(5)]
    assert window(observed(few), "closed").fell_back


def test_nothing_that_came_is_a_summary_too(stream: Any, observed: ObserveRun) -> None:
    for outcome in (observed([]), observed([stream(status=FAILED, error="refused")], 2.0)):
        count = len(outcome.requests["finished_s"])
        result = to_json(
            summarise(outcome, outputs_of(*[1] * count), mode="open", slo_tbt_ms=1, usd_per_hour=1.0)
        )
        assert result["tokens_generated"] == 0
        assert set(result["itl_ms"].values()) == set(result["tbt_ms"].values()) == {None}
        assert over_time(outcome).tokens_per_s.sum() == 0


# Beside what the engine itself would have told


def test_a_client_that_sees_every_token_at_once_sees_what_the_engine_does(
    stream: Any, observed: ObserveRun
) -> None:
    rng = np.random.default_rng(1)
    trace = outputs_of(*rng.integers(5, 60, 80).tolist())
    flat_s = np.linspace(1e-3, 2e-3, 17)
    spec = Spec(1, Timing(flat_s, flat_s, flat_s, flat_s, flat_s * 1e-3), 10**6, 16)
    engine = simulate(trace, spec, Offered("saturate", 0))
    ends = engine.iterations["start_s"] + engine.iterations["duration_s"]
    spans = zip(
        *(engine.requests[name].tolist() for name in ("first_iteration", "last_iteration")), strict=True
    )
    streams = [stream(chunks=[(at_s, 1) for at_s in ends[first : last + 1]]) for first, last in spans]
    client = observed(streams)
    for limit_ms in (4.0, 5.5, 7.0):
        ours, theirs = (reported(each, trace, "open", limit_ms) for each in (client, engine))
        for name in ("throughput_tokens_per_s", "tbt_ms", "tpot_ms", "slo", "requests", "tokens_generated"):
            assert ours[name] == theirs[name]
        assert ours["itl_ms"] == ours["tbt_ms"]
    # A request streams from its first token on, and is served an iteration earlier.
    assert 0.9 * theirs["mean_batch"] < ours["mean_batch"] < theirs["mean_batch"]


def test_streams_that_share_iterations_are_no_more_certain(stream: Any, observed: ObserveRun) -> None:
    """Ten streams of the same iterations say what one does, and not what ten times as many would."""
    rng = np.random.default_rng(3)
    ends = np.cumsum(rng.lognormal(-4.0, 0.3, 400))

    def drawn(requests: int, chunks: int) -> dict[str, Any]:
        outcome = observed([stream(chunks=[(at_s, 1) for at_s in ends[:chunks]]) for _ in range(requests)])
        return resamples(outcome, whole_run(outcome), 25.0)

    one, ten = drawn(1, 400), drawn(10, 400)
    assert {"throughput_tokens_per_s", "tbt_ms.p50", "tbt_ms.p90"} <= one.keys() == ten.keys()
    assert "tbt_ms.p99" not in ten  # four iterations are beyond it, however many tokens that is
    name = "throughput_tokens_per_s"
    assert ten[name].std() / ten[name].mean() == pytest.approx(one[name].std() / one[name].mean(), rel=0.1)
    assert drawn(10, FEWEST_ITERATIONS // 2) == {}


def test_millions_of_tokens_take_moments() -> None:
    """No token is looked at by itself: that would take a hundred times as long."""
    requests, each = 2_000, 500
    rng = np.random.default_rng(0)
    at_s = np.sort(rng.uniform(0, 100, requests * each))
    request = rng.permutation(np.repeat(np.arange(requests), each))
    # The same tables as a small one, with many more chunks.
    first, last = np.full(requests, np.inf), np.zeros(requests)
    np.minimum.at(first, request, at_s)
    np.maximum.at(last, request, at_s)
    none = np.full(requests, -1)
    columns = {
        "arrival_s": np.zeros(requests), "admitted_s": np.full(requests, np.nan), "first_token_s": first,
        "finished_s": last, "first_iteration": none, "last_iteration": none, "batch": none,
        "preemptions": np.zeros(requests, np.int32), "status": np.zeros(requests, np.int8),
    }  # fmt: skip
    calls = {
        "due_s": np.zeros(requests), "sent_s": np.zeros(requests), "headers_s": first,
        "attempts": np.ones(requests, np.int32), "status_code": np.full(requests, 200, np.int32),
        "prompt_counted": none, "completion_counted": none, "even": np.zeros(requests, np.bool_),
        "error": np.full(requests, "", object),
    }  # fmt: skip
    chunks = {"request": request, "at_s": at_s, "tokens": np.ones(len(at_s), np.int32)}
    unknown = {"replica_busy_s": np.array([np.nan]), "attention_busy_s": np.nan}
    outcome = outcome_of([], requests=columns, end_s=100.0, chunks=chunks, calls=calls, **unknown)
    began = time.process_time()
    result = reported(outcome, outputs_of(*[each] * requests), "saturate", 1)
    assert result["tokens_generated"] == requests * each
    assert time.process_time() - began < 5.0
