"""Boards as candidates: their bounds, what binds them, and what has to be asked for them."""

from __future__ import annotations

from typing import Any

import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import load_devices, priced
from laminabench.errors import UserError
from laminabench.plan.answer import Effect, effects
from laminabench.plan.measure import cluster, measure, winner
from laminabench.plan.question import Candidate, Limits, Question, candidates
from laminabench.plan.request import affordable
from laminabench.plan.search import search

BOARD = load_devices()["h2m2"]


def boards(count: int, most: int | None = None) -> Candidate:
    return Candidate("h2m2", parse_deployment(f"{count}xh2m2"), most_requests=most)


def test_the_search_replays_what_could_win_and_no_more(draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(2, requests=1500, prompt=300, output=15, spread=0.3), slo_ms=110.0)
    some = list(candidates(["h2m2"], question.model, [BOARD], Limits(6)))
    found, every = search(question, some, jobs=1), search(question, some, jobs=1, exhaustive=True)
    assert winner(found.points, 110) == winner(every.points, 110) is not None
    assert len(found.points) < len(every.points) == len(some)


def of_boards(question: Question, most: int) -> list[Effect]:
    spec = cluster(question, boards(1, most))
    assert spec is not None
    return effects(question, measure(question, question.trace, boards(1, most), spec))


def test_what_binds_a_board_is_what_was_made_scarce(draw_trace: Any, ask: Any) -> None:
    full = ask(draw_trace(1, requests=300, prompt=600, output=20, spread=0.3))
    assert of_boards(full, 64)[0].resource == "compute of the chips"
    assert of_boards(full, 10)[0].resource == "requests at once"


def test_resources_are_a_board_s(draw_trace: Any, ask: Any) -> None:
    found = of_boards(ask(draw_trace(1, requests=30, output=20), model="llama3-8b"), 16)
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
