"""Kernels of split systems: products without quantisation, fused experts, and what sends by itself."""

from __future__ import annotations

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.layout import Layout
from laminabench.catalog.models import DTYPE_BYTES
from laminabench.catalog.split_kernels import ExpertKernel, split_kernels, with_split_products
from laminabench.catalog.step import model_step
from laminabench.util.errors import UserError

COSTS, GB200 = load_costs("vllm-0.24"), device("gb200")
QWEN = model("qwen3-235b-a22b")
RANKS = Layout(1, dp=4, ep=4, low_latency=True)


def test_products_take_what_they_took_where_activations_are_quantised_already() -> None:
    """TensorRT-LLM's kernels at 3 rows, where the split system measured 12.3 and 14.4 us."""
    fused = with_split_products(COSTS, GB200, split_kernels(GB200), None, 6, QWEN.hidden)
    for (n, k), measured in (((9216, 4096), 12.34e-6), ((4096, 8192), 14.35e-6)):
        with_quantisation = COSTS.gemm_seconds(GB200, 3, n, k, "fp8_block")
        without = fused.gemm_seconds(GB200, 3, n, k, "fp8_block")
        assert without == pytest.approx(measured, rel=0.1)
        assert without < 0.7 * with_quantisation


@pytest.mark.parametrize(("kernel", "most"), [("deepgemm-masked", 1.0), ("megamoe-fp8", 0.0)])
def test_fused_experts_exchange_tokens_themselves(kernel: ExpertKernel, most: float) -> None:
    fused = with_split_products(COSTS, GB200, split_kernels(GB200), kernel, 6, QWEN.hidden)
    before = model_step(COSTS, QWEN, GB200, RANKS, 12).allreduce_s
    after = model_step(fused, QWEN, GB200, RANKS, 12).allreduce_s
    assert after == pytest.approx(most * before)


def test_fused_experts_by_hand() -> None:
    """71.9 us at a width of 7,168, and the weights of a rank's 32 experts at 3/4 of the bandwidth."""
    fused = with_split_products(COSTS, GB200, split_kernels(GB200), "megamoe-fp8", 6, QWEN.hidden)
    weights = 32 * 3 * 4096 * 1536 / (0.75 * GB200.bandwidth_bytes_per_s)
    computed = 6 * 4096 * 1536 * 2 * 600 / (0.392 * GB200.flops_for("fp8"))
    got = model_step(fused, QWEN, GB200, RANKS, 600, "uniform").experts_s / QWEN.layers
    assert got == pytest.approx(71.9e-6 * 4096 / 7168 + np.hypot(weights, computed), rel=0.02)


def test_masked_products_read_fp4_weights_where_they_are_fp4() -> None:
    fused = with_split_products(COSTS, GB200, split_kernels(GB200), "deepgemm-masked-fp4", 6, QWEN.hidden)
    block, four = (fused.masked_cost(GB200, dtype) for dtype in ("fp8_block", "mxfp4"))
    assert block
    assert four
    load = (4096, 1536), (32, 32, 0)
    times = [
        cost.seconds(GB200, *load[0], dtype, *load[1]) - cost.overhead_s - cost.per_expert_s * 32
        for cost, dtype in ((block, "fp8_block"), (four, "mxfp4"))
    ]
    assert times[1] / times[0] == pytest.approx(DTYPE_BYTES["mxfp4"] / DTYPE_BYTES["fp8_block"])


def test_small_operators_are_half_as_many_kernels() -> None:
    fused = with_split_products(COSTS, GB200, split_kernels(GB200), None, 6, QWEN.hidden)
    assert fused.elementwise["gb200"].kernel_s == pytest.approx(COSTS.elementwise["gb200"].kernel_s / 2)


def test_a_device_without_measured_kernels_is_named() -> None:
    with pytest.raises(UserError, match="not on h100") as failed:
        split_kernels(device("h100"))
    assert failed.value.code == "costs-no-split-kernels"
