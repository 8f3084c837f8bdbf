"""The front and the winner, and the search that finds them as an exhaustive one does."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices
from laminabench.systems.registry import prepare
from laminabench.util.errors import UserError
from laminabench.workflows.plan.answer import repriced, unmet
from laminabench.workflows.plan.bounds import Bound
from laminabench.workflows.plan.demand import FractionalKnapsack, demand_of
from laminabench.workflows.plan.measure import Point, cluster, front, measure, meets, nearest, winner
from laminabench.workflows.plan.question import Candidate, Limits, Prompts, candidates
from laminabench.workflows.plan.search import SHARES, Search, SearchResult, search, undominated_on_samples
from laminabench.workflows.plan.stages import FEWEST_REQUESTS, stage_of, team
from laminabench.workflows.replay import ReplayRequest, Workload, replay

SYSTEMS = ("vllm", "lamina", "lamina-v1")


def some(model: Any, budget: float = 45.0, devices: str = "h100 h20") -> list[Candidate]:
    chosen = [load_devices()[name] for name in devices.split()]
    return list(candidates(SYSTEMS, model, chosen, Limits(budget)))


CASES = [
    # model, prompt, output, requests, limit in ms, mode, costs
    ("llama3-70b", 1000, 150, 300, 80, "saturate", "vllm-0.14"),
    ("llama3-70b", 4000, 60, 300, 60, "saturate", "vidur-2024"),
    ("llama3-8b", 4000, 60, 2500, 30, "saturate", "vllm-0.14"),
    ("llama3-8b", 3000, 60, 1500, 25, "saturate", "roofline"),
    ("llama-33b", 800, 100, 300, 100, "saturate", "vllm-0.14"),
    ("llama-33b", 2000, 50, 300, 45, "saturate", "roofline"),
    ("qwen3-32b", 3000, 80, 300, 50, "saturate", "vidur-2024"),
    ("llama3-70b", 1000, 100, 300, 40, "open", "vllm-0.14"),
    ("llama3-8b", 1000, 100, 300, 20, "open", "vidur-2024"),
    ("llama-33b", 1500, 100, 250, 60, "open", "vllm-0.14"),
]


# Every model, every cost set and both modes.
@pytest.mark.long(
    but=[
        *(
            "llama3-70b-80-saturate-vllm-0.14",
            "llama3-8b-25-saturate-roofline",
            "qwen3-32b-50-saturate-vidur-2024",
        ),
        *("llama3-70b-40-open-vllm-0.14", "llama3-8b-20-open-vidur-2024", "llama-33b-60-open-vllm-0.14"),
    ]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[4]}-{case[5]}-{case[6]}")
def test_search_agrees_with_replaying_everything(case: Any, draw_trace: Any, pose: Any) -> None:
    name, prompt, output, requests, limit_ms, mode, costs = case
    trace = draw_trace(len(name) + limit_ms, requests=requests, prompt=prompt, output=output, rate=8.0)
    question = pose(trace, limit_ms, model=name, mode=mode, costs=costs)
    every = some(question.model)
    searched = search(question, every, jobs=1)
    grid = search(question, every, exhaustive=True, jobs=1)
    assert winner(grid.points, limit_ms) == winner(searched.points, limit_ms)
    assert front(grid.points, limit_ms) == front(searched.points, limit_ms)
    by_price = {(each.device, each.change): each for each in repriced(grid.points, limit_ms)}
    for each in repriced(searched.points, limit_ms):
        assert each == by_price[each.device, each.change]
    best = winner(grid.points, limit_ms)
    assert best is not None
    # Whom a price a tenth lower, or the winner's a tenth higher, would bring level.
    near = [point for point in grid.points if meets(point, limit_ms)]
    near = [point for point in near if 0.9 * point.usd_per_million_tokens < best.usd_per_million_tokens]
    assert set(map(str, near)) <= set(map(str, searched.points))
    assert len(searched.points) < len(grid.points)
    assert sum(searched.counts.values()) == searched.considered == len(every) == sum(grid.counts.values())


def test_a_winner_at_a_tenth_lower_price_is_replayed(draw_trace: Any, pose: Any) -> None:
    one = Candidate("vllm", parse_deployment("4xh100"))
    with team(stage_of(pose(draw_trace(1))), 4, jobs=1) as alone:
        run = Search(alone, [one] * 4, lambda done, total: None)
    slow = Bound(7000.0, 0.2)
    run.bounds = {0: Bound(6100.0, 0.04), 1: Bound(6000 / 1.11, 0.04), 2: Bound(6000 / 1.12, 0.04), 3: slow}
    run.exact = {0: Point(one, 6000.0, 300.0, 50.0, 50.0, 1.0, 0.0, keeps_up=True)}
    assert run.could_win() == [1]
    run.exact = {}
    assert run.could_win() == [0, 1, 2]


def test_where_nothing_meets_the_limit_the_nearest_is_exact(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(5, requests=200), 3.0)
    every = some(question.model)
    searched, grid = search(question, every, jobs=1), search(question, every, exhaustive=True, jobs=1)
    assert winner(searched.points, 3.0) is None
    assert nearest(searched.points, question) == nearest(grid.points, question)
    assert len(searched.points) < len(grid.points)


def test_processes_come_to_the_same(draw_trace: Any, pose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    question = pose(draw_trace(6, requests=120))
    every = some(question.model)
    alone = search(question, every, jobs=1)
    monkeypatch.setattr("laminabench.workflows.plan.stages.WORTH_SPREADING_S", 0.0)
    together = search(question, every, jobs=2)
    assert (together.points, together.counts) == (alone.points, alone.counts)


def test_samples_drop_poor_candidates_and_retain_the_front(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(8, requests=2400, prompt=6000, output=40, spread=0.4)
    question = pose(trace, 1e6)
    every = [each for each in some(question.model, devices="h100 h20 a100-80g") if each.system == "vllm"]
    stage = stage_of(question)
    assert stage.part(SHARES[1]) is not None
    grid = search(question, every, exhaustive=True, jobs=1)
    rivals = [point.candidate for point in grid.points]
    with team(stage, len(rivals), jobs=1) as alone:
        saved = undominated_on_samples(alone, rivals, [])
    best = front(grid.points, 1e6)
    assert not all(saved)
    assert all(keep for keep, point in zip(saved, grid.points, strict=True) if point in best)


def test_a_sample_is_drawn_from_the_whole_trace_in_its_order(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(9, requests=4 * FEWEST_REQUESTS)
    stage = stage_of(pose(trace))
    drawn = stage.part(4)
    assert drawn is not None
    assert len(drawn) == FEWEST_REQUESTS
    assert drawn.arrival_s[-1] > trace.arrival_s[3 * FEWEST_REQUESTS]
    assert (np.diff(drawn.arrival_s) >= 0).all()
    assert stage.part(1) is trace
    assert stage.part(16) is None


def a_point(deployment: str, tokens_per_s: float, tbt_p99_ms: float, **more: Any) -> Point:
    candidate = Candidate("lamina" if "+" in deployment else "vllm", parse_deployment(deployment))
    made = Point(candidate, tokens_per_s, 100.0, tbt_p99_ms / 2, tbt_p99_ms, 1.0, 0.0, keeps_up=True)
    return replace(made, **more)


FAST = a_point("8xh100", 5000, 20)  # $88.48/h: 4.92 $/M
CHEAP = a_point("2xh100+4xh20", 6000, 60)  # $40.64/h: 1.88
BEATEN = a_point("4xh100", 3000, 60)
SLOW = a_point("2xh20", 3000, 200)  # $9.26/h: 0.86
ALL = [SLOW, BEATEN, CHEAP, FAST]


def test_front_and_winner_are_of_those_that_meet_the_limit() -> None:
    assert front(ALL, 100) == [FAST, CHEAP]
    assert front(ALL, 1000) == [FAST, CHEAP, SLOW]
    assert winner(ALL, 100) is CHEAP
    assert winner(ALL, 30) is FAST
    assert winner(ALL, 10) is None


def test_an_overloaded_candidate_is_neither_winner_nor_nearest() -> None:
    behind = replace(CHEAP, keeps_up=False)
    assert winner([behind, FAST], 100) is FAST


def test_the_nearest_has_its_worst_time_least_over_a_limit(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(1), 10.0, mode="open", slo_ttft_ms=2000.0, slo_queueing_p99_s=2.0)
    soon = replace(CHEAP, tbt_p99_ms=9.0, ttft_p99_ms=2110.0, queueing_p99_s=1.0, keeps_up=False)
    fast = replace(FAST, tbt_p99_ms=20.4, ttft_p99_ms=100.0)
    waits = replace(soon, queueing_p99_s=3.0)
    assert nearest([fast, waits, soon], question) is soon
    assert nearest([waits, fast], question) is waits
    error = unmet(question, SearchResult((fast, waits, soon), 3, {}, 1.0))
    assert error.code == "plan-limit-missed"
    assert "TTFT p99 of 2,110 ms, 5.5% over" in str(error)


def test_a_price_that_changes_the_winner() -> None:
    h100 = a_point("4xh100", 6000, 50)  # $44.24/h: 2.05; 1.84 if an H100 were a tenth cheaper
    result = {(each.device, round(each.change, 2)): each for each in repriced([CHEAP, h100], 100)}
    assert len(result) == 4
    cheaper = result["h100", -0.1]
    # Both have H100s: 2 of them go from 40.64 to 38.43, 4 from 44.24 to 39.82.
    assert cheaper.stays
    assert cheaper.usd_per_million_tokens == pytest.approx((40.64 - 2.212) / 6000 / 3600 * 1e6)
    dearer_h20 = result["h20", 0.1]
    assert dearer_h20.stays
    nearly = replace(h100, tokens_per_s=6400)
    turned = {(each.device, round(each.change, 2)): each for each in repriced([CHEAP, nearly], 100)}
    assert not turned["h100", -0.1].stays
    assert turned["h100", -0.1].winner == "vllm 4xh100"
    assert turned["h100", 0.1].stays
    assert list(repriced([SLOW], 100)) == []


@pytest.mark.parametrize("mode", ["saturate", "open"])
@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("vllm", parse_deployment("4xh100")),
        Candidate("lamina", parse_deployment("2xh100+4xh20"), 2),
        Candidate("lamina-v1", parse_deployment("2xh100+4xh20"), 1),
    ],
    ids=str,
)
def test_a_point_is_what_replay_says(candidate: Candidate, mode: Any, draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(2, requests=400)
    question = pose(trace, 40.0, mode=mode)
    spec = cluster(question, candidate)
    assert spec is not None
    point = measure(question, trace, candidate, spec)
    message = replay(
        trace, candidate.system, question.setup(candidate), Workload(mode, slo_tbt_ms=40.0)
    ).summary
    assert point.tokens_per_s == message.throughput_tokens_per_s
    assert (point.tbt_p50_ms, point.tbt_p99_ms) == (message.tbt_ms.p50, message.tbt_ms.p99)
    assert point.mean_batch == message.mean_batch
    assert point.token_attainment == message.slo.token_attainment
    assert point.usd_per_million_tokens == message.cost.usd_per_million_tokens


@pytest.mark.parametrize("deployment", ["4xh100", "4xh100+2xh20"])
def test_a_point_with_prompts_is_what_replay_says(deployment: str, draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(2, requests=400)
    system = "lamina" if "+" in deployment else "vllm"
    limits = {"mode": "open", "prefill": "colocated", "slo_ttft_ms": 3000.0}
    question = pose(trace, 40.0, **limits)
    candidate = Candidate(system, parse_deployment(deployment), 1, prompt_budget=1024)
    spec = cluster(question, candidate)
    assert spec is not None
    point = measure(question, trace, candidate, spec)
    requested = {
        "system": system,
        "deployment": deployment,
        "mode": "open",
        "prefill": "colocated",
        "costs": "vllm-0.14",
    }
    setup = prepare(ReplayRequest(**requested, max_batched_tokens=1024)).setup
    for name in ("prompt_budget", "admission", "prefix_sharing"):
        assert getattr(question.setup(candidate), name) == getattr(setup, name)
    outcome = replay(trace, system, replace(setup, batches=1), Workload("open")).outcome
    first = np.sort(outcome.requests["first_token_s"] - outcome.requests["arrival_s"])
    assert point.ttft_p99_ms == pytest.approx(1000 * first[-(-99 * len(trace) // 100) - 1])
    assert point.keeps_up == (point.queueing_p99_s <= 1)
    late = replace(question, slo_ttft_ms=point.ttft_p99_ms - 1)
    assert not measure(late, trace, candidate, spec).keeps_up


def test_with_prompts_the_search_finds_the_winner(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(5, requests=300, prompt=1500, output=60, rate=2)
    for limits in ({"mode": "open", "slo_ttft_ms": 2000.0, "slo_queueing_p99_s": 2.0}, {}):
        question = pose(trace, 100.0, prefill="colocated", **limits)
        devices = [load_devices()[name] for name in ("h100", "h20")]
        prompts = Prompts((512, 2048))
        every = list(candidates(["vllm", "lamina"], question.model, devices, Limits(60), prompts))
        result = search(question, every, jobs=1, winner_only=True)
        assert sum(result.counts.values()) == result.considered == len(every)
        assert len(result.points) < len(every) / 2
        grid = search(question, every, jobs=1, exhaustive=True)
        assert winner(result.points, 100) == winner(grid.points, 100) is not None


def test_instances_and_pools_are_searched(draw_trace: Any, pose: Any) -> None:
    """Small models on dear devices: two instances for the load; short gaps: prompts on other devices."""
    limits = {"mode": "open", "slo_ttft_ms": 3000.0, "slo_queueing_p99_s": 3.0, "prefill": "any"}
    devices = [load_devices()["h100"]]
    few = [replace(Limits(100), devices=8)]
    for rate, slo_ms, prompts in ((14, 120.0, Prompts((1024,), (), 8)), (5, 13.0, Prompts((512,), (2048,)))):
        question = pose(draw_trace(5, 300, 3000, 30, rate=rate), slo_ms, model="llama3-8b", **limits)
        every = list(candidates(["vllm"], question.model, devices, *few, prompts))
        result = search(question, every, jobs=1, winner_only=True)
        best = winner(result.points, slo_ms)
        assert best == winner(search(question, every, jobs=1, exhaustive=True).points, slo_ms)
        assert best is not None
        price = best.candidate.deployment.usd_per_hour
        assert best.candidate.usd_per_hour == best.candidate.instances * price
        if slo_ms > 100:
            fewer = replace(best.candidate, instances=best.candidate.instances - 1)
            spec = cluster(question, fewer) if fewer.instances else None
            assert spec is None or not measure(question, question.trace, fewer, spec).keeps_up
        else:
            assert best.candidate.deployment.prefill is not None
        for each in repriced(result.points, slo_ms):
            assert re.search(", (512|1024|2048) tokens an iteration$", each.winner)


def test_instances_are_searched_without_prompts(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(5, 400, 3000, 60, rate=60), 60.0, model="llama3-8b", mode="open")
    devices = [load_devices()[name] for name in ("h100", "h20")]
    limits = replace(Limits(120), devices=8)
    every = list(candidates(["vllm", "lamina"], question.model, devices, limits, Prompts(instances=8)))
    result = search(question, every, jobs=1)
    grid = search(question, every, jobs=1, exhaustive=True)
    best = winner(result.points, 60)
    assert best == winner(grid.points, 60)
    assert front(result.points, 60) == front(grid.points, 60)
    assert best is not None
    assert best.candidate.instances > 1


def test_candidates_with_prompts_are_within_the_limits() -> None:
    devices = [load_devices()[name] for name in ("h100", "h20")]
    limits = Limits(60.0, devices=9)
    prompts, shape = Prompts((512,), (2048,), 4), model("llama3-70b")
    results = list(candidates(["vllm", "lamina"], shape, devices, limits, prompts))
    assert len(set(results)) == len(results)
    assert max(each.usd_per_hour for each in results) <= 60
    assert max(sum(part.count for part in each.deployment.parts) * each.instances for each in results) == 9
    assert {each.deployment.prefill is None: each.prompt_budget for each in results} == {
        True: 512,
        False: 2048,
    }
    assert {"vllm 2 of 2xh100, 512 tokens an iteration"} <= set(map(str, results))
    assert {each.without_prompts for each in results} >= set(
        candidates(["vllm"], model("llama3-70b"), devices, limits)
    )


def test_without_second_tokens_there_is_nothing_to_plan_for(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(2, requests=5, output=1, spread=0)
    candidate = Candidate("vllm", parse_deployment("4xh100"))
    spec = cluster(pose(trace), candidate)
    assert spec is not None
    with pytest.raises(UserError, match="trace-no-tbt"):
        measure(pose(trace), trace, candidate, spec)


def test_a_sack_may_cut_one_thing() -> None:
    sack = FractionalKnapsack(weight=np.array([4.0, 2, 1]), value=np.array([4.0, 6, 1]))
    assert [sack.most(weight) for weight in (0, 1, 2, 3, 100)] == [0, 3, 6, 7, 11]


def test_demand_counts_what_the_scheduler_charges(draw_trace: Any) -> None:
    trace = draw_trace(1, requests=50)
    prompt, output = trace.prompt_tokens.astype(int), trace.output_tokens.astype(int)
    blocks = -(-(prompt + output) // 16) * 16
    demand = demand_of(trace, 16)
    assert demand.charged == (blocks * output).sum()
    assert demand.read == sum(sum(p + i for i in range(o)) for p, o in zip(prompt, output, strict=True))
    assert demand.longest == blocks.max()
    assert demand.can_run(float(sorted(blocks)[0] + sorted(blocks)[1])) == 2
    assert demand.can_run(float(blocks.sum())) == 50
    alongside = demand_of(trace, 16, 20)
    assert alongside.charged == ((blocks + 32) * output).sum()
    assert (alongside.read, alongside.lengths) == (demand.read, demand.lengths)
    assert alongside.largest_read(alongside.tokens) == pytest.approx(demand.charged)
