"""Deployments as the papers describe them: what fits, what splits, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.cost_file import COST_SETS, load_costs
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.sim.simulate import Offered, simulate
from laminabench.systems.modelled.lamina.transfers import transfers
from laminabench.systems.modelled.setup import Modelled, Setup
from laminabench.systems.registry import MODULES, system
from laminabench.traces.resolve import resolve
from laminabench.traces.table import TraceMeta, make_trace
from laminabench.util.errors import UserError


def a_setup(deployment: str, model_name: str = "llama3-70b", **more: Any) -> Setup:
    costs = load_costs(more.pop("costs", "vllm-0.14"))
    network = parse_network(more.pop("network", "fhbn"))
    return Setup(model(model_name), parse_deployment(deployment), costs, network, **more)


def build(name: str, deployment: str, model_name: str = "llama3-70b", **more: Any) -> Modelled:
    return system(name).build(a_setup(deployment, model_name, **more))


def mean_batch(modelled: Modelled, trace_name: str, requests: int = 6000) -> float:
    """Requests running at once, over the time in which the queue is never empty."""
    outcome = simulate(resolve(trace_name, offline=True, requests=requests), modelled.spec, Offered())
    rows, until = outcome.iterations, outcome.queue_empty_s
    overlap = np.minimum(rows["start_s"] + rows["duration_s"], until) - np.minimum(rows["start_s"], until)
    return float((rows["size"] * overlap).sum() / until)


def test_batch_of_about_800_on_the_papers_deployment() -> None:
    """v2 6.1: the attainable batch size of LLaMA3-70B reaches 800 for DOP (2, 4)."""
    batch = mean_batch(build("lamina", "2xh100+4xh20"), "azure-conv", 12_000)
    assert 700 <= batch <= 900


@pytest.mark.long(but=["llama-33b-azure-conv", "llama3-70b-azure-code"])
@pytest.mark.parametrize("trace", ["azure-conv", "azure-code"])
@pytest.mark.parametrize("model_name", ["llama-33b", "llama-65b", "llama3-70b"])
def test_batch_ratio_to_vllm_is_the_papers(model_name: str, trace: str) -> None:
    """v2 6.1: 2.39 times vLLM's batch on average."""
    shape = model(model_name)
    lamina = build("lamina", system("lamina").default_deployment(shape), model_name)
    vllm = build("vllm", system("vllm").default_deployment(shape), model_name)
    assert 2.2 <= mean_batch(lamina, trace) / mean_batch(vllm, trace) <= 2.7


@pytest.mark.long(but=["vllm-0.14-*"])
@pytest.mark.parametrize("name", sorted(MODULES))
# The others have none of these GPUs.
@pytest.mark.parametrize("costs", sorted({*COST_SETS} - {"vllm-0.19", "v1-table3"}))
def test_every_system_runs_on_its_default_deployment_with_every_cost_set(name: str, costs: str) -> None:
    for model_name in ("llama-13b", "llama3-70b"):
        deployment = system(name).default_deployment(model(model_name))
        modelled = build(name, deployment, model_name, costs=costs)
        trace = resolve("azure-code", offline=True, requests=300).first(300)
        # To recount all pages of a whole board at every step takes minutes; there are tests on small ones.
        outcome = simulate(trace, modelled.spec, Offered(), check=name != "h2m2")
        assert not np.isnan(outcome.requests["finished_s"]).any()
        # A board's times are computed, and only the host's are of the cost set.
        needed = {"dram_efficiency", "mapping", "host"} if name == "h2m2" else {"gemm", "attention", "host"}
        assert {row["term"] for row in modelled.coefficients} >= needed
        assert all(row.get("source") for row in modelled.coefficients)


def test_default_deployments_are_table_5() -> None:
    assert system("lamina").default_deployment(model("llama-33b")) == "1xh100+2xh20"
    assert system("lamina").default_deployment(model("llama3-70b")) == "2xh100+4xh20"
    assert system("vllm").default_deployment(model("llama-33b")) == "2xh100"
    assert system("vllm").default_deployment(model("llama-65b")) == "4xh100"


def test_transfers_are_the_papers_formula() -> None:
    """v2 3.2: (2 + 2/G) e d B bytes a layer, over the links of the smaller side."""
    setup = a_setup("2xh100+4xh20")
    batch = np.array([100])
    moved = transfers(setup, 2, batch)
    expected = (2 + 2 / 8) * 2 * 8192 * 100 / (2 * 45.7e9)
    assert float((moved.qkv + moved.out)[0]) - 2 * moved.latency == pytest.approx(expected)
    assert 2 * moved.latency == pytest.approx(33e-6)


def test_what_cannot_be() -> None:
    serial = {"batches": 2, "pipelining": "serial"}
    for name, deployment, more, code in (
        ("lamina", "4xh100", {}, "deployment-no-attention"),
        ("lamina", "2xh100+6xh20", {}, "deployment-heads"),
        ("lamina", "3xh100+4xh20", {}, "model-cannot-split"),
        ("lamina", "2xh100+4xh20:dp4", {}, "deployment-bad-layout"),
        ("lamina", "3xh100+4xh20", {"batches": 3}, "deployment-replicas"),
        ("lamina", "2xh100+4xh20", serial, "deployment-batches"),
        ("lamina", "2xh100+4xh20", {"pipelining": "pingpong"}, "deployment-batches"),
        ("lamina-v1", "64xa100-40g+4xh20", {"pipeline_parallel": 128}, "deployment-too-many-stages"),
        ("vllm", "2xh100+4xh20", {}, "deployment-not-for-system"),
    ):
        with pytest.raises(UserError, match=code):
            build(name, deployment, **more)


