"""What binds is what was made scarce; boards as candidates, and what has to be asked for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laminabench.catalog.deployment import parse_deployment, parse_workers
from laminabench.catalog.hardware import load_devices, priced
from laminabench.catalog.network import parse_network
from laminabench.util.errors import UserError
from laminabench.workflows.plan.effects import effects, gained_by
from laminabench.workflows.plan.measure import Point, cluster, measure, winner
from laminabench.workflows.plan.question import Candidate, Limits, Question, candidates
from laminabench.workflows.plan.request import affordable
from laminabench.workflows.plan.search import search
from laminabench.workflows.plan.stored import Effect

LAMINA = Candidate("lamina", parse_deployment("2xh100+4xh20"), 2)


def replayed(question: Question, candidate: Candidate) -> Point:
    spec = cluster(question, candidate)
    assert spec is not None
    return measure(question, question.trace, candidate, spec)


def first(question: Question, candidate: Candidate) -> str:
    return effects(question, replayed(question, candidate))[0].resource


def test_memory_binds_where_weights_leave_none(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(1, requests=600, prompt=3000, spread=0.3)
    assert first(pose(trace), Candidate("vllm", parse_deployment("2xh20"))) == "KV memory"


def test_host_time_binds_a_small_model_with_short_requests(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(1, requests=3000, prompt=50, output=20)
    question = pose(trace, model="llama3-8b")
    assert first(question, Candidate("vllm", parse_deployment("8xh100"))) in ("host time", "requests at once")


@pytest.mark.parametrize(("network", "binds"), [("20ms,50GB/s", "latency"), ("40us,0.5GB/s", "bandwidth")])
def test_a_bad_network_binds(network: str, binds: str, draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(1, requests=600, spread=0.3), network=parse_network(network))
    assert first(question, LAMINA) == f"network {binds}"


def test_open_it_is_time_that_is_gained(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(1, requests=300, rate=4), mode="open")
    result = effects(question, replayed(question, LAMINA))
    gains = [each.tbt_p99_gain for each in result]
    assert gains == sorted(gains, reverse=True)
    assert all(abs(each.throughput_gain) < 0.02 for each in result)


def test_with_prompts_their_computation_can_bind(draw_trace: Any, pose: Any) -> None:
    """The first token is what is nearer to its limit, and mostly waits for prompts."""
    trace = draw_trace(1, requests=400, prompt=4000, output=20, rate=3)
    question = pose(
        trace, 500.0, mode="open", prefill="colocated", slo_ttft_ms=8000.0, slo_queueing_p99_s=8.0
    )
    point = replayed(question, replace(_vllm("4xh100"), prompt_budget=2048))
    assert gained_by(question, point) == "ttft_p99_gain"
    result = effects(question, point)
    assert result[0].resource in ("prompt computation", "compute of model workers")
    gains = {each.resource: each.ttft_p99_gain or 0.0 for each in result}
    assert gains["prompt computation"] > 0.1
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert "prompt computation" not in {
        each.resource for each in effects(pose(trace), replayed(pose(trace), LAMINA))
    }


def test_varying_a_pool_covers_prefill_and_transfer(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(1, requests=200, prompt=4000, output=20, rate=3)
    question = pose(trace, 500.0, mode="open", prefill="pool", slo_ttft_ms=8000.0, slo_queueing_p99_s=8.0)
    for decoding in ("4xh100", "2xh100+4xh20"):
        deployment = replace(parse_deployment(decoding), prefill=parse_workers("4xh100"))
        system = "lamina" if "+" in decoding else "vllm"
        point = replayed(question, Candidate(system, deployment, 1, prompt_budget=2048, instances=2))
        gains = {each.resource: each.ttft_p99_gain or 0.0 for each in effects(question, point)}
        assert gains["prompt computation"] > 0.05
        assert gains["KV hand-over"] > -0.01


def test_resources_are_those_that_there_are(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(1, requests=100), model="llama3-8b")
    alone = {each.resource for each in effects(question, replayed(question, _vllm("1xh100")))}
    assert not {name for name in alone if name.startswith(("network", "links"))}
    together = {each.resource for each in effects(question, replayed(question, _vllm("2xh100")))}
    assert together - alone == {"links between model workers"}
    lamina = {each.resource for each in effects(question, replayed(question, LAMINA))}
    assert lamina - together == {"network bandwidth", "network latency"}


def test_weights_and_attention_of_a_device_vary_separately(draw_trace: Any, pose: Any) -> None:
    """A tenth more of both is a device with a tenth more memory bandwidth, but for norms and the like."""
    question = pose(draw_trace(1, requests=600, prompt=3000, spread=0.3))
    point = replayed(question, _vllm("4xh100"))
    gains = {each.resource: each.throughput_gain for each in effects(question, point)}
    device = point.candidate.deployment.model.device
    faster = replace(device, bandwidth_bytes_per_s=1.1 * device.bandwidth_bytes_per_s)
    deployment = replace(
        point.candidate.deployment, model=replace(point.candidate.deployment.model, device=faster)
    )
    both = replayed(question, replace(point.candidate, deployment=deployment))
    separate = gains["memory bandwidth for weights"] + gains["memory bandwidth for attention"]
    assert both.tokens_per_s / point.tokens_per_s - 1 == pytest.approx(separate, rel=0.1)


def _vllm(deployment: str) -> Candidate:
    return Candidate("vllm", parse_deployment(deployment))


BOARD = load_devices()["h2m2"]


def boards(count: int, most: int | None = None) -> Candidate:
    return Candidate("h2m2", parse_deployment(f"{count}xh2m2"), most_requests=most)


def test_the_search_replays_what_could_win_and_no_more(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(2, requests=1500, prompt=300, output=15, spread=0.3), slo_ms=110.0)
    some = list(candidates(["h2m2"], question.model, [BOARD], Limits(6)))
    result, every = search(question, some, jobs=1), search(question, some, jobs=1, exhaustive=True)
    assert winner(result.points, 110) == winner(every.points, 110) is not None
    assert len(result.points) < len(every.points) == len(some)


def of_boards(question: Question, most: int) -> list[Effect]:
    spec = cluster(question, boards(1, most))
    assert spec is not None
    return effects(question, measure(question, question.trace, boards(1, most), spec))


def test_what_binds_a_board_is_what_was_made_scarce(draw_trace: Any, pose: Any) -> None:
    full = pose(draw_trace(1, requests=300, prompt=600, output=20, spread=0.3))
    assert of_boards(full, 64)[0].resource == "compute of the chips"
    assert of_boards(full, 10)[0].resource == "requests at once"


def test_resources_are_a_board_s(draw_trace: Any, pose: Any) -> None:
    result = of_boards(pose(draw_trace(1, requests=30, output=20), model="llama3-8b"), 16)
    assert {each.resource for each in result} == {
        *("HBM capacity", "HBM bandwidth", "LPDDR capacity", "LPDDR bandwidth"),
        *("compute of the chips", "link between the sides", "requests at once", "host time"),
    }
    assert all(each.throughput_gain > -0.02 for each in result)


def test_boards_have_to_be_named_and_h2m2_has_to_run_on_them(draw_trace: Any, pose: Any) -> None:
    question, devices = pose(draw_trace(1, requests=10)), load_devices()
    with pytest.raises(UserError, match="plan-system-without-devices"):
        affordable(question, ["h2m2"], [devices["h100"]], Limits(50))
    with pytest.raises(UserError, match="plan-device-unused"):
        affordable(question, ["vllm"], [devices["h100"], BOARD], Limits(50))
    # A cost set knows nothing of boards, and need not.
    result = affordable(question, ["vllm", "h2m2"], [devices["h100"], BOARD], Limits(50))
    assert {each.system for each in result} == {"vllm", "h2m2"}


def test_where_a_limit_leaves_nothing_it_is_named(draw_trace: Any, pose: Any) -> None:
    question = pose(draw_trace(1, requests=10), model="gpt3-175b")
    dear = priced(load_devices(), {"h2m2": 60.0})["h2m2"]
    with pytest.raises(UserError, match="plan-budget-too-small"):
        affordable(question, ["h2m2"], [dear], Limits(50))
    with pytest.raises(UserError, match="plan-no-deployment"):
        affordable(question, ["h2m2"], [BOARD], Limits(50, power_w=400))
