"""Plans as folders, and kept candidates at other prices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from laminabench.catalog.hardware import load_devices
from laminabench.requests.plan import PlanRequest
from laminabench.util.errors import UserError
from laminabench.workflows.plan.answer import Answer, answer
from laminabench.workflows.plan.measure import front, winner
from laminabench.workflows.plan.question import Limits, candidates
from laminabench.workflows.plan.reprice import bill, front_at
from laminabench.workflows.plan.request import ResolvedPlan
from laminabench.workflows.plan.stored import PLAN, StoredPoint, read_plan, require_free, write_plan

LIMIT_MS = 60.0


@pytest.fixture(scope="module")
def planned(draw_trace: Any, pose: Any) -> tuple[ResolvedPlan, Answer]:
    question = pose(draw_trace(3, requests=120, prompt=800, output=60), LIMIT_MS)
    known = load_devices()
    request = PlanRequest(
        slo_tbt_p99_ms=LIMIT_MS,
        costs=(question.costs.name,),
        mode="saturate",
        prefill="off",
        slo_queueing_p99_s=1.0,
        budget=45.0,
        jobs=1,
    )
    plan = ResolvedPlan(request, question.model, ("vllm", "lamina"), (known["h100"], known["h20"]))
    every = plan.candidates(question)
    return plan, answer(question, every, exhaustive=True, at_any_price=True, jobs=1)


@pytest.fixture
def folder(planned: tuple[ResolvedPlan, Answer], tmp_path: Path) -> Path:
    request, result = planned
    write_plan(tmp_path / "plan", {**request.describe(result.question.trace), "answers": [result.row()]})
    return tmp_path / "plan"


def test_the_saved_plan_equals_the_result(planned: tuple[ResolvedPlan, Answer], folder: Path) -> None:
    _, result = planned
    saved = read_plan(folder)
    (reported,) = saved.answers
    assert [each.candidate for each in reported.replayed] == [
        str(at.candidate) for at in result.search.points
    ]
    assert saved.prices == {each: load_devices()[each].price_usd_per_hour for each in ("h100", "h20")}
    for point, each in zip(result.search.points, reported.replayed, strict=True):
        billed = bill(each, saved.prices)
        assert billed.usd_per_hour == pytest.approx(point.candidate.usd_per_hour, rel=1e-12)
        assert billed.usd_per_million_tokens == pytest.approx(point.usd_per_million_tokens, rel=1e-12)
    at = front_at(reported.replayed, saved.prices, saved.slo_tbt_p99_ms)
    assert [at.all[i].point.candidate for i in at.on] == [str(each.candidate) for each in result.front]
    assert result.winner is not None
    assert at.winner is not None
    assert at.all[at.winner].point.candidate == str(result.winner.candidate)


@pytest.mark.parametrize("changes", [(0.25, 4.0), (4.0, 0.25), (1.0, 0.3), (0.0, 1.0)])
def test_other_prices_have_the_front_of_a_plan_at_these(
    changes: tuple[float, float], planned: tuple[ResolvedPlan, Answer], folder: Path
) -> None:
    """As if the devices had cost so much from the beginning; and what binds is known of all of them."""
    _, result = planned
    saved = read_plan(folder)
    prices = {name: usd * by for (name, usd), by in zip(saved.prices.items(), changes, strict=True)}
    devices = [replace(load_devices()[name], override_usd_per_hour=usd) for name, usd in prices.items()]
    priced = {
        str(each): each for each in candidates(("vllm", "lamina"), result.question.model, devices, Limits())
    }
    points = [replace(each, candidate=priced[str(each.candidate)]) for each in result.search.points]
    expected, best = front(points, LIMIT_MS), winner(points, LIMIT_MS)
    reported = front_at(saved.answers[0].replayed, prices, LIMIT_MS)
    assert [reported.all[i].point.candidate for i in reported.on] == [
        str(each.candidate) for each in expected
    ]
    assert best is not None
    assert reported.winner is not None
    assert reported.all[reported.winner].point.candidate == str(best.candidate)
    for i in reported.on:
        binds = reported.all[i].point.binds
        assert binds, reported.all[i].point.candidate
        gains = [each.throughput_gain for each in binds]
        assert gains == sorted(gains, reverse=True)


def point(name: str, tokens_per_s: float, tbt_ms: float, **devices: int) -> StoredPoint:
    return StoredPoint(
        candidate=name, system="vllm", deployment=name, devices=devices, tokens_per_s=tokens_per_s,
        mean_batch=1, tbt_p50_ms=tbt_ms, tbt_p99_ms=tbt_ms, token_attainment=1, keeps_up=True,
    )  # fmt: skip


def test_the_front_is_of_what_was_chosen() -> None:
    points = [
        point("small", 1000, 30, a=1),
        point("large", 8000, 40, a=4),
        point("late", 9000, 90, a=4),
        point("worse", 900, 35, a=2),
        structs.replace(point("behind", 9999, 1, a=1), keeps_up=False),
    ]
    prices = {"a": 3.6}
    by_token = front_at(points, prices, 50.0)
    assert [by_token.all[i].point.candidate for i in by_token.on] == ["small", "large"]
    assert by_token.winner == 1
    assert by_token.all[0].usd_per_million_tokens == pytest.approx(1.0)
    by_hour = front_at(points, prices, 50.0, "usd_per_hour", "tokens_per_s")
    assert [by_hour.all[i].point.candidate for i in by_hour.on] == ["large", "small"]
    assert by_hour.winner == 1
    assert front_at(points, prices, 10.0).winner is None


def test_the_same_folder_takes_the_plan_again_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    require_free(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(UserError) as error:
        write_plan(other, {})
    assert error.value.code == "output-exists"
    assert [each.name for each in other.iterdir()] == ["notes.txt"]


def _without_price(facts: dict[str, Any]) -> None:
    facts["devices"] = facts["devices"][:1]


def _newer(facts: dict[str, Any]) -> None:
    facts["format_version"] = 99


def _other(facts: dict[str, Any]) -> None:
    facts["format"] = "laminabench-run"


def _text(facts: dict[str, Any]) -> None:
    facts["answers"][0]["replayed"][0]["tokens_per_s"] = "many"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_without_price, "kept-damaged"),
        (_newer, "kept-format-newer"),
        (_other, "kept-another"),
        (_text, "kept-damaged"),
    ],
)
def test_what_cannot_be_read_says_so(change: Any, code: str, folder: Path) -> None:
    facts = json.loads((folder / PLAN.file).read_text())
    change(facts)
    (folder / PLAN.file).write_text(json.dumps(facts))
    with pytest.raises(UserError) as error:
        read_plan(folder)
    assert error.value.code == code


def test_half_a_plan_and_none(folder: Path, tmp_path: Path) -> None:
    path = folder / PLAN.file
    path.write_text(path.read_text()[:500])
    with pytest.raises(UserError) as error:
        read_plan(folder)
    assert error.value.code == "kept-damaged"
    with pytest.raises(UserError) as error:
        read_plan(tmp_path)
    assert error.value.code == "kept-another"
