"""Boards as candidates: their bounds, what binds them, and what has to be asked for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import load_devices, priced
from laminabench.errors import UserError
from laminabench.plan.answer import effects
from laminabench.plan.bounds import Bound
from laminabench.plan.measure import cluster, measure, winner
from laminabench.plan.question import Candidate, Limits, Question, candidates
from laminabench.plan.request import affordable
from laminabench.plan.search import search
from laminabench.plan.stages import bounds, points, stage_of

MODELS = ("llama3-8b", "llama-33b", "llama3-70b", "gpt3-175b")
BOARD = load_devices()["h2m2"]


def boards(count: int, most: int | None = None) -> Candidate:
    return Candidate("h2m2", parse_deployment(f"{count}xh2m2"), most_requests=most)


@pytest.mark.parametrize("mode", ["saturate", "open"])
@pytest.mark.parametrize("seed", range(12))
def test_no_replay_is_better_than_its_bound(seed: int, mode: Any, draw_trace: Any, ask: Any) -> None:
    random = np.random.default_rng(seed)
    trace = draw_trace(
        seed,
        requests=int(random.integers(2, 250)),
        prompt=random.choice([10, 300, 2000]),
        output=random.choice([3, 30, 100]),
        rate=random.choice([0.5, 5, 50]),
    )
    if int(trace.output_tokens.max()) == 1:
        pytest.skip("no time between tokens")
    question = ask(trace, model=MODELS[seed % len(MODELS)], mode=mode, host_async=seed % 3 == 0)
    some = [boards(count, most) for count, most in ((1, 8), (2, 32), (3, None))]
    stage = stage_of(question)
    found = bounds(stage, some, 1, lambda _: None)
    for bound, each in zip(found, some, strict=True):
        assert bound in ("too_small", "falls_behind") or isinstance(bound, Bound)
        if isinstance(bound, Bound):
            (point,) = points(stage, [each], 1, lambda _: None)
            assert point.tokens_per_s <= bound.tokens_per_s, each
            assert point.tbt_p99_ms >= bound.tbt_p99_s * 1000 or not point.keeps_up, each


def test_bounds_are_near_where_batches_stay_full(draw_trace: Any, ask: Any) -> None:
    stage = stage_of(ask(draw_trace(1, requests=1000, prompt=1500, output=40, spread=0.3)))
    for each in (boards(1, 64), boards(2, 32)):
        (bound,) = bounds(stage, [each], 1, lambda _: None)
        (point,) = points(stage, [each], 1, lambda _: None)
        assert isinstance(bound, Bound)
        assert bound.tokens_per_s <= 1.1 * point.tokens_per_s
        assert bound.tbt_p99_s * 1000 >= 0.8 * point.tbt_p99_ms


def test_the_search_replays_what_could_win_and_no_more(draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(2, requests=1500, prompt=300, output=15, spread=0.3), slo_ms=110.0)
    some = list(candidates(["h2m2"], question.model, [BOARD], Limits(6)))
    found, every = search(question, some, jobs=1), search(question, some, jobs=1, exhaustive=True)
    assert winner(found.points, 110) == winner(every.points, 110) is not None
    assert len(found.points) < len(every.points) == len(some)


def test_what_binds_a_board_is_what_was_made_scarce(draw_trace: Any, ask: Any) -> None:
    def first(question: Question, candidate: Candidate) -> str:
        spec = cluster(question, candidate)
        assert spec is not None
        return effects(question, measure(question, question.trace, candidate, spec))[0].resource

    full = ask(draw_trace(1, requests=300, prompt=600, output=20, spread=0.3))
    assert first(full, boards(1, 64)) == "compute of the chips"
    assert first(full, boards(1, 10)) == "requests at once"


def test_resources_are_a_board_s(draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(1, requests=30, output=20), model="llama3-8b")
    spec = cluster(question, boards(1, 16))
    assert spec is not None
    found = effects(question, measure(question, question.trace, boards(1, 16), spec))
    assert {each.resource for each in found} == {
        *("HBM capacity", "HBM bandwidth", "LPDDR capacity", "LPDDR bandwidth"),
        *("compute of the chips", "link between the sides", "requests at once", "host time"),
    }
    assert all(each.throughput_gain > -0.02 for each in found)


def test_boards_have_to_be_named_and_h2m2_has_to_run_on_them(draw_trace: Any, ask: Any) -> None:
    question, devices = ask(draw_trace(1, requests=10)), load_devices()
    with pytest.raises(UserError, match="plan-system-without-devices"):
        affordable(question, ["h2m2"], [devices["h100"]], Limits(50))
    with pytest.raises(UserError, match="plan-device-unused"):
        affordable(question, ["vllm"], [devices["h100"], BOARD], Limits(50))
    # A cost set knows nothing of boards, and need not.
    found = affordable(question, ["vllm", "h2m2"], [devices["h100"], BOARD], Limits(50))
    assert {each.system for each in found} == {"vllm", "h2m2"}


def test_where_a_limit_leaves_nothing_it_is_named(draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(1, requests=10), model="gpt3-175b")
    dear = priced(load_devices(), {"h2m2": 60.0})["h2m2"]
    with pytest.raises(UserError, match="plan-budget-too-small"):
        affordable(question, ["h2m2"], [dear], Limits(50))
    with pytest.raises(UserError, match="plan-no-deployment"):
        affordable(question, ["h2m2"], [BOARD], Limits(50, power_w=400))
