"""Splits in other shapes: what a rank has of a reshaped value is what it had of the value."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from lamina.convert.program import Name, make_spec
from lamina.convert.sharding.places import ConflictError, Split, blocks_between, reshaped, same_split

Dims = tuple[int | str, ...]
ORIGIN = frozenset({(Name("linear_1"), Fraction(1))})


def share(x: Tensor, split: Split, degree: int, rank: int) -> Tensor:
    parts = [block.chunk(degree, split.dim)[rank] for block in x.split(list(split.blocks), split.dim)]
    return torch.cat(parts, split.dim)


@pytest.mark.parametrize(
    ("before", "blocks", "after"),
    [
        (("B", 1, 64), (64,), ("B", 1, 8, 8)),
        (("B", 1, 64), (32, 32), ("B", 1, 8, 8)),
        (("B", 1, 64), (16, 48), ("B", 64)),
        (("B", 1, 64), (64,), ("B", 4, 2, 8)),
        (("B", 3, 64), (64,), ("B", 3, 1, 16, 4)),
    ],
)
def test_ranks_keep_their_elements_in_another_shape(
    before: Dims, blocks: tuple[int, ...], after: Dims
) -> None:
    old, new = (make_spec(dims, torch.float32) for dims in (before, after))
    split = Split(len(before) - 1, blocks, ORIGIN)
    result = reshaped(split, old, new, 2)
    whole = torch.arange(5 * old.bytes // 4).view(5, *old.row_shape[1:])
    for rank in range(2):
        own = share(whole, split, 2, rank)
        local = share(whole.view(5, *new.row_shape[1:]), result, 2, rank)
        assert torch.equal(own.flatten(1), local.flatten(1))
    back = reshaped(result, new, old, 2)
    assert (back.dim, back.blocks, back.origins) == (split.dim, split.blocks, split.origins)


@pytest.mark.parametrize(
    ("before", "dim", "after"),
    [
        (("B", 1, 64), 2, ("B", 1, 2, 32)),  # two parts for four ranks
        (("B", 4, 16), 2, ("B", 64)),  # each rank's elements would no longer be side by side
        (("B", 8, 8), 1, ("8*B", 8)),  # heads of all requests in one dimension
    ],
)
def test_shapes_that_scatter_a_share_are_in_conflict(before: Dims, dim: int, after: Dims) -> None:
    size = before[dim]
    assert isinstance(size, int)
    with pytest.raises(ConflictError, match="linear_1"):
        reshaped(
            Split(dim, (size,), ORIGIN), make_spec(before, torch.float32), make_spec(after, torch.float32), 4
        )


def test_values_that_meet_must_be_split_in_the_same_blocks() -> None:
    other = frozenset({(Name("linear_2"), Fraction(2))})
    halves, plain = Split(2, (32, 32), ORIGIN), Split(1, (64,), other)
    with pytest.raises(ConflictError) as caught:
        same_split([(halves, 3), (plain, 2)])
    assert caught.value.bounds == {"linear_2": {64}}  # in columns of its product
    together = same_split([(halves, 3), (Split(1, (32, 32), other), 2)])
    assert (together.dim, together.origins) == (-1, ORIGIN | other)


def test_blocks_end_at_bounds_within_the_dimension() -> None:
    assert blocks_between([96, 0, 192, 96], 192) == (96, 96)
    assert blocks_between([], 64) == (64,)
