"""Metrics, held to a slow look at every single token and to cases worked out by hand."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_outcome import described, flat, outcome_of, to_ticks, trace_of
from msgspec import structs

from laminabench.analysis import rates
from laminabench.analysis.attainment import request_attainment
from laminabench.analysis.distribution import distribution
from laminabench.analysis.metrics import prompt_pool_of, summarise
from laminabench.analysis.rates import energy
from laminabench.analysis.tbt import tbt, tokens_of
from laminabench.analysis.window import Window, whole_run, window
from laminabench.catalog.deployment import parse_deployment
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import TICKS_PER_S, Spec, Timing
from laminabench.traces.table import Trace
from laminabench.util.json import to_json

MOST = 8


# Small random simulations


@st.composite
def simulations(draw: st.DrawFn) -> tuple[Trace, Outcome, Any]:
    rows = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.integers(0, 40), min_size=rows, max_size=rows))
    lengths = (draw(st.lists(st.integers(1, most), min_size=rows, max_size=rows)) for most in (9, 12))
    trace = trace_of(*lengths, np.cumsum([0, *gaps[1:]]) * 1e-3)

    def table(most_us: int) -> Any:
        return np.array(draw(st.lists(st.integers(1, most_us), min_size=MOST + 1, max_size=MOST + 1))) * 1e-6

    timing = Timing(
        table(900),
        table(900),
        table(900),
        table(300),
        np.full(MOST + 1, 3.3e-6),
        q_transfer=table(100),
        out_transfer=table(100),
        host_fixed=5e-5,
        recompute_per_token=1e-5,
    )
    batches = draw(st.integers(1, 3))
    spec = Spec(
        draw(st.integers(1, 3)),
        timing,
        tokens_per_pool=draw(st.sampled_from((16, 24, 60))),
        max_requests=draw(st.integers(batches, MOST)),
        batches=batches,
        pipelining="rotational" if batches > 1 else "serial",
        admission=draw(st.sampled_from(("reserve", "grow", "grow"))),
    )
    mode = draw(st.sampled_from(("saturate", "open", "closed")))
    return trace, simulate(trace, spec, Offered(mode, 5), check=True), mode


# The slow way: when every token of every request came, from the requests' own iterations


def token_times(outcome: Outcome) -> Iterator[tuple[int, list[int]]]:
    columns = outcome.iterations
    ends = {
        (batch, iteration): to_ticks(start) + to_ticks(duration)
        for batch, iteration, start, duration in zip(
            *(columns[name].tolist() for name in ("batch", "iteration", "start_s", "duration_s")), strict=True
        )
    }
    stints = list(zip(*(column.tolist() for column in outcome.stints.values()), strict=True))
    requests = {name: column.tolist() for name, column in outcome.requests.items()}
    for row, finished in enumerate(requests["finished_s"]):
        if math.isnan(finished):
            continue
        stretches = [(batch, first, last) for request, batch, first, last in stints if request == row] or [
            tuple(requests[name][row] for name in ("batch", "first_iteration", "last_iteration"))
        ]
        yield row, [ends[batch, k] for batch, first, last in stretches for k in range(first, last + 1)]


def slow_metrics(outcome: Outcome, of: Window, limit_ms: float) -> dict[str, Any]:
    tokens = list(token_times(outcome))
    start, end = to_ticks(of.start_s), to_ticks(of.end_s)
    limit = to_ticks(limit_ms / 1000)
    gaps = sorted(b - a for _, times in tokens for a, b in itertools.pairwise(times) if start < b <= end)
    made = [at for _, times in tokens for at in times if start < at <= end]
    late = sum(gap > limit for gap in gaps)
    done = [times for _, times in tokens if start < times[-1] <= end]
    saved = [all(b - a <= limit for a, b in itertools.pairwise(times)) for times in done]
    rows = zip(
        *(outcome.iterations[name].tolist() for name in ("start_s", "duration_s", "size")), strict=True
    )
    served = Fraction(0)
    for start_s, duration_s, size in rows:
        began, ended = to_ticks(start_s), to_ticks(start_s) + to_ticks(duration_s)
        served += size * max(0, min(end, ended) - max(start, began))
    seconds = Fraction(end - start, TICKS_PER_S)
    return {
        "throughput_tokens_per_s": float(len(made) / seconds),
        "mean_batch": float(served / (end - start)),
        "tbt_ms": described(gaps),
        "slo": {
            "tbt_ms": limit_ms,
            "token_attainment": 1 - late / len(gaps) if gaps else None,
            "request_attainment": sum(saved) / len(saved) if saved else None,
            "goodput_tokens_per_s": float((len(made) - late) / seconds),
        },
    }


@settings(max_examples=60, deadline=None)
@given(simulations(), st.sampled_from((0.5, 1.5, 4.0, 20.0)))
def test_summary_equals_the_look_at_every_token(
    simulated: tuple[Trace, Outcome, Any], limit_ms: float
) -> None:
    trace, outcome, mode = simulated
    if outcome.end_s == 0:
        return
    result = to_json(summarise(outcome, trace, mode=mode, slo_tbt_ms=limit_ms, usd_per_hour=3.6))
    for of, ours in ((window(outcome, mode), result), (whole_run(outcome), result["whole_run"])):
        slow = flat(slow_metrics(outcome, of, limit_ms))
        fast = flat(ours)
        assert {key: fast[key] for key in slow} == {
            key: None if value is None else pytest.approx(value, rel=1e-12, abs=1e-12)
            for key, value in slow.items()
        }
    done = [(row, times) for row, times in token_times(outcome)]
    assert result["requests"] == {
        "completed": len(done),
        "rejected": len(trace) - len(done),
        "unfinished": 0,
        "failed": 0,
    }
    assert result["tokens_generated"] == sum(int(trace.output_tokens[row]) for row, _ in done)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@settings(max_examples=60, deadline=None)
@given(simulations(), st.integers(0, 200), st.integers(0, 200), st.sampled_from((0.5, 1.5, 4.0)))
def test_any_window_equals_the_look_at_every_token(
    simulated: tuple[Trace, Outcome, Any], a: int, b: int, limit_ms: float
) -> None:
    _, outcome, _ = simulated
    # Every other window begins or ends where an iteration does: whose side that is on matters.
    columns = outcome.iterations
    edges = [
        to_ticks(start) + to_ticks(duration)
        for start, duration in zip(columns["start_s"], columns["duration_s"], strict=True)
    ]
    edges = sorted({0, to_ticks(outcome.end_s), *edges, *(edge - 7_777 for edge in edges)})
    low, high = sorted((edges[a % len(edges)], edges[b % len(edges)]))
    if low == high:
        return
    of = Window(start_s=low / TICKS_PER_S, end_s=high / TICKS_PER_S, kind="arrivals")
    slow, tokens = slow_metrics(outcome, of, limit_ms), tokens_of(outcome)
    assert to_json(tbt(tokens, of).describe(1000)) == {
        key: None if value is None else pytest.approx(value) for key, value in slow["tbt_ms"].items()
    }
    limit = to_ticks(limit_ms / 1000)
    assert request_attainment(outcome, tokens, limit, of) == slow["slo"]["request_attainment"]
    assert rates.per_second(rates.produced(outcome, of), of) == pytest.approx(slow["throughput_tokens_per_s"])
    assert sum(rates.mean_batches(outcome, of)) == pytest.approx(slow["mean_batch"])


@settings(max_examples=40, deadline=None)
@given(simulations())
def test_request_metrics_and_shares(simulated: tuple[Trace, Outcome, Any]) -> None:
    trace, outcome, _ = simulated
    tpots, delays = [], []
    for row, times in token_times(outcome):
        assert to_ticks(outcome.requests["first_token_s"][row]) == times[0]
        if len(times) > 1:
            tpots.append(round(Fraction(times[-1] - times[0], len(times) - 1)))
        delays.append(
            to_ticks(outcome.requests["admitted_s"][row]) - to_ticks(outcome.requests["arrival_s"][row])
        )
    assert rates.tpot(outcome, trace).values.tolist() == sorted(tpots)
    assert rates.queueing(outcome).values.tolist() == sorted(delays)
    assert rates.queueing(outcome, whole_run(outcome)).values.tolist() == sorted(delays)
    shares = structs.asdict(rates.time_shares(outcome, whole_run(outcome)))
    if delays:
        signed = {
            name: -(share or 0) if name == "overlapped" else share or 0 for name, share in shares.items()
        }
        assert sum(signed.values()) == pytest.approx(1)
        # Over the whole run, busy time by the iterations is busy time by the workers.
        used = rates.utilisation(outcome, whole_run(outcome))
        assert used["attention"] == pytest.approx(outcome.attention_busy_s / outcome.end_s)
        assert used["model"] == pytest.approx(float(outcome.replica_busy_s.mean()) / outcome.end_s)


# By hand


def by_hand(iterations: list[tuple[int, int, float, float, int, int]], **given: Any) -> Outcome:
    """Rows of batch, iteration, start, duration, size, joined; the model works half of the time."""
    names = ("batch", "iteration", "start_s", "duration_s", "size", "joined")
    columns = {name: np.array(each) for name, each in zip(names, zip(*iterations, strict=True), strict=True)}
    columns["model_s"] = columns["duration_s"] / 2
    request = {
        "arrival_s": np.zeros(1),
        "admitted_s": np.zeros(1),
        "first_token_s": columns["duration_s"][:1],
        "finished_s": np.array([np.nan]),
        "first_iteration": np.array([0]),
        "last_iteration": np.array([-1]),
        "batch": np.zeros(1, np.int32),
        "preemptions": np.zeros(1, np.int32),
    }
    known = {"requests": request, "queue_empty_s": 0.0, "peak_kv_tokens": 5, "kv_capacity_tokens": 10}
    known["replica_busy_s"] = np.array([columns["model_s"].sum()])
    return outcome_of(columns["duration_s"], columns=columns, **(known | given))


def test_gaps_of_one_batch_by_hand() -> None:
    # Three run, then one leaves and two come, then a pause before the third iteration.
    outcome = by_hand([(0, 0, 0.0, 0.1, 3, 3), (0, 1, 0.1, 0.2, 4, 2), (0, 2, 0.4, 0.1, 4, 0)])
    gaps = tbt(tokens_of(outcome))
    assert gaps.count == 2 + 4
    assert to_json(gaps.describe(1000)) == dict.fromkeys(("mean", "p50", "p90", "p99", "p99.9", "max"), 200)
    assert gaps.at_most(to_ticks(0.2)) == 6  # a gap of exactly the limit is within it, whatever 0.5 - 0.3 is
    assert gaps.at_most(to_ticks(0.2) - 1) == 0
    early, late = (Window(start_s=a, end_s=b, kind="arrivals") for a, b in ((0.1, 0.3), (0.2, 0.5)))
    assert rates.produced(outcome, early) == 4  # what ends at the start is before it
    assert rates.mean_batches(outcome, late) == pytest.approx([(0.1 * 4 + 0.1 * 4) / 0.3])
    assert rates.time_shares(outcome, whole_run(outcome)).waiting == pytest.approx(0.5)


def test_attainment_of_a_preempted_request_by_hand() -> None:
    # It runs in iterations 0 and 1 of batch 0, then in 0 and 1 of batch 1: gaps of 0.1, 0.2 and 0.4 s.
    stints = {
        "request": np.array([0, 0]),
        "batch": np.array([0, 1], np.int32),
        "first_iteration": np.array([0, 0]),
        "last_iteration": np.array([1, 1]),
    }
    requests = {
        "finished_s": np.array([0.8]),
        "preemptions": np.array([1], np.int32),
        "batch": np.array([1], np.int32),
        "first_iteration": np.array([0]),
        "last_iteration": np.array([1]),
    }
    rows = [(0, 0, 0.0, 0.1, 1, 1), (0, 1, 0.1, 0.1, 1, 0), (1, 0, 0.3, 0.1, 1, 1), (1, 1, 0.4, 0.4, 1, 0)]
    outcome = by_hand(rows, stints=stints, requests=requests)
    tokens = tokens_of(outcome)
    assert tokens.alone.gap.tolist() == [to_ticks(0.2)]
    assert tbt(tokens).values.tolist() == [to_ticks(gap) for gap in (0.1, 0.2, 0.4)]
    assert request_attainment(outcome, tokens, to_ticks(0.4)) == 1
    assert request_attainment(outcome, tokens, to_ticks(0.3)) == 0  # late within a stint
    # A stint that is fast and a resumption that is slow.
    rows[-1] = (1, 1, 0.4, 0.1, 1, 0)
    outcome = by_hand(rows, stints=stints, requests=requests)
    assert request_attainment(outcome, tokens_of(outcome), to_ticks(0.2)) == 1
    assert request_attainment(outcome, tokens_of(outcome), to_ticks(0.15)) == 0


def test_shared_devices_have_one_kind_of_bubble() -> None:
    outcome = by_hand([(0, k, k * 0.1, 0.1, 1, 0) for k in range(20)], attention_busy_s=0.5)
    result = to_json(
        summarise(
            outcome, trace_of([1], [1]), mode="saturate", slo_tbt_ms=100, usd_per_hour=0, shared_devices=True
        )
    )
    assert result["bubbles"]["whole_run"]["devices"] == [pytest.approx(1 - 0.5 - 0.25)]
    assert result["cost"] == {"usd_per_hour": 0, "usd_per_million_tokens": 0, "tokens_per_usd": None}
    assert result["requests"] == {"completed": 0, "rejected": 0, "unfinished": 1, "failed": 0}
    assert result["kv"]["peak_share"] == 0.5


def test_windows_by_mode() -> None:
    arrival_s = np.array([0.1, 0.5, 0.9])
    columns = {"arrival_s": arrival_s, "first_iteration": np.array([0, 1, -1])}
    outcome = by_hand([(0, k, k * 0.01, 0.01, 1, 0) for k in range(200)], requests=columns, queue_empty_s=0.7)
    assert window(outcome, "saturate") == Window(start_s=0.0, end_s=0.7, kind="queue_never_empty")
    # The third was rejected.
    assert window(outcome, "closed") == Window(start_s=0.0, end_s=0.5, kind="concurrency_held")
    assert window(outcome, "open") == Window(start_s=0.1, end_s=0.9, kind="arrivals")


def test_a_window_without_iterations_falls_back_to_the_whole_run() -> None:
    rows = [(0, k, k * 0.01, 0.01, 1, 0) for k in range(20)]
    outcome = by_hand(rows, queue_empty_s=0.09)
    assert window(outcome, "saturate") == whole_run(outcome)
    assert window(outcome, "open").fell_back  # everything came at once
    assert not window(by_hand(rows, queue_empty_s=0.1), "saturate").fell_back


def test_a_prompt_pool_s_iteration_counts_where_it_ends_and_is_busy_where_it_runs() -> None:
    columns = {
        "engine": [0] * 3,
        "start_s": [0.0, 1.0, 2.0],
        "duration_s": [1.0] * 3,
        "prompt_tokens": [3, 5, 7],
        "busy_s": [0.5, 1.0, 0.5],
    }
    outcome = outcome_of([3.0], pool={name: np.array(column) for name, column in columns.items()})
    pool = prompt_pool_of(outcome, Window(start_s=1.0, end_s=2.5, kind="arrivals"))
    assert (pool.engines, pool.prompt_tokens_per_s) == (1, pytest.approx(5 / 1.5))
    assert pool.busy_share == pytest.approx((1.0 + 0.25) / 1.5)


def test_cost_of_tokens() -> None:
    # A thousand tokens a second for $3.60 an hour: a million take 1000 s, which is a dollar.
    assert to_json(rates.cost(1000, 3.6)) == {
        "usd_per_hour": 3.6,
        "usd_per_million_tokens": pytest.approx(1),
        "tokens_per_usd": pytest.approx(1e6),
    }
    assert rates.cost(None, 3.6).usd_per_million_tokens is None
    assert set(to_json(rates.cost(1000, None)).values()) == {None}


# Distributions


@given(
    st.lists(st.tuples(st.integers(0, 2**50), st.integers(1, 2**12)), max_size=50),
    st.sampled_from((1, 70, 500, 900, 990, 999, 1000)),
    st.integers(0, 2**50),
)
def test_weighted_percentiles_are_those_of_the_repeated_values(
    pairs: list[tuple[int, int]], permille: int, limit: int
) -> None:
    values = np.array([value for value, _ in pairs], np.int64)
    weights = np.array([weight for _, weight in pairs], np.int32)
    result = distribution(values, weights)
    repeated = np.sort(np.repeat(values, weights))
    assert result.count == len(repeated)
    assert result.at_most(limit) == np.count_nonzero(repeated <= limit)
    if len(repeated):
        assert result.percentile(permille) == repeated[-(-len(repeated) * permille // 1000) - 1]
        assert result.mean == sum(v * w for v, w in pairs) / len(repeated)
    else:
        assert result.percentile(permille) is result.mean is result.max is None


def test_values_too_large_to_pack_are_ordered_all_the_same() -> None:
    packed = distribution(np.array([2**62, 5, 2**61]), np.array([3, 2, 2**20], np.int32))
    assert packed.values.tolist() == [5, 2**61, 2**62]
    assert packed.percentile(500) == 2**61
    assert packed.count == 2**20 + 5


def test_a_deployment_is_rated_for_the_sum_of_its_devices() -> None:
    deployment = parse_deployment("2xh100+4xh20")
    assert deployment.power_w == 2 * 700 + 4 * 400
    assert deployment.describe().power_w == deployment.power_w
    assert parse_deployment("4xtpu-v6e").power_w is None
    assert parse_deployment("2xh100+4xtpu-v6e").power_w is None


@pytest.mark.parametrize(
    ("throughput", "power_w", "joules"),
    [(1500.0, 3000.0, 2.0), (0.0, 3000.0, None), (None, 3000.0, None), (1500.0, None, None)],
)
def test_joules_a_token(throughput: float | None, power_w: float | None, joules: float | None) -> None:
    result = energy(throughput, power_w)
    assert (result.rated_w, result.joules_per_token) == (power_w, joules)
    assert str(result.bound).startswith("upper")
