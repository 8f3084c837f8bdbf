"""Distribution of a value's elements when several ranks run a slice together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from math import prod
from typing import Literal

from lamina.convert.program import Name, Spec, make_spec


@dataclass(frozen=True)
class Whole:
    """Every rank has the full value."""


@dataclass(frozen=True)
class Partial:
    """Every rank has a summand; the value is their sum."""


@dataclass(frozen=True)
class Split:
    """Every rank has a part along `dim`: an equal share of each block, concatenated."""

    dim: int
    blocks: tuple[int, ...]  # sizes before splitting; they sum to the dimension
    # The products whose weights were split for it, and how many of their columns make one element.
    origins: frozenset[tuple[Name, Fraction]]

    def bounds(self) -> tuple[int, ...]:
        """Return the ends of all blocks but the last."""
        return tuple(accumulate(self.blocks))[:-1]

    def local(self, spec: Spec, degree: int) -> Spec:
        """Return the spec of one rank's part of a tensor with this spec."""
        size = spec.dims[self.dim]
        assert isinstance(size, int)
        assert size == sum(self.blocks)
        return make_spec((*spec.dims[: self.dim], size // degree, *spec.dims[self.dim + 1 :]), spec.dtype)


@dataclass(frozen=True)
class Routed:
    """Every rank has the rows that its experts compute, named by `rows`."""

    rows: Name


Place = Whole | Partial | Split | Routed
WHOLE, PARTIAL = Whole(), Partial()


# columns: outputs of the product; rows: its inputs; first: rank 0 has it, others have zeros; experts: some
# experts, unsplit.
Kind = Literal["columns", "rows", "first", "experts", "whole"]


@dataclass(frozen=True)
class WeightPart:
    """The part of a weight that each rank has."""

    kind: Kind
    dim: int = 0
    blocks: tuple[int, ...] = ()

    def local(self, spec: Spec, degree: int) -> Spec:
        """Return the spec of one rank's part; for experts, of the rank with the most."""
        if self.kind == "experts":
            experts, *rest = spec.dims
            assert isinstance(experts, int)
            return make_spec((-(-experts // degree), *rest), spec.dtype)
        if not self.blocks:
            return spec
        return Split(self.dim, self.blocks, frozenset()).local(spec, degree)


class ConflictError(Exception):
    """An operator cannot compute on a split value; names the products to split differently.

    With bounds for a product, its columns must be split in blocks that also end there. Without, its weight
    must not be split.
    """

    def __init__(self, bounds: Mapping[Name, Iterable[Fraction]]) -> None:
        super().__init__(", ".join(bounds))
        self.bounds = {name: frozenset(ends) for name, ends in bounds.items()}


def unsplit(splits: Iterable[Split]) -> ConflictError:
    """Return the conflict that none of the products behind these may be split."""
    return ConflictError({name: () for split in splits for name, _ in split.origins})


def refined(splits: Iterable[Split], bounds: Iterable[int]) -> ConflictError:
    """Return the conflict that the products behind these must have blocks that also end at `bounds`."""
    ends = set(bounds)
    lacking = [split for split in splits if not ends <= set(split.bounds())]
    return ConflictError(
        {name: [end * scale for end in ends] for split in lacking for name, scale in split.origins}
    )


def blocks_between(bounds: Iterable[int], size: int) -> tuple[int, ...]:
    """Return the sizes of the blocks that end at `bounds` and at `size`."""
    ends = [0, *sorted({bound for bound in bounds if 0 < bound < size}), size]
    return tuple(end - start for start, end in pairwise(ends))


def reshaped(split: Split, before: Spec, after: Spec, degree: int) -> Split:
    """Return a split of the same elements in another shape."""
    size = sum(split.blocks)
    inner = _stride(before, split.dim)
    for dim, length in enumerate(after.dims):
        stride = _stride(after, dim)
        # The new dimension must end, on the outside, where the old one does: ranks keep their elements.
        if not isinstance(length, int) or length == 1 or stride * length != inner * size:
            continue
        scale = Fraction(stride, inner)
        blocks = [block / scale for block in split.blocks]
        if any(block.denominator != 1 or block.numerator % degree for block in blocks):
            break
        origins = frozenset((name, unit * scale) for name, unit in split.origins)
        return replace(split, dim=dim, blocks=tuple(block.numerator for block in blocks), origins=origins)
    raise unsplit([split])


def _stride(spec: Spec, dim: int) -> int:
    return prod(spec.row_shape[dim + 1 :])


def same_split(splits: Iterable[tuple[Split, int]]) -> Split:
    """Return one split for values, with their dimensions, that an element-wise operator combines.

    The split's dimension counts from the end.
    """
    aligned = [(split, split.dim - ndim) for split, ndim in splits]
    if len({dim for _, dim in aligned}) > 1 or len({sum(split.blocks) for split, _ in aligned}) > 1:
        raise unsplit(split for split, _ in aligned)
    if len({split.blocks for split, _ in aligned}) > 1:
        raise refined(
            (split for split, _ in aligned), (end for split, _ in aligned for end in split.bounds())
        )
    (first, dim), *_ = aligned
    return replace(first, dim=dim, origins=frozenset().union(*_origins(aligned)))


def _origins(aligned: list[tuple[Split, int]]) -> Iterator[frozenset[tuple[Name, Fraction]]]:
    for split, _ in aligned:
        yield split.origins
