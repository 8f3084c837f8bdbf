"""An operation that is so many times as fast takes that much less time, however it is priced."""

from __future__ import annotations

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.faster import attention_faster, gemms_faster
from laminabench.catalog.find_model import model, modelled
from laminabench.catalog.hardware import device
from laminabench.catalog.layout import Layout
from laminabench.catalog.step import decode_attention, model_step

ROWS = np.array([1.0, 40.0, 700.0])


@pytest.mark.parametrize(
    ("name", "costs", "on"),
    [
        ("llama3-70b", "vllm-0.14", "h100"),  # formulas
        ("llama3-70b", "vllm-0.24", "h200"),  # curves
        ("llama3-70b", "vllm-0.14", "h20"),  # borrowed
        ("mixtral-8x7b", "vllm-0.24", "h100"),  # experts
    ],
)
def test_matrix_products(name: str, costs: str, on: str) -> None:
    shape, own, there = modelled(name), load_costs(costs), device(on)
    faster = gemms_faster(own, there, 1.6)
    before, after = (model_step(each, shape, there, Layout(4), ROWS) for each in (own, faster))
    np.testing.assert_allclose(after.gemm_s, before.gemm_s / 1.6)
    np.testing.assert_allclose(after.experts_s, before.experts_s / 1.6)
    np.testing.assert_allclose(after.allreduce_s, before.allreduce_s)
    np.testing.assert_allclose(after.elementwise_s, before.elementwise_s)


@pytest.mark.parametrize(
    ("name", "costs", "on"),
    [
        ("llama3-70b", "vllm-0.14", "h20"),
        ("llama3-70b", "vllm-0.24", "h200"),  # lines
        ("deepseek-v3", "vllm-0.24", "h200"),  # of a latent KV
    ],
)
def test_attention_of_decoding_requests(name: str, costs: str, on: str) -> None:
    shape, own, there = modelled(name), load_costs(costs), device(on)
    faster = attention_faster(own, there, 0.5)
    before, after = (decode_attention(each, shape, there, 1, ROWS) for each in (own, faster))
    for slow, usual in zip(after, before, strict=True):
        np.testing.assert_allclose(slow, usual * 2)


def test_measured_grids_of_attention() -> None:
    own, there, shape = load_costs("vllm-0.19"), device("rtx-4090"), model("llama3.1-8b")
    usual, slow = (each.measured_attention(shape, there) for each in (own, attention_faster(own, there, 0.5)))
    assert usual is not None
    assert slow is not None
    np.testing.assert_allclose(slow.grids.decode.values, usual.grids.decode.values * 2)
    np.testing.assert_allclose(slow.grids.mixed.values, usual.grids.mixed.values * 2)
    np.testing.assert_allclose(slow.grids.prompt.values, usual.grids.prompt.values)


def test_others_are_as_they_were() -> None:
    own = load_costs("vllm-0.14")
    assert gemms_faster(own, device("h100"), 1.0) == own
    faster = attention_faster(own, device("h100"), 2.0)
    assert faster.attention["a100-80g-sxm"] == own.attention["a100-80g-sxm"]
    assert faster.gemm == own.gemm
