"""Cost formulas, by hand and by property; the committed sets and their honesty."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from laminabench.catalog.cost_file import (
    COST_SETS,
    DEFAULT_COSTS,
    MEASURED_IN,
    load_costs,
    sections,
    to_toml,
    usual_costs,
    write_costs,
)
from laminabench.catalog.cost_keys import (
    AttentionKey,
    CollectiveKey,
    DispatchKey,
    DtypeKey,
    ExpertsKey,
    LatentKey,
    LinesKey,
)
from laminabench.catalog.cost_terms import (
    DISPATCH_BYTES,
    AttentionCost,
    BatchedCost,
    CollectiveCost,
    DispatchCost,
    ExpertCost,
    GemmCost,
    LatentCost,
    LatentPromptCost,
    MaskedExpertCost,
    Origin,
    PromptAttentionCost,
    rounded_max,
)
from laminabench.catalog.deployment import devices_named
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device, load_devices
from laminabench.catalog.kernels import with_kernels
from laminabench.catalog.models import DTYPE_BYTES
from laminabench.catalog.provenance import provenance, step_sources
from laminabench.catalog.step import model_step, model_step_seconds
from laminabench.papers.v1.parts import BATCHES, TABLE3
from laminabench.util.errors import UserError

MODELS = ("llama-33b", "llama3-70b", "opt-175b", "qwen3-8b")
sizes = st.integers(1, 65536)


def test_committed_gemm_errors_on_unseen_layers_are_within_ten_percent():
    for name, measured in itertools.product(("vllm-0.14", "vidur-2024"), ("h100", "a100-80g-sxm")):
        errors = load_costs(name).gemm[DtypeKey(measured, "bf16")].origin.errors
        assert errors["held_out_layer"] <= 10
        assert errors.get("held_out_layer_worst_degree", 0) <= 10
        assert errors["op"] <= 11


def test_the_default_set_is_the_newest_that_measured_the_devices():
    newest, older = ("2xH200:dp2+4xh20", "4xh100,1xh20", "None", "1xh100+1xrtx-4090"), ("1xrtx-4090",)
    for named in (*newest, *older):
        usual = usual_costs(model("llama3-70b"), devices_named(named))
        assert usual == (DEFAULT_COSTS if named in newest else "vllm-0.19")
        assert usual_costs(model("gpt-oss-120b"), devices_named(named)) == DEFAULT_COSTS
    for name, measured in MEASURED_IN.items():
        assert any(key.device == name for key in load_costs(measured).gemm)


def test_every_set_covers_every_device_and_every_number_has_a_source():
    # A step over two needs an all-reduce, which vllm-0.19 has of one device alone; Table 3 is of one.
    of_one = {"vllm-0.19": "rtx-pro-6000", "v1-table3": "a100-40g"}
    shape = model("llama-7b")
    for name, on in itertools.product(COST_SETS, load_devices().keys() - {"cpu", "h2m2"}):
        costs, result = load_costs(name), device(on)
        if on != of_one.get(name, on):
            with pytest.raises(UserError, match="costs-no-coefficients"):
                model_step(costs, shape, result, 2, [1])
            continue
        step = model_step(costs, shape, result, 2, [0, 1, 64])
        assert step.total_s[0] == 0
        assert 0 < step.total_s[1] <= step.total_s[2] < 10
        assert costs.attention_seconds(shape, result, 64 * 1000, 64) > 0
        for row in provenance(costs, result, split=2):
            assert row["source"]
            assert row["kind"] in {"fitted", "scaled", "published", "assumed", "ideal"}
            assert row["coefficients"]


def test_a_core_has_the_ideal_set_only_and_a_board_has_none():
    core, shape = device("cpu"), model("llama-mini")
    # 0.5 GB of weights at 36.9 GB/s, less the embedding, of which one row is read.
    step = model_step(load_costs("roofline"), shape, core, 1, [1])
    assert float(step.total_s[0]) == pytest.approx((0.4927 - 0.0655) / 36.9, rel=0.01)
    for name in COST_SETS:
        with pytest.raises(UserError, match="costs-device-is-a-board"):
            load_costs(name).attention_terms(shape, device("h2m2"))
        if name != "roofline":
            with pytest.raises(UserError, match="costs-no-coefficients"):
                model_step(load_costs(name), shape, core, 1, [1])


@pytest.mark.parametrize(("name", "count"), TABLE3)
def test_v1_table3_needs_the_bandwidths_that_table_3_prints(name, count):
    costs, shape, on = load_costs("v1-table3"), model(name), device("a100-40g")
    seconds = model_step_seconds(costs, shape, on, count, BATCHES)
    sent = 4 * 2 * shape.hidden * shape.layers * np.array(BATCHES)
    assert sent / seconds / 1e9 == pytest.approx(TABLE3[name, count], rel=1e-3)
    # Below the first batch only small operators take less.
    small = model_step(costs, shape, on, count, [1, BATCHES[0]])
    assert small.gemm_s[0] == small.gemm_s[1]
    assert 0.9 * seconds[0] < small.total_s[0] < seconds[0]
    sources = step_sources(costs, shape, on, count)
    gemms = [row for row in sources if "x" in row["term"]]
    assert len(gemms) == 5
    assert {(row["priced_by"], row["kind"]) for row in gemms} == {("derived times", "derived")}


def test_h20_is_h100_s_efficiencies_but_for_attention_and_labelled():
    costs, h20, h100 = load_costs("vllm-0.14"), device("h20"), device("h100")
    rows = {row["term"]: row for row in provenance(costs, h20, split=4)}
    for term in ("gemm", "allreduce over 4", "elementwise"):
        assert rows[term]["kind"] == "assumed"
        assert rows[term]["borrowed_from"] == "h100"
        assert "no measurement of this on an H20" in rows[term]["reason"]
    assert (rows["attention"]["kind"], rows["attention"]["kernel"]) == ("fitted", "flashinfer")
    assert rows["host"]["kind"] == "assumed"
    assert costs.host.seconds(100) == pytest.approx(4e-3)
    assert {row["kind"] for row in provenance(costs, h100)} == {"fitted", "assumed"}
    ours, theirs = (costs.attention_terms(model("llama3-70b"), each) for each in (h20, h100))
    assert ours.per_kv_token_s / theirs.per_kv_token_s == pytest.approx(0.9391 * 3.35 / (0.85 * 4.0))
    assert ours.fixed_s == theirs.fixed_s


def test_the_roofline_is_the_data_sheet():
    costs, h100, shape = load_costs("roofline"), device("h100"), model("llama3-70b")
    assert costs.gemm_seconds(h100, 8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 989e12)
    assert costs.gemm_seconds(h100, 1, 8192, 8192) == pytest.approx(2 * (8192**2 + 2 * 8192) / 3.35e12)
    tokens = 20 * 4096
    assert costs.attention_seconds(shape, h100, tokens, 20) == pytest.approx(
        tokens * shape.kv_bytes_per_token / 3.35e12
    )
    assert costs.allreduce_seconds(h100, 4, 1e9) == pytest.approx(1.5 * 1e9 / 450e9)
    assert costs.host.seconds(100) == 0
    # One token reads the weights once; activations add little.
    weights = shape.weight_bytes_per_worker(2) - 128256 * 8192 * 2 / 2
    assert model_step(costs, shape, h100, 2, 1).total_s == pytest.approx(weights / 3.35e12, rel=0.01)


@pytest.mark.parametrize("name", ["vllm-0.14", "vidur-2024"])
@given(m=sizes, n=sizes, k=sizes, on=st.sampled_from(["h100", "h20", "a100-80g-sxm", "arc-a770"]))
def test_nothing_beats_the_roofline_and_more_work_takes_no_less_time(name, m, n, k, on):
    costs, ideal, result = load_costs(name), load_costs("roofline"), device(on)
    took = costs.gemm_seconds(result, m, n, k)
    assert took > ideal.gemm_seconds(result, m, n, k)
    assert costs.gemm_seconds(result, m + 1, n, k) >= took
    assert costs.gemm_seconds(result, m, n + 1, k) >= took
    assert costs.gemm_seconds(result, m, n, k + 1) >= took


@given(a=st.floats(1e-12, 1e3), b=st.floats(1e-12, 1e3), p=st.floats(1, 50) | st.just(float("inf")))
def test_the_rounded_maximum_lies_between_the_maximum_and_the_sum(a, b, p):
    value = rounded_max(np.float64(a), np.float64(b), p)
    assert max(a, b) <= value * (1 + 1e-12)
    assert value <= (a + b) * (1 + 1e-12)
    assert value == rounded_max(np.float64(b), np.float64(a), p)


def test_a_gemm_by_hand():
    cost = GemmCost(1e-6, 1e-9, 0.5, 0.25, 2.0, Origin("assumed", "a test"), per_input_s=1e-12)
    compute = 2 * 100 * 200 * 300 / (0.5 * 989e12)
    memory = 2 * (300 * 200 + 100 * 300 + 100 * 200) / (0.25 * 3.35e12)
    expected = 1e-6 + 300e-9 + 30000e-12 + np.hypot(compute, memory)
    assert cost.seconds(device("h100"), 100, 200, 300) == pytest.approx(expected)


def test_fp8_reads_half_the_bytes():
    h100 = device("h100")
    costs = load_costs("vllm-0.14")
    assert costs.gemm_seconds(h100, 16, 16384, 16384, "fp8") < costs.gemm_seconds(h100, 16, 16384, 16384)
    with pytest.raises(UserError, match="costs-no-coefficients"):
        costs.gemm_seconds(device("a100-80g"), 16, 1024, 1024, "fp8")


# What was measured is a little faster here and there for one row more.
@pytest.mark.long(but=["vllm-0.14-llama3-70b", "roofline-opt-175b"])
@pytest.mark.parametrize("shape", MODELS)
@pytest.mark.parametrize("name", sorted({*COST_SETS} - {"vllm-0.19", "vllm-0.24", "v1-table3"}))
def test_the_table_is_the_step_and_its_parts_add_up(name, shape):
    costs, h100, result = load_costs(name), device("h100"), model(shape)
    table = model_step_seconds(costs, result, h100, 4, np.arange(301))
    assert table.shape == (301,)
    assert table.dtype == np.float64
    assert table[0] == 0
    assert np.all(np.diff(table) > 0)
    for batch in (1, 77, 300):
        gemms = sum(costs.gemm_seconds(h100, batch, gemm.n, gemm.k) for gemm in result.layer_gemms(4))
        kernels, elements = result.elementwise(4)
        small = costs.elementwise.get("h100", costs.elementwise.get("any")).seconds(
            h100, kernels, 2 * elements * batch
        )
        reduce = 2 * costs.allreduce_seconds(h100, 4, 2 * result.hidden * batch)
        head = result.lm_head_gemm(4)
        expected = result.layers * (gemms + small + reduce) + costs.gemm_seconds(h100, batch, head.n, head.k)
        assert table[batch] == pytest.approx(float(expected))


def test_a_degree_that_was_not_measured_uses_the_next_one():
    costs, h100 = load_costs("vllm-0.14"), device("h100")
    four = costs.allreduce["h100", 4]
    assert costs.allreduce_seconds(h100, 3, 3e6) == pytest.approx(
        four.latency_s + 2 * 2 / 3 * 3e6 / (four.link_efficiency * 450e9)
    )
    assert costs.allreduce_seconds(h100, 16, 1e6) > 0
    # One device needs none.
    assert np.all(model_step(costs, model("llama3-8b"), h100, 1, [1, 2]).allreduce_s == 0)


@given(
    tokens=st.integers(1, 10**7),
    batch=st.integers(1, 4096),
    workers=st.integers(1, 8),
    on=st.sampled_from(MODELS),
)
@settings(max_examples=50)
def test_attention_is_the_sum_of_its_terms(tokens, batch, workers, on):
    costs, h20, result = load_costs("vllm-0.14"), device("h20"), model(on)
    fixed, request, token, mean = costs.attention_terms(result, h20, workers)
    expected = fixed + request * batch + token * tokens + mean * tokens / batch
    assert costs.attention_seconds(result, h20, tokens, batch, workers) == pytest.approx(expected)
    assert costs.attention_seconds(result, h20, 0, 0, workers) == 0


def test_an_uneven_head_split_costs_what_its_fullest_worker_costs():
    costs, h20, result = load_costs("vllm-0.14"), device("h20"), model("llama3-70b")
    assert costs.attention_terms(result, h20, 6) == costs.attention_terms(result, h20, 4)
    # Tensor parallelism beyond the KV heads copies them: the bytes stay, the query heads halve.
    eight, sixteen = (costs.attention_terms(result, h20, workers) for workers in (8, 16))
    assert sixteen.per_kv_token_s == eight.per_kv_token_s
    assert sixteen.per_request_s == pytest.approx(eight.per_request_s / 2)


@pytest.mark.parametrize("context", [4096, 8192])
def test_attention_uses_over_70_percent_of_the_bandwidth_at_20_requests_as_v2_says(context):
    shape, h100 = model("llama3-70b"), device("h100")
    took = load_costs("vllm-0.14").attention_seconds(shape, h100, 20 * context, 20)
    assert 20 * context * shape.kv_bytes_per_token / took / h100.bandwidth_bytes_per_s > 0.7


def test_a_set_is_written_and_read_back(tmp_path):
    path = tmp_path / "mine.toml"
    for name in ("vllm-0.14", "vidur-2024"):
        costs = load_costs(name)
        write_costs(costs, path, "a comment\nof two lines")
        assert load_costs(str(path)) == costs
        assert to_toml(load_costs(str(path))) == to_toml(costs)


def test_a_broken_file_is_refused(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text('name = "mine"\n')
    with pytest.raises(UserError, match="costs-file-incomplete"):
        load_costs(str(path))
    path.write_text("name = ")
    with pytest.raises(UserError, match="catalogue-file-not-toml"):
        load_costs(str(path))
    with pytest.raises(UserError, match="catalogue-file-unreadable"):
        load_costs(str(tmp_path / "absent.toml"))
    with pytest.raises(UserError, match="catalogue-unknown-name"):
        load_costs("vllm-0.1")


def test_a_set_without_the_device_says_what_it_has(tmp_path):
    path = tmp_path / "mine.toml"
    text = to_toml(load_costs("vllm-0.14"))
    path.write_text("\n\n".join(part for part in text.split("\n\n") if "a100" not in part.split("\n")[0]))
    with pytest.raises(UserError, match="costs-no-coefficients"):
        model_step_seconds(load_costs(str(path)), model("llama-7b"), device("rtx-3090"), 1, 1)


# Mixtures of experts, latent KV

MADE_UP = Origin("assumed", "made up", "1-8", {"op": 1.5}, 3)


def test_experts_by_hand():
    cost, h200 = ExpertCost(30e-6, 0.1e-6, 0.8, 0.5, 2.0, MADE_UP), device("h200")
    hidden, inter, active, pairs, rows = 4096, 1536, 100, 512, 64
    memory = 3 * hidden * inter * active / (0.8 * 4800e9)
    compute = 6 * hidden * inter * (pairs + 16 * active) / (0.5 * 1979e12)
    moved = 4 * hidden * pairs + 6 * inter * pairs + 4 * hidden * rows
    by_hand = 30e-6 + 10e-6 + (memory**2 + compute**2) ** 0.5 + 2 * moved / 4800e9
    result = cost.seconds(h200, hidden, inter, "fp8_block", [active, 0], [pairs, 0], [rows, 0])
    assert result == pytest.approx([by_hand, 30e-6])


def test_four_bits_are_read_as_such_and_computed_in_the_units_there_are():
    cost = ExpertCost(0, 0, 1, 1, 0, MADE_UP)
    h200, b200 = device("h200"), device("b200")
    few, many = (1, 1, 1), (1, 1_000_000, 1)
    bf16, mxfp4 = (cost.seconds(h200, 4096, 1536, dtype, *few) for dtype in ("bf16", "mxfp4"))
    assert mxfp4 / bf16 == pytest.approx(0.53125 / 2, rel=0.05)
    bf16, mxfp4 = (cost.seconds(h200, 4096, 1536, dtype, *many) for dtype in ("bf16", "mxfp4"))
    assert mxfp4 / bf16 == pytest.approx(1, rel=1e-3)
    assert b200.flops_for("nvfp4") == 4 * b200.flops_for("int4") == 2 * b200.flops_for("fp8_block")
    with pytest.raises(UserError, match="hardware-no-peak-rate"):
        h200.flops_for("nvfp4")


def test_a_latent_is_read_once_and_computed_with_by_every_head():
    cost, h200 = LatentCost(10e-6, 0.9, 0.75, MADE_UP), device("h200")
    read = 576 * 2 / (0.9 * 4800e9)
    assert cost.per_token_s(h200, 8, "bf16") == cost.per_token_s(h200, 64, "bf16") == pytest.approx(read)
    computed = 2 * 128 * 1088 / (0.75 * 989e12)
    assert (
        cost.per_token_s(h200, 128, "bf16") == cost.per_token_s(h200, 128, "fp8") == pytest.approx(computed)
    )
    moved = 4 * 2 * 8 * 1088 / (0.9 * 4800e9)  # queries and outputs of four requests
    assert cost.terms(h200, 8, "bf16").seconds(1000, 4) == pytest.approx(10e-6 + 1000 * read + moved)
    prompts = LatentPromptCost(10e-6, 0.5, MADE_UP).terms(h200, 16)
    assert prompts.seconds(8, 36) == pytest.approx(10e-6 + 36 * 2 * 16 * 320 / (0.5 * 989e12))


def test_a_product_for_each_head_and_what_ranks_exchange():
    h200 = device("h200")
    result = BatchedCost(5e-6, 0.5, 0.8, MADE_UP).seconds(h200, 16, [0, 64], 512, 128)
    weights = 2 * 16 * 512 * 128 / (0.8 * 4800e9)
    memory = weights + 2 * 16 * 64 * (512 + 128) / (0.8 * 4800e9)
    compute = 2 * 16 * 64 * 512 * 128 / (0.5 * 989e12)
    assert result == pytest.approx([5e-6 + weights, 5e-6 + (memory**2 + compute**2) ** 0.5])
    gather = CollectiveCost(10e-6, 0.5, MADE_UP)
    assert gather.seconds(h200, 8, 8e6) == pytest.approx(10e-6 + 7e6 / 225e9)
    assert DISPATCH_BYTES["dispatch"](2048) == 2128
    assert DISPATCH_BYTES["combine"](2048) == 4096
    assert DispatchCost(10e-6, 5e-12, MADE_UP).seconds([0, 1e6]) == pytest.approx([10e-6, 15e-6])
    counted = DispatchCost(10e-6, 5e-12, MADE_UP, ranks=4, per_expert_s=20e-9)
    assert counted.seconds(1e6, 128) == pytest.approx(10e-6 + 128 * 20e-9 + 5e-6)
    # Of 16 ranks 15 are others, of 4 it is 3.
    assert counted.share(16) == pytest.approx((15 / 16) / (3 / 4))
    assert DispatchCost(10e-6, 5e-12, MADE_UP).share(16) == 1


def test_masked_experts_look_at_all_of_a_rank_and_read_the_active_ones():
    gb200 = device("gb200")
    cost = MaskedExpertCost(20e-6, 0.5e-6, 0.8, 0.5, MADE_UP)
    weights = 3 * 4096 * 1536 * 6 / (0.8 * 8e12)
    compute = 6 * 4096 * 1536 * 256 / (0.5 * 5e15)
    result = cost.seconds(gb200, 4096, 1536, "fp8_block", 8, 6, 256)
    assert result == pytest.approx(20e-6 + 8 * 0.5e-6 + (weights**2 + compute**2) ** 0.5)


def _with_every_term():
    attention, prompts = (
        AttentionCost(9e-6, 1e-9, 0.5, 0.1, MADE_UP),
        PromptAttentionCost(9e-6, 1e-9, 0.5, MADE_UP),
    )
    return replace(
        load_costs("vllm-0.14"),
        attention_of={AttentionKey("h100", 64, "bf16", 128): attention},
        prompt_attention_of={AttentionKey("h100", 64, "bf16", 128): prompts},
        experts={DtypeKey("h100", "fp8_block"): ExpertCost(3e-5, 8.5e-8, 0.9, 0.45, 3.7, MADE_UP)},
        latent={DtypeKey("h100", "fp8"): LatentCost(9e-6, 0.6, 0.7, MADE_UP)},
        latent_prompts={"h100": LatentPromptCost(9e-6, 0.6, MADE_UP)},
        batched={"h100": BatchedCost(5e-6, 0.6, 0.7, MADE_UP)},
        collectives={
            CollectiveKey("h100", "alltoall", over): CollectiveCost(5e-6, 0.6, MADE_UP) for over in (2, 8)
        },
        dispatch={
            DispatchKey("h100", "combine", nodes): DispatchCost(nodes * 1e-5, 5e-12, MADE_UP)
            for nodes in (1, 2)
        },
    )


def test_every_term_is_written_and_read_back(tmp_path):
    costs, path = with_kernels(_with_every_term()), tmp_path / "mine.toml"
    write_costs(costs, path)
    result = load_costs(str(path))
    assert to_toml(result) == to_toml(costs)
    assert all(getattr(result, name).keys() == getattr(costs, name).keys() for name in sections())
    assert "[attention_of.h100.size64.bf16.window128]" in path.read_text()
    path.write_text(path.read_text().replace("over8", "overall"))
    with pytest.raises(UserError, match="costs-file-incomplete"):
        load_costs(str(path))


def test_terms_are_looked_up_and_what_is_lacking_is_named():
    costs, h100, h20, h800 = _with_every_term(), device("h100"), device("h20"), device("h800")
    assert costs.attention_cost(h800, 64, "bfloat16", 128) is costs.attention_of["h100", 64, "bf16", 128]
    assert costs.attention_cost(h100, 64) is costs.attention["h100"]
    assert costs.prompt_attention_cost(h100, 64, window=128).overhead_s == 9e-6
    assert costs.prompt_attention_cost(h100) is costs.prompt_attention["h100"]
    assert costs.collective_cost(h100, "alltoall", 4) is costs.collectives["h100", "alltoall", 8]
    assert costs.dispatch_cost(h100, "combine", 64).latency_s == 2e-5
    assert costs.expert_cost(h20, "fp8_block").per_expert_s == 8.5e-8
    with pytest.raises(UserError, match="it has fp8_block"):
        costs.expert_cost(h100, "bf16")
    with pytest.raises(UserError, match="costs-no-coefficients"):
        costs.collective_cost(h100, "all_gather", 2)
    with pytest.raises(UserError, match="costs-no-coefficients"):
        costs.latent_cost(device("a100-80g-sxm"))


def test_the_roofline_has_experts_and_latent_kv_of_every_device():
    costs, b200 = load_costs("roofline"), device("b200")
    nvfp4 = costs.expert_cost(b200, "nvfp4").seconds(b200, 7168, 2048, "nvfp4", 256, 0, 0)
    assert nvfp4 == pytest.approx(3 * 7168 * 2048 * 256 * 0.5625 / 8e12, rel=0.01)
    assert costs.latent_cost(b200).overhead_s == costs.latent_prompt_cost(b200).overhead_s == 0
    assert costs.batched_cost(b200).flops_efficiency == 1
    assert costs.collective_cost(b200, "all_gather", 8).latency_s == 0


@pytest.mark.parametrize("on", ["h100", "h200", "b200"])
def test_the_set_of_vllm_0_24_has_experts_and_latent_kv_of(on):
    costs, result = load_costs("vllm-0.24"), device(on)
    for dtype in ("bf16", "fp8_block", "mxfp4", "int4"):
        cost = costs.expert_cost(result, dtype)
        # The experts of DeepSeek-V3 on 8 devices: all weights are read, at no more than the bandwidth.
        seconds = float(cost.seconds(result, 7168, 256, dtype, 256, 512, 64))
        assert 0.3 < 3 * 7168 * 256 * 256 * DTYPE_BYTES[dtype] / seconds / result.bandwidth_bytes_per_s < 1
    errors = costs.expert_cost(result, "fp8_block").origin.errors
    assert errors["op"] <= errors["held_out_op"] * 1.05
    assert errors["held_out_op"] < 12
    assert costs.expert_cost(result, "fp8").origin.kind == ("fitted" if on == "b200" else "assumed")
    curve = costs.measured.experts[ExpertsKey(on, "fp8_block", 7168, 2048, 8, 256, 8, 1)]
    formula = costs.expert_cost(result, "fp8_block").seconds(result, 7168, 256, "fp8_block", 207, 1024, 128)
    assert float(curve.at(128)) == pytest.approx(float(formula), rel=0.2)
    for kv_dtype in ("bf16", "fp8"):
        lines, cost = costs.measured.latent[LatentKey(on, 16, kv_dtype)], costs.latent_cost(result, kv_dtype)
        of_formula = float(cost.terms(result, 16, kv_dtype).seconds(64 * 8192, 64))
        assert float(lines.seconds(64 * 8192, 64)) == pytest.approx(of_formula, rel=0.25)
    assert costs.attention_cost(result, 64, "bf16", 128) is not costs.attention_cost(result)
    window, whole = (costs.measured.lines[LinesKey(on, 8, 1, 64, "bf16", each)] for each in (128, 0))
    assert float(window.seconds(32 * 128, 32)) < float(whole.seconds(32 * 8192, 32))
    assert 5e-6 < costs.collective_cost(result, "all_gather", 8).latency_s < 3e-5
    assert costs.dispatch_cost(result, "combine", 8).per_byte_s > 0
