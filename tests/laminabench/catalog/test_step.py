"""Steps of mixtures of experts, latent attention and windows: by hand, and as the tables compose."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from laminabench.catalog import step
from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import DISPATCH_BYTES
from laminabench.catalog.find_model import modelled
from laminabench.catalog.fitting import mixtures
from laminabench.catalog.hardware import device
from laminabench.catalog.importing.tables import tables_in
from laminabench.catalog.importing.vllm_mixtures import vllm_experts
from laminabench.catalog.layout import Layout, parse_layout
from laminabench.catalog.routers import router_seconds
from laminabench.catalog.step import decode_attention, model_step

H200 = device("h200")
SHEET, TODAY = load_costs("roofline"), load_costs("vllm-0.24")


def test_a_large_batch_reads_all_experts_once_and_computes_their_pairs():
    shape = modelled("mixtral-8x7b")
    result = model_step(SHEET, shape, H200, 1, [4096], "uniform")
    weights = 32 * 8 * 3 * 4096 * 14336
    memory = 2 * weights / 4.8e12
    # Two experts of eight for each row, and sixteen rows that tiles of each are padded by.
    compute = 6 * 32 * 4096 * 14336 * (2 * 4096 + 16 * 8) / 989e12
    assert float(result.experts_s[0]) == pytest.approx(np.hypot(memory, compute), rel=1e-6)


def test_few_rows_wake_few_experts_and_layouts_share_them_out():
    shape = modelled("qwen3-235b-a22b@bf16")
    one = model_step(SHEET, shape, H200, 8, [1], "uniform").experts_s[0]
    weights = 94 * 3 * 4096 * 1536 / 8 * 2
    assert float(one) == pytest.approx(8 * weights / 4.8e12, rel=0.02)
    ep = Layout(8, ep=8)
    spread, split = (model_step(SHEET, shape, H200, each, [512], "uniform").experts_s[0] for each in (ep, 8))
    assert float(spread) == pytest.approx(float(split), rel=1e-6)
    busiest = model_step(SHEET, shape, H200, ep, [4096]).experts_s[0]
    assert float(busiest) > 1.3 * float(model_step(SHEET, shape, H200, ep, [4096], "uniform").experts_s[0])


def test_data_parallel_groups_have_their_share_of_rows_and_exchange_tokens():
    shape = modelled("deepseek-v3")
    whole, shared = (model_step(SHEET, shape, H200, each, [64]) for each in (8, Layout(1, 8, 8)))
    # Eight times the attention weights each, for an eighth of the rows: reading them is what takes long.
    assert float(shared.gemm_s[0]) > 3 * float(whole.gemm_s[0])
    rows = 2 * 7168 * 64
    # All-gather and reduce-scatter of all rows in each layer with experts; nothing to sum up in the others.
    assert float(shared.allreduce_s[0]) == pytest.approx(58 * 2 * 7 / 8 * rows / 450e9)
    assert float(whole.allreduce_s[0]) == pytest.approx(61 * 2 * 2 * 7 / 8 * rows / 450e9)
    assert float(shared.absorb_s[0] + shared.expand_s[0]) > 0


def test_shared_experts_overlap_routed_ones_at_few_rows(monkeypatch):
    shape = modelled("kimi-k2.5")
    alongside = model_step(SHEET, shape, H200, 8, [8, 256, 257])
    monkeypatch.setattr(step, "OVERLAPPED_ROWS", 0)
    after = model_step(SHEET, shape, H200, 8, [8, 256, 257])
    shared = 60 * 3 * 7168 * 256 * 2 / 4.8e12
    saved = after.total_s - alongside.total_s
    assert saved == pytest.approx([shared, saved[1], 0], rel=0.05)
    assert saved[1] > shared
    assert alongside.experts_s.tolist() == after.experts_s.tolist()


def test_a_norm_over_all_heads_sums_up_once_more():
    shape = modelled("minimax-m2.5")
    result = model_step(SHEET, shape, H200, Layout(8, ep=8), [64]).allreduce_s[0]
    assert float(result) == pytest.approx(62 * (2 * 2 * 3072 + 8) * 64 * 2 * 7 / 8 / 450e9)
    # Its scales are as many as there are numbers to a query and a key.
    assert shape.weights().biases_and_norms - 62 * 2 * 3072 - 3072 == 62 * (48 + 8) * 128


def test_windows_attend_to_no_more_than_they_are_long():
    shape = modelled("gpt-oss-120b")
    result = decode_attention(SHEET, shape, H200, 1, np.array([8.0]))
    per_token = 2 * 8 * 64 * 2 / 4.8e12
    assert result.per_token_s[0] == pytest.approx(per_token / 2)
    assert result.windowed_per_token_s[0] == pytest.approx(per_token / 2)
    assert (
        decode_attention(SHEET, modelled("mixtral-8x7b"), H200, 1, np.array([8.0])).windowed_per_token_s[0]
        == 0
    )


def test_latent_attention_reads_one_vector_or_computes_with_all_heads():
    result = decode_attention(SHEET, modelled("kimi-k2"), H200, 8, np.array([8.0]))
    assert result.per_token_s[0] == pytest.approx(576 * 2 / 4.8e12)
    h20 = decode_attention(SHEET, modelled("deepseek-v3"), device("h20"), 1, np.array([8.0]))
    assert h20.per_token_s[0] == pytest.approx(2 * 128 * (576 + 512) / 148e12)


@pytest.mark.parametrize(
    ("name", "on", "layout", "milliseconds"),
    [  # kernels alone at a context of 4096, composed of the same tables by a program of their own
        ("qwen3-235b-a22b", "h200", Layout(8, ep=8), (13.1, 20.9, 34.2)),
        ("qwen3-235b-a22b@bf16", "h200", Layout(8), (12.8, 24.5, 41.3)),
        ("deepseek-v3", "h200", Layout(8), (17.4, 33.7, 56.2)),
        ("gpt-oss-120b", "h100", Layout(1), (9.7, 25.0, 42.2)),
        ("gpt-oss-120b", "h100", Layout(2), (6.5, 14.8, 24.9)),
        ("mixtral-8x7b", "h200", Layout(2), (13.5, 19.4, 32.7)),
    ],
)
def test_steps_are_what_the_tables_compose_to(name, on, layout, milliseconds, monkeypatch):
    monkeypatch.setattr(step, "OVERLAPPED_ROWS", 0)  # one kernel after the other, as that program has them
    shape, batch = modelled(name), np.array([8.0, 64.0, 256.0])
    attention = decode_attention(TODAY, shape, device(on), layout.tp, batch)
    window = min(4096, shape.window.tokens) if shape.window else 0
    layer = (
        attention.fixed_s
        + attention.per_token_s * batch * 4096
        + attention.windowed_per_token_s * batch * window
    )
    result = 1e3 * (model_step(TODAY, shape, device(on), layout, batch).total_s + shape.layers * layer)
    assert result == pytest.approx(milliseconds, rel=0.045)
    assert np.abs(result / milliseconds - 1).mean() < 0.03


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "on", "splits"),
    [
        ("qwen3-235b-a22b", "h200", [Layout(8, ep=8), Layout(4)]),
        ("qwen3-235b-a22b@bf16", "h100", [Layout(8)]),
        ("deepseek-v3", "h200", [Layout(8), Layout(8, ep=8)]),
        ("mixtral-8x7b", "h200", [Layout(2), Layout(4)]),
        ("mixtral-8x7b", "h100", [Layout(2), Layout(4)]),
        ("qwen3-30b-a3b", "h100", [Layout(1), Layout(2)]),
        ("gpt-oss-120b", "h100", [Layout(1), Layout(2)]),
        ("gpt-oss-120b", "h200", [Layout(1), Layout(2)]),
        ("qwen3-235b-a22b", "b200", [Layout(4), Layout(8, ep=8)]),
    ],
)
def test_steps_of_a_model_that_no_table_has(name, on, splits, real_profiles, monkeypatch):
    """Without its matrices and its experts, and with a fit that has not seen these."""
    monkeypatch.setattr(step, "OVERLAPPED_ROWS", 0)
    shape, there, batch = modelled(name), device(on), np.array([8.0, 64.0, 256.0])
    known = (shape.hidden, shape.experts.intermediate, shape.experts.top_k, shape.experts.count)
    [tables] = tables_in(real_profiles / "aiconfigurator" / f"{on}_sxm", {})
    samples = vllm_experts(tables.newest("moe", "moe"), shape.expert_dtype)
    others = samples.where(~mixtures.of_model(samples, known))
    assert 0 < len(others) < len(samples)
    fitted = mixtures.experts(there, shape.expert_dtype, others, "")
    own = {(each.gemm.n, each.gemm.k) for split in splits for each in shape.products(split)}
    measured = msgspec.structs.replace(
        TODAY.measured,
        gemm={key: curve for key, curve in TODAY.measured.gemm.items() if key[2:] not in own},
        experts={key: curve for key, curve in TODAY.measured.experts.items() if key[2:6] != known},
    )
    unseen = msgspec.structs.replace(
        TODAY, measured=measured, experts={**TODAY.experts, (on, shape.expert_dtype): fitted}
    )
    errors = []
    for split in splits:
        attention = decode_attention(TODAY, shape, there, split.tp, batch)
        layer = attention.fixed_s + attention.per_token_s * batch * 4096
        result, true = (
            model_step(costs, shape, there, split, batch).total_s + shape.layers * layer
            for costs in (unseen, TODAY)
        )
        assert (result != true).all()
        errors += list(np.abs(result / true - 1))
    assert np.mean(errors) < 0.05


def test_a_device_at_another_price_is_measured_all_the_same():
    cheap, fast = replace(H200, override_usd_per_hour=1.0), replace(H200, bandwidth_bytes_per_s=9.6e12)
    assert TODAY.as_measured(cheap) is cheap
    assert TODAY.as_measured(fast) == H200
    shape = modelled("mixtral-8x7b")
    here, there, faster = (
        model_step(TODAY, shape, each, 2, [64]).experts_s[0] for each in (H200, cheap, fast)
    )
    assert here == there > faster


def test_layouts_that_send_tokens_have_masked_experts_and_bytes_of_the_busiest_rank():
    shape, gb200 = modelled("qwen3-235b-a22b"), device("gb200")
    layout = Layout(1, 16, 16)
    uniform, skewed = (
        model_step(TODAY, shape, gb200, layout, [16 * 96], routing) for routing in ("uniform", "skewed")
    )
    masked = TODAY.masked_cost(gb200, "fp8_block")
    each = masked.seconds(gb200, 4096, 1536, "fp8_block", 8, 8, 96 * 8)
    assert float(uniform.experts_s[0]) == pytest.approx(94 * float(each), rel=0.01)
    exchange = sum(
        float(cost.seconds(96 * 8 * DISPATCH_BYTES[op](4096) * (15 / 16) / (3 / 4), 128))
        for op in DISPATCH_BYTES
        for cost in [TODAY.dispatch_cost(gb200, op, 16)]
    )
    assert float(uniform.allreduce_s[0]) == pytest.approx(94 * exchange, rel=0.01)
    assert float(skewed.allreduce_s[0]) > 1.1 * float(uniform.allreduce_s[0])


def test_within_a_node_tokens_are_gathered_unless_the_layout_sends_them():
    shape, gb200 = modelled("qwen3-235b-a22b"), device("gb200")
    assert not parse_layout("dp4ep4", 4).dispatches
    assert parse_layout("dp4ep4ll", 4).dispatches
    gathered, sent = (
        model_step(TODAY, shape, gb200, parse_layout(text, 4), [4 * 64]) for text in ("dp4ep4", "dp4ep4ll")
    )
    assert float(sent.experts_s[0]) < 0.7 * float(gathered.experts_s[0])


@pytest.mark.parametrize(
    ("on", "ranks", "share", "rate"),
    # Half of H200's tokens stay on their node; GB200's 16 are on one, as 8 of B200 are.
    [("h200", 16, 1 / 2, 50e9), ("gb200", 16, 15 / 16, 900e9), ("b200", 8, 7 / 8, 900e9)],
)
def test_roofline_prices_the_links_that_tokens_take(on: str, ranks: int, share: float, rate: float) -> None:
    shape, layout = modelled("qwen3-235b-a22b"), Layout(1, ranks, ranks, low_latency=True)
    sent = 128 * 8 * (DISPATCH_BYTES["dispatch"](4096) + DISPATCH_BYTES["combine"](4096))
    result = model_step(SHEET, shape, device(on), layout, [ranks * 128], "uniform").allreduce_s[0]
    assert float(result) == pytest.approx(94 * share * sent / rate, rel=1e-6)
    for op in DISPATCH_BYTES:
        measured = TODAY.dispatch_cost(device(on), op, ranks)
        of_bytes = measured.per_byte_s * measured.share(ranks)
        assert SHEET.dispatch_cost(device(on), op, ranks).per_byte_s < of_bytes


@pytest.mark.parametrize(
    ("dtype", "rows", "us"),
    [("fp32", 1, 3.75), ("fp32", 128, 34.5), ("fp32", 4096, 131.5), ("tf32", 128, 10.0)],
)
def test_routers_in_fp32_take_what_was_measured_by_size(dtype: str, rows: int, us: float) -> None:
    (result,) = 1e6 * router_seconds(dtype, np.array([rows], np.float64), 256, 3072)
    assert result == pytest.approx(us, rel=1e-3)


def test_a_step_of_minimax_is_longer_by_its_routers() -> None:
    shape, b200 = modelled("minimax-m2.5"), device("b200")
    steps = [
        model_step(TODAY, replace(shape, router_dtype=dtype), b200, 4, 64).gemm_s
        for dtype in ("fp32", "tf32", "")
    ]
    assert steps[0] > steps[1] > steps[2]
    assert steps[0] - steps[1] == pytest.approx(62 * (31.5e-6 - 0.5 * 18.71e-6), rel=1e-2)
