"""Products of values with weights: by which dimension their weights may be split over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from lamina.convert.program import Instruction, Name, names_in
from lamina.convert.sharding.places import PARTIAL, WHOLE, Place, Split, Whole, blocks_between, unsplit
from lamina.convert.sharding.rules import Flow

# A row of an expert's weight must begin at a multiple of as many bytes.
_GROUPED_ALIGNMENT = 16


class Choices(Protocol):
    """What is decided of the products of a slice so far."""

    def may_split(self, product: Name) -> bool: ...
    def bounds(self, product: Name) -> Iterable[int]: ...


@dataclass(frozen=True)
class Product:
    """`values` x `weight` + `bias`."""

    values: Name
    weight: Name
    bias: Name | None
    rows: int  # the weight's dimension that is summed over
    columns: int  # the weight's dimension that is the result's last one
    grouped: bool = False


def product_of(one: Instruction, flow: Flow) -> Product | None:
    """The instruction as a product with a weight, if it is one."""
    if any(value is not None for value in one.kwargs.values()):
        return None
    args = (*one.args, None, None)
    if one.op_name == "linear":
        product = Product(args[0], args[1], args[2], 1, 0)
    elif one.op_name == "addmm":
        product = Product(args[1], args[2], args[0], 0, 1)
    elif one.op_name in {"mm", "matmul"}:
        product = Product(args[0], args[1], None, 0, 1)
    elif one.op_name in {"bmm", "_grouped_mm"}:
        product = Product(args[0], args[1], None, 1, 2, one.op_name == "_grouped_mm")
    else:
        return None
    plain = flow.is_weight(product.weight) and len(flow.spec(product.weight).dims) == 1 + max(
        product.rows, product.columns
    )
    if not plain or not isinstance(product.values, Name) or flow.is_weight(product.values):
        return None
    if product.bias is not None and not (
        flow.is_weight(product.bias) and len(flow.spec(product.bias).dims) == 1
    ):
        return None
    return product


def multiply(one: Instruction, product: Product, flow: Flow, choices: Choices) -> Place:
    """Where the product's result is; splits its weight if it can be."""
    for name in one.uses():
        flow.settle(name)
    place = flow.place(product.values)
    others = [flow.place(name) for name in names_in(one.args) if name != product.values]
    if splits := [other for other in others if isinstance(other, Split)]:
        raise unsplit(splits)
    last = len(flow.spec(product.values).dims) - 1
    if isinstance(place, Split):
        if place.dim != last:
            if product.rows == 1 and product.columns == 2:
                raise unsplit([place])
            return place
        if product.grouped and not _aligned(product, place, flow):
            raise unsplit([place])
        flow.split_weight(product.weight, product.rows, place, rows=True)
        if product.bias is not None:
            flow.add_once(product.bias, place)
        return PARTIAL
    assert isinstance(place, Whole)
    if not choices.may_split(one.result):
        return WHOLE
    assert one.spec is not None
    size = flow.spec(product.weight).dims[product.columns]
    assert isinstance(size, int)
    blocks = blocks_between(choices.bounds(one.result), size)
    split = Split(len(one.spec.dims) - 1, blocks, frozenset({(one.result, Fraction(1))}))
    uneven = any(block % flow.degree for block in blocks)
    if uneven or (product.grouped and not _aligned(product, split, flow)):
        raise unsplit([split])
    flow.split_weight(product.weight, product.columns, split)
    if product.bias is not None:
        flow.split_weight(product.bias, 0, split)
    return split


def _aligned(product: Product, split: Split, flow: Flow) -> bool:
    share = sum(split.blocks) // flow.degree
    return share * flow.spec(product.weight).dtype.itemsize % _GROUPED_ALIGNMENT == 0