@pytest.mark.parametrize(
    ("name", "deployment", "advice"),
    [
        ("lamina", "1xh100+4xh20", "63.1 GB more than the 78.0 GB usable; 2xh100 would fit"),
        ("vllm", "2xh100", "4xh100 would fit"),
        ("vllm", "1xrtx-3090", "8xrtx-3090 would fit"),
    ],
)
def test_how_many_devices_would_fit(name: str, deployment: str, advice: str) -> None:
    with pytest.raises(UserError, match="model-does-not-fit") as error:
        build(name, deployment)
    assert advice in str(error.value)


def test_requests_may_be_distributed_where_heads_cannot() -> None:
    modelled = build("lamina", "2xh100+6xh20", partition="requests")
    assert modelled.spec.pools == 6


def test_overlap_makes_a_single_batch_faster() -> None:
    def step_s(overlap: bool) -> float:
        modelled = build("lamina", "2xh100+4xh20", "llama-65b", batches=1, overlap=overlap)
        outcome = simulate(resolve("azure-conv", offline=True, requests=50), modelled.spec, Offered())
        return float(outcome.end_s)

    assert step_s(True) < step_s(False)


def test_a_slower_network_is_slower() -> None:
    def end_s(network: str) -> float:
        modelled = build("lamina", "2xh100+4xh20", batches=1, network=network)
        return simulate(resolve("azure-conv", offline=True, requests=200), modelled.spec, Offered()).end_s

    assert end_s("fhbn") < end_s("nccl") < end_s("1ms,1GB/s")


def test_a_copy_of_kv_takes_memory_or_a_link() -> None:
    """A token's layer has 4,096 bytes (2 x 8 KV heads of 128 numbers in bf16), on four links."""
    setup = a_setup("2xh100+4xh20")
    alone = system("lamina").build(setup)
    batch = np.arange(513)
    network = setup.network.on(parse_deployment("1xh20").model.device.nic_bytes_per_s)
    for where, capacity, rate in (("host", 1.0, 25e9), ("worker", 0.5, network.bandwidth_bytes_per_s)):
        copied = system("lamina").build(replace(setup, kv_copy=where))
        assert copied.spec.tokens_per_pool == int(alone.spec.tokens_per_pool * capacity)
        more = copied.spec.timing.out_transfer - alone.spec.timing.out_transfer
        assert more[batch] == pytest.approx(4096 * batch / (4 * rate))
        assert copied.facts["kv_copy"] == where
        each = copied.spec.tokens_per_pool * setup.model.kv_bytes_per_token / 4
        assert copied.facts["kv_copy_bytes_per_worker"] == pytest.approx(each)
    assert "kv_copy" not in alone.facts


@pytest.mark.parametrize(
    ("deployment", "where", "code"),
    [("2xh100+4xh20", "disk", "kv-copy-not-modelled"), ("4xh200+1xh200", "worker", "kv-copy-alone")],
)
def test_copies_of_kv_that_have_no_place(deployment: str, where: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        build("lamina", deployment, kv_copy=where)


def test_overcommitted_kv_admits_more_and_pays_for_what_is_paged() -> None:
    setup = a_setup("1xa100-80g+3xrtx-3090", "llama-13b")
    trace = resolve("azure-conv", offline=True, requests=600)
    plain = simulate(trace, system("lamina-v1").build(setup).spec, Offered())
    more = simulate(trace, system("lamina-v1").build(replace(setup, kv_overcommit=3.0)).spec, Offered())
    assert more.peak_kv_tokens > plain.kv_capacity_tokens
    assert more.iterations["attention_s"].max() > 1.5 * plain.iterations["attention_s"].max()


def test_charged_but_unwritten_kv_is_not_paged() -> None:
    """One short prompt that may grow long is charged beyond the device, but nothing of it is there yet."""
    setup = a_setup("1xa100-80g+3xrtx-3090", "llama-13b", batches=1)
    modelled = system("lamina-v1").build(replace(setup, kv_overcommit=2.0))
    device = modelled.spec.timing.device_tokens
    trace = make_trace(
        np.zeros(1), np.array([10], np.int32), np.array([device + 1000], np.int32), TraceMeta("grows")
    )
    attention = simulate(trace, modelled.spec, Offered()).iterations["attention_s"]
    per_token = (attention[device // 2] - attention[0]) / (device // 2)
    assert attention[device - 50] == pytest.approx(attention[0] + per_token * (device - 50), rel=0.01)
    # Beyond the device a token comes over the host's link, many times slower.
    assert attention[-1] - attention[device - 50] > 5 * per_token * 1050


def test_pipeline_stages_hold_their_part_of_the_weights() -> None:
    with pytest.raises(UserError, match="model-does-not-fit"):
        build("lamina-v1", "2xa100-40g+8xrtx-3090")
    staged = build("lamina-v1", "4xa100-40g+8xrtx-3090", pipeline_parallel=4)
    assert (staged.spec.batches, staged.spec.pipelining, staged.facts["tensor_parallel"]) == (4, "fixed", 1)
    trace = resolve("azure-conv", offline=True, requests=200)
    assert not np.isnan(simulate(trace, staged.spec, Offered(), check=True).requests["finished_s"]).any()
    with pytest.raises(UserError, match="deployment-batches"):
        build("lamina-v1", "4xa100-40g+8xrtx-3090", pipeline_parallel=4, batches=2)
