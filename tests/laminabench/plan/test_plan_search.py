"""The search comes to what replaying everything comes to, with fewer replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import load_devices
from laminabench.plan.answer import repriced
from laminabench.plan.bounds import Bound
from laminabench.plan.measure import Point, front, meets, nearest, winner
from laminabench.plan.question import Candidate, Limits, candidates
from laminabench.plan.search import FEWEST_REQUESTS, SHARES, Search, part_of, search, undominated_on_samples
from laminabench.plan.stages import stage_of

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


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[4]}-{case[5]}-{case[6]}")
def test_search_agrees_with_replaying_everything(case: Any, draw_trace: Any, ask: Any) -> None:
    name, prompt, output, requests, limit_ms, mode, costs = case
    trace = draw_trace(len(name) + limit_ms, requests=requests, prompt=prompt, output=output, rate=8.0)
    question = ask(trace, limit_ms, model=name, mode=mode, costs=costs)
    every = some(question.model)
    searched = search(question, every, jobs=1)
    grid = search(question, every, exhaustive=True, jobs=1)
    assert winner(grid.points, limit_ms) == winner(searched.points, limit_ms)
    assert front(grid.points, limit_ms) == front(searched.points, limit_ms)
    by_price = {(each.device, each.change): each.row() for each in repriced(grid.points, limit_ms)}
    for each in repriced(searched.points, limit_ms):
        assert each.row() == by_price[each.device, each.change]
    best = winner(grid.points, limit_ms)
    assert best is not None
    # Whom a price a tenth lower, or the winner's a tenth higher, would bring level.
    near = [point for point in grid.points if meets(point, limit_ms)]
    near = [point for point in near if 0.9 * point.usd_per_million_tokens < best.usd_per_million_tokens]
    assert set(map(str, near)) <= set(map(str, searched.points))
    assert len(searched.points) < len(grid.points)
    assert sum(searched.counts.values()) == searched.considered == len(every) == sum(grid.counts.values())


def test_who_would_win_at_a_price_a_tenth_lower_is_replayed(draw_trace: Any, ask: Any) -> None:
    one = Candidate("vllm", parse_deployment("4xh100"))
    run = Search(stage_of(ask(draw_trace(1))), [one] * 4, 1, lambda done, total: None)
    slow = Bound(7000.0, 0.2)
    run.bounds = {0: Bound(6100.0, 0.04), 1: Bound(6000 / 1.11, 0.04), 2: Bound(6000 / 1.12, 0.04), 3: slow}
    run.exact = {0: Point(one, 6000.0, 300.0, 50.0, 50.0, 1.0, 0.0, keeps_up=True)}
    assert run.could_win() == [1]
    run.exact = {}
    assert run.could_win() == [0, 1, 2]


def test_where_nothing_meets_the_limit_the_nearest_is_exact(draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(5, requests=200), 3.0)
    every = some(question.model)
    searched, grid = search(question, every, jobs=1), search(question, every, exhaustive=True, jobs=1)
    assert winner(searched.points, 3.0) is None
    assert nearest(searched.points) == nearest(grid.points)
    assert len(searched.points) < len(grid.points)


def test_processes_come_to_the_same(draw_trace: Any, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ask(draw_trace(6, requests=120))
    every = some(question.model)
    alone = search(question, every, jobs=1)
    monkeypatch.setattr("laminabench.plan.stages.WORTH_SPREADING_S", 0.0)
    together = search(question, every, jobs=2)
    assert (together.points, together.counts) == (alone.points, alone.counts)


def test_samples_drop_who_is_far_behind_and_keep_the_front(draw_trace: Any, ask: Any) -> None:
    trace = draw_trace(8, requests=2400, prompt=6000, output=40, spread=0.4)
    assert part_of(trace, SHARES[1]) is not None
    question = ask(trace, 1e6)
    every = [each for each in some(question.model, devices="h100 h20 a100-80g") if each.system == "vllm"]
    stage = stage_of(question)
    grid = search(question, every, exhaustive=True, jobs=1)
    rivals = [point.candidate for point in grid.points]
    kept = undominated_on_samples(stage, rivals, [], jobs=1)
    best = front(grid.points, 1e6)
    assert not all(kept)
    assert all(keep for keep, point in zip(kept, grid.points, strict=True) if point in best)


def test_a_sample_is_drawn_from_the_whole_trace_in_its_order(draw_trace: Any) -> None:
    trace = draw_trace(9, requests=4 * FEWEST_REQUESTS)
    drawn = part_of(trace, 4)
    assert drawn is not None
    assert len(drawn) == FEWEST_REQUESTS
    assert drawn.arrival_s[-1] > trace.arrival_s[3 * FEWEST_REQUESTS]
    assert (np.diff(drawn.arrival_s) >= 0).all()
    assert part_of(trace, 16) is None
