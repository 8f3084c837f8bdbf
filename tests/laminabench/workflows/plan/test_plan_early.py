"""What the first part of an open trace says of a replay, the whole replay says too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laminabench.analysis.tbt import gaps_of, tokens_of
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import load_devices
from laminabench.runs.summary import Window
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Spec
from laminabench.traces.table import Trace
from laminabench.workflows.plan.measure import Point, cluster, measure, nearest, winner
from laminabench.workflows.plan.question import (
    NO_PROMPTS,
    Candidate,
    Limits,
    Prompts,
    Question,
    Slo,
    candidates,
)
from laminabench.workflows.plan.search import search
from laminabench.workflows.plan.stages import PARTS, misses

BOARD = Candidate("h2m2", parse_deployment("2xh2m2"), most_requests=32)
PROMPTS = Prompts((64, 2048), (2048,), 3)


def drawn(seed: int, draw_trace: Any) -> tuple[Trace, np.random.Generator]:
    random = np.random.default_rng(3000 + seed)
    trace = draw_trace(
        seed,
        requests=int(random.integers(20, 400)),
        prompt=random.choice([10, 300, 4000]),
        output=random.choice([3, 30, 150]),
        spread=random.choice([0.0, 0.5, 1.5]),
        rate=random.choice([0.5, 5, 50]),
    )
    return trace, random


def requested(seed: int, trace: Trace, prompts: bool, pose: Any) -> Question:
    model = ("llama3-8b", "llama-33b", "llama3-70b")[seed % 3]
    host_async = seed % 4 == 0
    result: Question = pose(
        trace, model=model, mode="open", host_async=host_async, prefill="any" if prompts else "off"
    )
    return result


def that_fit(question: Question, random: np.random.Generator, most: int) -> list[tuple[Candidate, Spec]]:
    """Of all systems, by chance, and a board where it can be."""
    devices = [load_devices()[name] for name in ("h100", "h20", "l40s")]
    prompts = PROMPTS if question.prompts else NO_PROMPTS
    every = list(
        candidates(("vllm", "lamina", "lamina-v1"), question.model, devices, Limits(devices=16), prompts)
    )
    chosen = [every[i] for i in random.permutation(len(every))[: 4 * most]]
    specs = [(each, cluster(question, each)) for each in [BOARD] * (not question.prompts) + chosen]
    return [(each, spec) for each, spec in specs if spec is not None][:most]


def before(trace: Trace, spec: Spec, until_s: float) -> list[Any]:
    """All gaps that ended by then, and first tokens."""
    outcome = simulate(trace, spec, Offered("open"))
    gaps = gaps_of(tokens_of(outcome), Window(start_s=0.0, end_s=until_s, kind="arrivals"))
    first = outcome.requests["first_token_s"]
    every = sorted(zip(gaps.end.tolist(), gaps.gap.tolist(), gaps.count.tolist(), strict=True))
    return [every, first[first <= until_s].tolist()]


CASES = [(seed, prompts) for seed in range(12) for prompts in (False, True)]


@pytest.mark.long(but=["[01]-*"])
@pytest.mark.parametrize(("seed", "prompts"), CASES)
def test_until_the_next_request_comes_a_part_is_as_the_whole(
    seed: int, prompts: bool, draw_trace: Any, pose: Any
) -> None:
    trace, random = drawn(seed, draw_trace)
    for candidate, spec in that_fit(requested(seed, trace, prompts, pose), random, 6):
        some = int(random.integers(1, len(trace)))
        until_s = float(trace.arrival_s[some])
        assert before(trace.first(some), spec, until_s) == before(trace, spec, until_s), candidate


@pytest.mark.long(but=["[01]-*"])
@pytest.mark.parametrize(("seed", "prompts"), CASES)
def test_no_limit_is_missed_early_that_the_full_trace_meets(
    seed: int, prompts: bool, draw_trace: Any, pose: Any
) -> None:
    trace, random = drawn(seed, draw_trace)
    question = requested(seed, trace, prompts, pose)
    for candidate, spec in that_fit(question, random, 6):
        point = measure(question, trace, candidate, spec)
        slo = limits_met_by(point)
        assert not misses(trace, spec, slo), candidate
        for one in ("tbt_s", "ttft_s", "queueing_s"):
            assert not misses(trace, spec, Slo(**{one: getattr(slo, one)})), candidate


def limits_met_by(point: Point) -> Slo:
    ttft = {} if point.ttft_p99_ms is None else {"ttft_s": point.ttft_p99_ms / 1000}
    return Slo(point.tbt_p99_ms / 1000, queueing_s=point.queueing_p99_s, **ttft)


def test_a_clear_miss_is_detected_early(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(5, 600, 3000, 60, rate=4)
    question = pose(trace, model="llama3-8b", mode="open", prefill="colocated")
    candidate = Candidate("vllm", parse_deployment("1xh100"), prompt_budget=2048)
    spec = cluster(question, candidate)
    assert spec is not None
    slo = limits_met_by(measure(question, trace, candidate, spec))
    for one in ("tbt_s", "ttft_s", "queueing_s"):
        assert misses(trace, spec, Slo(**{one: getattr(slo, one) / 4}))


def test_of_a_trace_with_fewer_requests_than_parts_nothing_is_known(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(3, requests=min(PARTS) - 1)
    spec = cluster(pose(trace), Candidate("vllm", parse_deployment("4xh20")))
    assert spec is not None
    assert not misses(trace, spec, Slo(0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("slo_ms", "ttft_ms", "early"), [(7.0, 2000.0, 10), (100.0, 210.0, 0), (5.0, None, 0)]
)
def test_without_a_winner_the_nearest_is_as_of_replaying_everything(
    slo_ms: float, ttft_ms: float | None, early: int, draw_trace: Any, pose: Any
) -> None:
    """By TBT, by TTFT, and without prompts; some miss early, and are told apart nevertheless."""
    prompts = ttft_ms is not None
    limits = {"slo_ttft_ms": ttft_ms, "slo_queueing_p99_s": 2.0, "prefill": "any" if prompts else "off"}
    trace = draw_trace(5, 300, 3000, 60, rate=4)
    question = pose(trace, slo_ms, model="llama3-8b", mode="open", **limits)
    devices = [load_devices()["h100"]]
    given = Prompts((512, 2048), (2048,), 2) if prompts else NO_PROMPTS
    every = list(candidates(["vllm", "lamina"], question.model, devices, Limits(devices=4), given))
    result = search(question, every, jobs=1, winner_only=prompts)
    grid = search(question, every, jobs=1, exhaustive=True)
    assert winner(grid.points, slo_ms) is None
    assert result.counts.get("missed", 0) >= early
    assert sum(result.counts.values()) == len(every)
    assert nearest(result.points, question) == nearest(grid.points, question)
