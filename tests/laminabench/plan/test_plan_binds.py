"""What binds is what was made scarce."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.network import parse_network
from laminabench.plan.answer import effects
from laminabench.plan.measure import Point, cluster, measure
from laminabench.plan.question import Candidate, Question

LAMINA = Candidate("lamina", parse_deployment("2xh100+4xh20"), 2)


def replayed(question: Question, candidate: Candidate) -> Point:
    spec = cluster(question, candidate)
    assert spec is not None
    return measure(question, question.trace, candidate, spec)


def first(question: Question, candidate: Candidate) -> str:
    return effects(question, replayed(question, candidate))[0].resource


def test_memory_binds_where_weights_leave_none(draw_trace: Any, ask: Any) -> None:
    trace = draw_trace(1, requests=600, prompt=3000, spread=0.3)
    assert first(ask(trace), Candidate("vllm", parse_deployment("2xh20"))) == "KV memory"


def test_host_time_binds_a_small_model_with_short_requests(draw_trace: Any, ask: Any) -> None:
    trace = draw_trace(1, requests=3000, prompt=50, output=20)
    question = ask(trace, model="llama3-8b")
    assert first(question, Candidate("vllm", parse_deployment("8xh100"))) in ("host time", "requests at once")


@pytest.mark.parametrize(("network", "binds"), [("20ms,50GB/s", "latency"), ("40us,0.5GB/s", "bandwidth")])
def test_a_bad_network_binds(network: str, binds: str, draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(1, requests=600, spread=0.3), network=parse_network(network))
    assert first(question, LAMINA) == f"network {binds}"


def test_open_it_is_time_that_is_gained(draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(1, requests=300, rate=4), mode="open")
    found = effects(question, replayed(question, LAMINA))
    gains = [each.tbt_p99_gain for each in found]
    assert gains == sorted(gains, reverse=True)
    assert all(abs(each.throughput_gain) < 0.02 for each in found)


def test_resources_are_those_that_there_are(draw_trace: Any, ask: Any) -> None:
    question = ask(draw_trace(1, requests=100), model="llama3-8b")
    alone = {each.resource for each in effects(question, replayed(question, _vllm("1xh100")))}
    assert not {name for name in alone if name.startswith(("network", "links"))}
    together = {each.resource for each in effects(question, replayed(question, _vllm("2xh100")))}
    assert together - alone == {"links between model workers"}
    lamina = {each.resource for each in effects(question, replayed(question, LAMINA))}
    assert lamina - together == {"network bandwidth", "network latency"}


def test_weights_and_attention_share_a_device_but_are_tried_apart(draw_trace: Any, ask: Any) -> None:
    """A tenth more of both is a device with a tenth more memory bandwidth, but for norms and the like."""
    question = ask(draw_trace(1, requests=600, prompt=3000, spread=0.3))
    point = replayed(question, _vllm("4xh100"))
    gains = {each.resource: each.throughput_gain for each in effects(question, point)}
    device = point.candidate.deployment.model.device
    faster = replace(device, bandwidth_bytes_per_s=1.1 * device.bandwidth_bytes_per_s)
    deployment = replace(
        point.candidate.deployment, model=replace(point.candidate.deployment.model, device=faster)
    )
    both = replayed(question, replace(point.candidate, deployment=deployment))
    apart = gains["memory bandwidth for weights"] + gains["memory bandwidth for attention"]
    assert both.tokens_per_s / point.tokens_per_s - 1 == pytest.approx(apart, rel=0.1)


def _vllm(deployment: str) -> Candidate:
    return Candidate("vllm", parse_deployment(deployment))
