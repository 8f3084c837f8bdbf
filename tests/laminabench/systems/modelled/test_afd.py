"""Attention-FFN disaggregation as docs/simulator.md defines it: placement, transfers and times."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.layout import Layout
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.catalog.split_kernels import split_kernels, with_split_products
from laminabench.catalog.step import model_step
from laminabench.sim.simulate import Offered, simulate
from laminabench.systems.modelled.afd.workers import (
    attention_bytes,
    attention_seconds,
    copies,
    feed_bytes,
    feed_seconds,
)
from laminabench.systems.modelled.setup import Modelled, Setup, with_prompts
from laminabench.systems.registry import deployments, system
from laminabench.traces.resolve import resolve
from laminabench.traces.table import TraceMeta, make_trace
from laminabench.util.errors import UserError
from laminabench.workflows.plan.effects import effects
from laminabench.workflows.plan.measure import measure
from laminabench.workflows.plan.question import Candidate, Question

TINY = ModelShape(
    *("tiny", 2, 1024, 8, 2, 128, 4096, 32000),  # layers, hidden, heads, of KV, their size, width, vocabulary
)
ROOFLINE = load_costs("roofline")


def a_setup(deployment: str, shape: ModelShape, network: str = "10us,1GB/s", **more: Any) -> Setup:
    return Setup(shape, parse_deployment(deployment), ROOFLINE, parse_network(network), **more)


def build(deployment: str, shape: str | ModelShape = TINY, **more: Any) -> Modelled:
    shape = model(shape) if isinstance(shape, str) else shape
    return system("afd").build(a_setup(deployment, shape, **more))


def timing_of(modelled: Modelled) -> Any:
    return modelled.spec.timing


def test_a_serial_iteration_by_hand() -> None:
    """One request of 100 tokens: everything reads its bytes once, over H100's and H20's bandwidths."""
    feed, on = (device(name).bandwidth_bytes_per_s for name in ("h100", "h20"))

    def product(n: int, k: int) -> int:
        return 2 * (n * k + k + n)

    attention = product(1536, 1024) + product(1024, 1024)
    attention += 2 * (2 * 1024 + 2 * (1024 + 256))  # a norm, and rotation of q and k
    attention += 100 * 2 * 2 * 2 * 128  # KV
    others = product(2 * 4096, 1024) + product(1024, 4096) + 2 * (5 * 1024 + 3 * 4096)
    travelling = 2 * (5e-6 + 2 * 1024 / 1e9)
    layer = attention / on + others / feed + travelling
    trace = make_trace(np.zeros(1), np.array([100], np.int32), np.array([1], np.int32), TraceMeta("one"))
    outcome = simulate(trace, build("1xh100+1xh20", batches=1).spec, Offered(), check=True)
    assert outcome.end_s == pytest.approx(2 * layer + product(32000, 1024) / feed, rel=1e-4)
    assert outcome.iterations["attention_s"][0] == pytest.approx(2 * attention / on, rel=1e-4)
    assert outcome.iterations["network_s"][0] == pytest.approx(2 * travelling, rel=1e-4)


def test_weights_on_either_side_by_hand() -> None:
    attention = 2 * 2 * (1536 * 1024 + 1024 * 1024)
    small = 2 * (2 * 2 * 1024 + 1024)
    others = 2 * (2 * 3 * 1024 * 4096 + 2 * 32000 * 1024)
    assert attention_bytes(TINY, 1) == attention + small
    assert attention_bytes(TINY, 2) == attention / 2 + small
    assert feed_bytes(TINY, Layout(4)) == others / 4 + small
    result = build("4xh100+2xh20:dp2")
    assert result.facts["attention_weight_bytes_per_worker"] == attention + small
    assert result.facts["weight_bytes_per_worker"] == others / 4 + small
    room = 0.9 * 96e9 - 1e9 - attention - small
    assert result.facts["kv_capacity_tokens"] == 2 * int(room // (2 * 2 * 2 * 2 * 128))


@pytest.mark.parametrize("name", ["llama3-70b", "qwen3-8b", "deepseek-v3", "gpt-oss-120b"])
def test_both_sides_are_the_whole_step(name: str) -> None:
    """On one device each, without a network: nothing is lost, and nothing is counted twice."""
    shape, on, rows = model(name), device("h200"), np.arange(301.0)
    step = model_step(ROOFLINE, shape, on, 1, rows, "uniform")
    sides = attention_seconds(ROOFLINE, shape, on, 1, 300) + feed_seconds(
        ROOFLINE, shape, on, Layout(), rows, "uniform"
    )
    assert shape.layers * sides == pytest.approx(step.layers_s)


def test_a_token_goes_to_the_nodes_that_have_its_experts() -> None:
    shape, h200 = model("qwen3-30b-a3b"), device("h200")
    assert copies(shape, h200, Layout(8, ep=8)) == 1
    elsewhere = prod((96 - i) / (128 - i) for i in range(8))  # all eight experts on three of four nodes
    assert copies(shape, h200, Layout(4, 8, 32)) == pytest.approx(4 * (1 - elsewhere))
    assert copies(TINY, h200, Layout(8)) == 1
    # DeepSeek-V3's first three layers have no experts.
    dense, nodes = 3, 2 * (1 - prod((128 - i) / (256 - i) for i in range(8)))
    assert copies(model("deepseek-v3"), h200, Layout(8, 2, 16)) == pytest.approx((dense + 58 * nodes) / 61)
    timing = timing_of(build("16xh200:tp8dp2ep16+4xh20", "deepseek-v3"))
    size = 2 * 7168 * 100 * (dense + 58 * nodes) / 61
    assert timing.out_transfer[100] == pytest.approx(5e-6 + size / 4e9)
    # 72 of GB200 have fast links to each other: 16 are one node, 80 are two.
    assert copies(model("deepseek-v3"), device("gb200"), Layout(8, 2, 16)) == 1
    assert copies(shape, device("gb200"), Layout(4, 20, 80)) == pytest.approx(
        2 * (1 - prod((64 - i) / (128 - i) for i in range(8)))
    )
    setup = a_setup("16xgb200:tp8dp2ep16+4xgb200", model("deepseek-v3"))
    timing = timing_of(system("afd").build(setup))
    assert timing.out_transfer[100] == pytest.approx(5e-6 + 2 * 7168 * 100 / 4e9)


@pytest.mark.parametrize(
    ("deployment", "name", "groups"),
    [
        ("2xh100+4xh20", "llama3-70b", "dp4"),
        ("2xh100+4xa100-40g", "llama3-70b", "tp2dp2"),  # of whose 40 GB attention's weights would be 24
        ("2xh100+4xh20:tp4", "llama3-70b", "tp4"),
        ("8xh200:ep8+8xh20", "deepseek-v3", "dp8"),
    ],
)
def test_attention_workers_are_groups_with_requests_of_their_own(
    deployment: str, name: str, groups: str
) -> None:
    result = build(deployment, name)
    assert result.facts["attention_layout"] == groups
    dp = int(groups.partition("dp")[2] or 1)
    assert result.spec.pools == dp
    # A request for each group is as one for one of them.
    table = timing_of(result).attention_rows
    assert np.all(table[1 : dp + 1] == table[1])
    assert table[8 * dp + 1] > table[8 * dp]


def test_batches_go_to_and_fro_on_one_replica() -> None:
    trace = resolve("azure-conv", offline=True, requests=400)
    specs = [build("2xh100+4xh20", "llama3-70b", network="fhbn", batches=n).spec for n in (1, 2, 3)]
    assert [spec.pipelining for spec in specs] == ["serial", "pingpong", "pingpong"]
    outcomes = [simulate(trace, spec, Offered(), check=True) for spec in specs]
    assert not any(np.isnan(each.requests["finished_s"]).any() for each in outcomes)
    # The feed-forward workers wait for attention less of the time.
    busy = [each.replica_busy_s[0] / each.end_s for each in outcomes]
    assert busy == sorted(busy)


@pytest.mark.parametrize(
    ("pipelining", "batches", "result"),
    [
        (None, None, (2, "pingpong")),
        ("pingpong", None, (2, "pingpong")),
        ("pingpong", 3, (3, "pingpong")),
        ("serial", None, (1, "serial")),
        ("serial", 1, (1, "serial")),
    ],
)
def test_how_batches_take_turns_can_be_chosen(
    pipelining: str | None, batches: int | None, result: tuple[int, str]
) -> None:
    spec = build("2xh100+4xh20", "llama3-70b", batches=batches, pipelining=pipelining).spec
    assert (spec.batches, spec.pipelining) == result


@pytest.mark.parametrize("pool", [None, "4xh100"])
def test_prompts_are_computed(pool: str | None) -> None:
    decoding = a_setup("2xh100+4xh20", model("llama3-70b"), "fhbn")
    workers = parse_deployment(pool).model if pool else None
    setup = replace(decoding, deployment=replace(decoding.deployment, prefill=workers))
    spec = system("afd").build(with_prompts(setup, 512)).spec
    # Four groups have as much each; engines of a pool have a batch of their own.
    assert spec.prompt_budget == (0 if pool else 4 * 512)
    trace = resolve("azure-conv", offline=True, requests=30)
    assert not np.isnan(simulate(trace, spec, Offered()).requests["finished_s"]).any()


@pytest.mark.parametrize(
    ("deployment", "name", "more", "code"),
    [
        ("4xh100", "llama3-70b", {}, "deployment-no-attention"),
        ("1xh100+4xh20", "llama3-70b", {}, "model-does-not-fit"),
        ("2xh100+1xrtx-3090", "llama3-70b", {}, "model-does-not-fit"),
        ("3xh100+4xh20", "llama3-70b", {}, "model-cannot-split"),
        ("2xh100+3xh20:tp3", "llama3-70b", {}, "model-cannot-split"),
        ("4xh100:tp2pp2+4xh20", "llama3-70b", {}, "deployment-bad-layout"),
        ("8xh200:ep8+8xh20:ep8", "deepseek-v3", {}, "deployment-bad-layout"),
        ("2xh100+4xh20", "llama3-70b", {"batches": 9}, "deployment-batches"),
        ("2xh100+4xh20", "llama3-70b", {"pipelining": "rotational"}, "deployment-batches"),
        ("2xh100+4xh20", "llama3-70b", {"batches": 2, "pipelining": "serial"}, "deployment-batches"),
        ("2xh100+4xh20", "llama3-70b", {"batches": 1, "pipelining": "pingpong"}, "deployment-batches"),
        ("2xh100+4xh20", "llama3-70b", {"kv_tokens": 10**9}, "kv-tokens-too-many"),
    ],
)
def test_what_cannot_be(deployment: str, name: str, more: dict[str, Any], code: str) -> None:
    with pytest.raises(UserError, match=code):
        build(deployment, name, **more)


def test_a_plan_tries_distributed_experts_and_names_the_bottleneck() -> None:
    kinds = [device("h200"), device("h20")]
    results = [str(each) for each in deployments("afd", model("deepseek-v3"), kinds, replicas=2)]
    assert len(set(results)) == len(results)
    assert {"8xh200:tp8ep8+8xh20", "16xh200:tp8dp2ep16+8xh20"} <= set(results)
    question = Question(resolve("azure-conv", offline=True, requests=300), TINY, ROOFLINE, 100)
    candidate = Candidate("afd", parse_deployment("1xh100+1xh20"), 2)
    setup = question.setup(candidate)
    point = measure(question, question.trace, candidate, system("afd").build(setup).spec)
    gains = {each.resource: each.throughput_gain for each in effects(question, point)}
    assert gains.keys() >= {"compute of attention workers", "network latency", "memory bandwidth for weights"}


def test_every_coefficient_of_either_side_has_a_source() -> None:
    rows = build("8xh200:ep8+8xh20:tp2dp4", "deepseek-v3").coefficients
    assert all(row.get("source") for row in rows)
    of = {name: {row["term"] for row in rows if row.get("device") == name} for name in ("h200", "h20")}
    assert of["h200"] >= {"gemm", "experts in fp8_block", "allreduce over 8", "elementwise"}
    assert of["h20"] >= {"gemm", "attention", "batched", "allreduce over 2", "elementwise"}
    assert not of["h200"] & {"attention", "batched"}


def gb200_setup(name: str, **given: Any) -> Setup:
    """Qwen3 on four GB200 for each side, with the packaged costs."""
    feed = "4xgb200:ep4" if name == "afd" else "4xgb200:dp4ep4ll"
    attention = "4xgb200:dp4" if name == "afd" else "4xgb200"
    costs = load_costs("vllm-0.24")
    known: dict[str, Any] = {
        "model": model("qwen3-235b-a22b"),
        "deployment": parse_deployment(f"{feed}+{attention}"),
        "costs": costs,
        "network": parse_network("nvlink", costs.networks),
        "partition": "requests" if name == "lamina" else None,
        "max_num_seqs": 24,
    }
    return Setup(**known | given)


def timed(name: str, **given: Any) -> Any:
    return system(name).build(gb200_setup(name, **given)).spec.timing


def test_a_fused_feed_forward_stage_leaves_the_router_to_attention_workers() -> None:
    plain, fused = timed("afd"), timed("afd", expert_kernel="megamoe-fp8")
    kernels = split_kernels(device("gb200"))
    # Experts and their exchange, and nothing else: at one row, the fixed time and the weights of a few.
    least = kernels.experts_us * 1e-6 * 4096 / kernels.experts_hidden
    assert least < fused.mid_slice[1] < least + 30e-6
    costs, qwen = gb200_setup("afd").costs, model("qwen3-235b-a22b")
    router = costs.gemm_seconds(device("gb200"), 1, 128, 4096)
    products = with_split_products(costs, device("gb200"), kernels, "megamoe-fp8", 6, 4096)
    own = sum(
        products.gemm_seconds(device("gb200"), 1, n, k, "fp8_block") for n, k in ((9216, 4096), (4096, 8192))
    )
    small = products.elementwise_seconds(qwen, device("gb200"), 1, np.array([1.0]))[0] / qwen.layers
    assert fused.attention_rows[1] == pytest.approx(own + router + small)
    assert plain.attention_rows[1] != fused.attention_rows[1]


@pytest.mark.parametrize(("name", "kernels"), [("afd", 2), ("lamina", 1)])
def test_fp8_on_the_wire_is_half_of_the_bytes_and_a_kernel_more(name: str, kernels: int) -> None:
    bf16 = timed(name, expert_kernel="megamoe-fp8")
    fp8 = timed(name, expert_kernel="megamoe-fp8", wire="fp8")
    more = [(each.out_transfer[24] - each.out_transfer[0]) for each in (bf16, fp8)]
    assert more[1] == pytest.approx(more[0] * 1.03125 / 2)
    assert fp8.attention_rows[24] - bf16.attention_rows[24] == pytest.approx(kernels * 6.5e-6)
    sent = fp8.mid_slice[24] - bf16.mid_slice[24]
    assert sent == pytest.approx(6.5e-6 if name == "lamina" else 0.0)


def test_what_lamina_sends_comes_before_each_attention() -> None:
    bf16, fp8 = timed("lamina"), timed("lamina", wire="fp8")
    masked = timed("lamina", expert_kernel="deepgemm-masked")
    assert fp8.first_slice[3] - masked.first_slice[3] == pytest.approx(6.5e-6)
    assert fp8.first_slice[3] < bf16.first_slice[3]


def test_fp4_weights_are_read_in_half_of_the_time() -> None:
    fp8, fp4 = (timed("lamina", expert_kernel=f"megamoe-{each}") for each in ("fp8", "fp4"))
    assert fp8.mid_slice[24] - fp4.mid_slice[24] > 20e-6


def test_expert_kernels_need_ranks_that_send_tokens() -> None:
    given = {"deployment": parse_deployment("4xgb200:tp4+4xgb200"), "expert_kernel": "megamoe-fp8"}
    with pytest.raises(UserError, match="dp4ep4ll") as failed:
        timed("lamina", **given)
    assert failed.value.code == "deployment-bad-layout"
