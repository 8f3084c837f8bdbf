"""Which deployments a model has, and which of them a plan considers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices
from laminabench.systems.registry import deployments
from laminabench.util.errors import UserError
from laminabench.workflows.plan.question import Candidate, Limits, candidates
from laminabench.workflows.plan.request import devices_of

H100, H20 = (load_devices()[name] for name in ("h100", "h20"))


def test_vllm_is_one_pool_and_lamina_two() -> None:
    shape = model("llama3-70b")
    assert [str(each) for each in deployments("vllm", shape, [H100])] == [
        "1xh100",
        "2xh100",
        "4xh100",
        "8xh100",
    ]
    result = {str(each) for each in deployments("lamina", shape, [H100, H20])}
    assert len(result) == 8 * 8
    assert {"2xh100+4xh20", "4xh20+1xh100", "8xh100+8xh100"} <= result


def test_both_ends_of_the_price_are_in() -> None:
    shape = model("llama3-70b")
    result = deployments("vllm", shape, [H100], usd_per_hour=(2 * 11.06, 4 * 11.06))
    assert [each.model.count for each in result] == [2, 4]


def test_a_device_without_a_price_is_left_out() -> None:
    free = replace(H20, rent=None, purchase=None)
    assert list(deployments("vllm", model("llama3-8b"), [free])) == []


def test_replicas_multiply_model_workers_only() -> None:
    result = deployments("lamina", model("llama3-70b"), [H20], replicas=2, most_attention=2)
    assert {each.dop for each in result} == {(a, b) for a in (2, 4, 8, 16) for b in (1, 2)}


def test_candidates_of_a_plan() -> None:
    shape = model("llama3-70b")
    results = list(candidates(["vllm", "lamina"], shape, [H100, H20], Limits(50, devices=6)))
    assert all(each.usd_per_hour <= 50 for each in results)
    assert all(sum(each.deployment.dop) <= 6 for each in results)
    assert {each.batches for each in results if each.system == "vllm"} == {1}
    assert {each.batches for each in results if each.system == "lamina"} == {1, 2, 3}
    assert all(each.deployment.model.count % 2 == 0 for each in results if each.batches == 3)
    assert len(set(map(str, results))) == len(results)


def test_boards_are_for_h2m2_alone_and_it_runs_on_nothing_else() -> None:
    shape, board = model("llama3-70b"), load_devices()["h2m2"]
    counts = [each.model.count for each in deployments("h2m2", shape, [H100, board])]
    assert counts == list(range(1, 65))
    assert {each.attention for each in deployments("h2m2", shape, [board])} == {None}
    assert list(deployments("h2m2", shape, [H100, H20])) == []
    for system in ("vllm", "lamina", "lamina-v1"):
        assert list(deployments(system, shape, [board])) == []
    within = list(candidates(["h2m2", "vllm"], shape, [H100, board], Limits(50)))
    boards = [each for each in within if each.system == "h2m2"]
    # A board's memory holds more requests than it is fast with.
    assert [str(each) for each in boards[:2]] == [f"h2m2 1xh2m2, {n} requests on each" for n in (16, 32)]
    assert {each.deployment.model.count for each in boards} == set(range(1, 10))
    assert {each.batches for each in within} == {1}
    assert {each.most_requests for each in within if each.system == "vllm"} == {None}


def test_watts_may_be_limited_and_devices_without_rating_are_excluded() -> None:
    shape, tpu = model("llama3-70b"), load_devices()["tpu-v6e"]
    results = list(candidates(["vllm"], shape, [H100, H20, tpu], Limits(power_w=1600)))
    assert [str(each.deployment) for each in results] == ["1xh100", "2xh100", "1xh20", "2xh20", "4xh20"]
    assert any(each.deployment.model.device is tpu for each in candidates(["vllm"], shape, [tpu]))


def test_unmeasured_devices_borrow() -> None:
    both = Candidate("lamina", next(deployments("lamina", model("llama3-8b"), [H100, H20])))
    assert both.borrowed(load_costs("vllm-0.14")) == ()
    pair = [each for each in deployments("lamina", model("llama3-8b"), [H100, H20]) if "h20" in str(each)]
    assert Candidate("lamina", pair[0]).borrowed(load_costs("vllm-0.14")) == ("h20",)
    assert Candidate("lamina", pair[0]).borrowed(load_costs("roofline")) == ()
    # It was measured for no cost set.
    board = Candidate("h2m2", next(deployments("h2m2", model("llama3-8b"), [load_devices()["h2m2"]])))
    assert board.borrowed(load_costs("roofline")) == ("h2m2",)


def test_devices_by_name_and_by_family() -> None:
    known = load_devices()
    assert [each.name for each in devices_of("H20, h100", known)] == ["h20", "h100"]
    assert [each.name for each in devices_of("a100,h100,a100-80g", known)] == [
        "a100-40g",
        "a100-80g",
        "a100-80g-sxm",
        "h100",
    ]
    with pytest.raises(UserError, match="did you mean"):
        devices_of("h101", known)
    with pytest.raises(UserError, match="no price"):
        devices_of("cpu", known)
