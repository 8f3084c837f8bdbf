"""Packed weights: the same bits as torch's own products, or all rows' alike, and only where nothing else
reads the weight.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
import transformers
from torch import Tensor

from lamina._native import Product
from lamina.convert import convert, packing
from lamina.convert.packing import in_library_order, in_panels, is_matrix, linear, sizes

SmallModel = Callable[..., transformers.PreTrainedModel]
needs_library = pytest.mark.skipif(
    not packing.library_packs(), reason="torch's library has no products of bfloat16 for this CPU"
)
needs_panels = pytest.mark.skipif(not packing.panel_product(), reason="on this CPU the library's are as good")


def _drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(*shape, generator=generator).bfloat16() for shape in shapes]


@needs_library
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (96, 33), (7, 64), (1024, 256)])
@pytest.mark.parametrize("rows", [1, 3, 64, 200])
def test_products_are_the_same_bits(outputs: int, inputs: int, rows: int) -> None:
    weight, bias, x = _drawn((outputs, inputs), (outputs,), (rows, 1, inputs))
    ordered = in_library_order(weight)
    assert ordered.is_mkldnn
    assert sizes(ordered) == (outputs, inputs)
    for more in (None, bias):
        assert torch.equal(linear(x, ordered, more), F.linear(x, weight, more))


@needs_panels
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 32), (96, 64), (32, 1056), (4128, 288)])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 33, 70, 300])
def test_products_panel_product_are_rounded_once(outputs: int, inputs: int, rows: int) -> None:
    weight, bias, x = _drawn((outputs, inputs), (outputs,), (rows, 1, inputs))
    panels = in_panels(weight)
    assert is_matrix(panels)
    assert sizes(panels) == (outputs, inputs)
    for more in (None, bias):
        ours = linear(x, panels, more)
        exact = F.linear(x.double(), weight.double(), None if more is None else more.double())
        assert ours.shape == (rows, 1, outputs)
        assert ours.dtype == torch.bfloat16
        # Half of the last bit, and what a sum of floats is off by.
        off = (ours.double() - exact).abs() - exact.abs() * 2**-8
        assert off.max() < 1e-5 * inputs


@needs_panels
def test_a_row_does_not_depend_on_other_rows() -> None:
    weight, x = _drawn((96, 160), (130, 160))
    panels = in_panels(weight)
    whole = linear(x, panels)
    for first, last in ((0, 1), (17, 18), (100, 130), (3, 64), (0, 129)):
        assert torch.equal(linear(x[first:last], panels), whole[first:last])


@needs_panels
def test_rows_at_a_distance_and_several_of_a_request() -> None:
    weight, wide = _drawn((64, 96), (20, 1, 300))
    panels = in_panels(weight)
    for x in (
        wide[..., 7:103],
        wide.view(10, 2, 300)[..., 40:136],
        wide.transpose(0, 1)[..., :96],
        wide[:0, :, :96],
    ):
        assert torch.equal(linear(x, panels), linear(x.contiguous(), panels))


@needs_panels
def test_a_row_without_numbers_is_alone_with_it() -> None:
    weight, x = _drawn((32, 32), (40, 32))
    expected = linear(x, in_panels(weight))
    x[3, 5], x[33, 0] = float("nan"), float("inf")
    result = linear(x, in_panels(weight))
    rest = [row for row in range(40) if row not in (3, 33)]
    assert torch.equal(result[rest], expected[rest])
    assert result[3].isnan().all()
    assert not result[33].isfinite().any()


@needs_panels
def test_incomplete_panels_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        Product().run(0, 0, 0, 0, 0, 1, 32, 48)


def test_other_instructions_have_none() -> None:
    with pytest.raises(ValueError, match="as good"):
        Product(isa="baseline")


@needs_library
def test_only_weights_of_products_are_packed(small_model: SmallModel) -> None:
    model = small_model("llama-tied", dtype=torch.bfloat16)
    first, *_, last = convert(model).bind(model)

    def plain(weight: Tensor) -> bool:
        return weight.dim() == 2 and not weight.is_mkldnn

    assert [tuple(weight.shape) for weight in first.weights if plain(weight)] == [(120, 64)], (
        "it is looked up"
    )
    head = [weight for weight in last.weights if tuple(weight.shape) == (120, 64)]
    assert [weight.is_mkldnn for weight in head] == [True], "the same table is multiplied here"
    assert not any(map(plain, last.weights))


def test_weights_are_in_panels_where_these_are_faster(small_model: SmallModel) -> None:
    model = small_model("llama-tied", dtype=torch.bfloat16)
    weights = [weight for piece in convert(model).bind(model) for weight in piece.weights]
    assert any(weight.dim() > 2 for weight in weights) == bool(packing.panel_product())


def test_other_precisions_are_left_alone(small_model: SmallModel) -> None:
    model = small_model("llama-gqa")
    table = {weight.data_ptr() for weight in model.parameters()}
    for piece in convert(model).bind(model):
        for weight in piece.weights:
            assert not weight.is_mkldnn
            # Vectors may be tables that no checkpoint holds.
            assert weight.dim() < 2 or weight.data_ptr() in table, "a weight is not copied"
