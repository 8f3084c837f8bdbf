"""Packed weights: the same bits as torch's own products, and only where nothing else reads the weight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
import transformers

from lamina.convert import codegen, convert
from lamina.convert.codegen import linear

SmallModel = Callable[..., transformers.PreTrainedModel]
needs_packing = pytest.mark.skipif(not codegen.packs(), reason="this CPU has no products of bfloat16")


@needs_packing
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (96, 33), (7, 64), (1024, 256)])
@pytest.mark.parametrize("rows", [1, 3, 64, 200])
def test_products_are_the_same_bits(outputs: int, inputs: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(outputs + rows)
    weight, bias = (torch.randn(*s, generator=generator).bfloat16() for s in ((outputs, inputs), (outputs,)))
    x = torch.randn(rows, 1, inputs, generator=generator).bfloat16()
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
    assert ordered.is_mkldnn
    for more in (None, bias):
        assert torch.equal(linear(x, ordered, more), F.linear(x, weight, more))


@needs_packing
def test_only_weights_of_products_are_packed(small_model: SmallModel) -> None:
    model = small_model("llama-tied", dtype=torch.bfloat16)
    first, *_, last = convert(model).bind(model)
    plain = [tuple(weight.shape) for weight in first.weights if not weight.is_mkldnn]
    assert (120, 64) in plain, "the embedding is looked up"
    head = [weight for weight in last.weights if tuple(weight.shape) == (120, 64)]
    assert [weight.is_mkldnn for weight in head] == [True], "the same table is multiplied here"
    assert all(weight.is_mkldnn == (weight.dim() == 2) for weight in last.weights)


def test_other_precisions_are_left_alone(small_model: SmallModel) -> None:
    model = small_model("llama-gqa")
    table = {weight.data_ptr() for weight in model.parameters()}
    for piece in convert(model).bind(model):
        for weight in piece.weights:
            assert not weight.is_mkldnn
            # Vectors may be tables that no checkpoint holds.
            assert weight.dim() < 2 or weight.data_ptr() in table, "a weight is not copied"
