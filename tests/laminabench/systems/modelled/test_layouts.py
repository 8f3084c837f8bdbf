"""Devices that share a model otherwise than by tensor parallelism: memory, batches, transfers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import modelled
from laminabench.catalog.network import parse_network
from laminabench.systems.modelled.lamina.transfers import transfers
from laminabench.systems.modelled.setup import Setup, working_bytes
from laminabench.systems.modelled.system import of_today, worth_trying
from laminabench.systems.registry import system
from laminabench.util.errors import UserError


def setup(model: str, deployment: str, **choices) -> Setup:
    return Setup(
        modelled(model),
        parse_deployment(deployment),
        load_costs("roofline"),
        parse_network("fhbn"),
        **choices,
    )


def test_data_parallel_groups_have_memory_and_requests_of_their_own():
    tensor, data = (
        system("vllm").build(setup("deepseek-v3", f"8xh200:{layout}")).spec for layout in ("tp8", "dp8ep8")
    )
    assert (tensor.pools, data.pools) == (1, 8)
    assert (tensor.max_requests, data.max_requests) == (1024, 8192)
    shape = modelled("deepseek-v3")
    for spec, layout in ((tensor, "tp8"), (data, "dp8ep8")):
        workers = parse_deployment(f"8xh200:{layout}").model
        free = 0.9 * 141e9 - 2e9 - shape.weight_bytes_per_worker(workers.shared())
        # One vector a token and layer, however many share the heads.
        assert spec.tokens_per_pool == int(free // (61 * 576 * 2))


def test_hosts_of_groups_work_side_by_side():
    costs = load_costs("roofline")
    slow = replace(costs, host=replace(costs.host, per_request_s=16e-6))
    chosen = setup("deepseek-v3", "8xh200:dp8ep8")
    timing = system("vllm").build(dataclasses.replace(chosen, costs=slow)).spec.timing
    assert timing.host_per_request == pytest.approx(2e-6)


def test_many_rows_of_prompts_and_buffers_of_dispatch_leave_less_to_kv():
    layout = parse_deployment("16xgb200:dp16ep16").model.shared()
    small, large = (
        working_bytes(setup("qwen3-235b-a22b", "16xgb200:dp16ep16", prompt_budget=rows), layout)
        for rows in (8192, 40000)
    )
    # 4 buffers for 128 experts and 256 tokens of 4,096 in bf16.
    assert small == pytest.approx(4.17e9 + 4 * 128 * 256 * 2 * 4096)
    # Hidden states twice, q, k and v before and after rotation, the output.
    assert large - small == pytest.approx(2 * (40000 - 8192) * (2 * 4096 + 2 * 9216 + 8192))
    h200 = setup("qwen3-235b-a22b", "16xh200:dp16ep16", prompt_budget=8192)
    assert working_bytes(h200, layout) == 2e9


def test_stages_hold_their_layers_and_the_kv_of_these():
    whole, staged = (
        system("vllm").build(setup("llama3-70b", f"8xh100:{layout}")).spec for layout in ("tp8", "tp4pp2")
    )
    assert staged.batches == 2
    assert staged.own_attention
    # As many devices hold as much; each token of KV is on two of four.
    assert staged.tokens_per_pool == pytest.approx(whole.tokens_per_pool, rel=0.01)


def test_windows_charge_a_request_once():
    spec = system("vllm").build(setup("gpt-oss-120b", "1xh200")).spec
    assert spec.request_tokens == 128
    assert spec.timing.window == 128


def test_requests_of_latent_attention_are_distributed_and_heads_are_refused():
    spec = system("lamina").build(setup("deepseek-v3", "8xh200:ep8+4xh20")).spec
    assert spec.pools == 4
    with pytest.raises(UserError, match="deployment-heads"):
        system("lamina").build(setup("deepseek-v3", "8xh200:ep8+4xh20", partition="heads"))


def test_few_kv_heads_are_distributed_as_far_as_they_go():
    few = system("lamina").build(setup("qwen3-235b-a22b", "4xh200+4xh20")).spec
    many = system("lamina").build(setup("qwen3-235b-a22b", "4xh200+8xh20")).spec
    assert (few.pools, many.pools) == (1, 8)


def test_transfers_depend_on_where_absorption_runs():
    batch = [1000]
    network = parse_network("fhbn")
    rate = 4 * network.bandwidth_bytes_per_s
    for absorb, query, output in (("model", 576, 512), ("attention", 192, 128)):
        of = setup("deepseek-v3", "8xh200:ep8+4xh200", absorb=absorb)
        moved = transfers(of, 8, np.array(batch))
        assert moved.q[0] - moved.latency == pytest.approx(2 * 128 * query * 1000 / rate)
        assert moved.out[0] - moved.latency == pytest.approx(2 * 128 * output * 1000 / rate)
        assert moved.kv[0] - moved.latency == pytest.approx(2 * 576 * 1000 / rate)


def test_attention_workers_that_absorb_hold_the_matrices_and_take_the_time():
    model, attention = (
        system("lamina").build(setup("deepseek-v3", "8xh200:ep8+4xh200", absorb=absorb)).spec
        for absorb in ("model", "attention")
    )
    stored = 2 * 61 * 128 * (128 + 128) * 512
    per_token = 61 * 576 * 2
    assert model.tokens_per_pool - attention.tokens_per_pool == pytest.approx(stored / per_token, abs=2)
    assert (attention.timing.attention_rows[8:] > 0).all()
    assert (attention.timing.mid_slice[8:] < model.timing.mid_slice[8:]).all()


@pytest.mark.parametrize(
    ("name", "vllm", "lamina"),
    [
        ("deepseek-v3", "8xh200:dp8ep8", "8xh200:dp8ep8+8xh20"),
        ("gpt-oss-120b", "2xh200", "1xh200+1xh20"),
        ("qwen3-235b-a22b", "4xh200", "2xh200+2xh20"),
    ],
)
def test_mixtures_of_experts_have_a_default_that_holds_them(name, vllm, lamina):
    shape = modelled(name)
    assert system("vllm").default_deployment(shape) == vllm
    assert system("lamina").default_deployment(shape) == lamina
    for each, text in (("vllm", vllm), ("lamina", lamina)):
        system(each).build(setup(name, text))


def test_what_no_two_nodes_hold_is_refused():
    with pytest.raises(UserError, match="model-does-not-fit"):
        of_today(modelled("kimi-k2@bf16"), 0.75)


def test_layouts_worth_trying_are_legal_and_without_stages():
    shape = modelled("qwen3-235b-a22b")
    result = worth_trying(shape)
    assert all(each.pp == 1 and each in shape.layouts(each.devices) for each in result)
    assert {each.devices for each in result} == {1, 2, 4, 8, 16}
    assert all(each.plain for each in worth_trying(modelled("llama3-70b")))
