"""Where the elements of a value are when several ranks run a slice together."""

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
    """Every rank has all of it."""


@dataclass(frozen=True)
class Partial:
    """Every rank has a summand of it: the value is their sum."""


@dataclass(frozen=True)
class Split:
    """Every rank has a part along `dim`: of each block of it the same share, side by side."""

    dim: int
    blocks: tuple[int, ...]  # sizes before splitting, together all of the dimension
    # The products whose weights were split for it, and how many of their columns make one element here.
    origins: frozenset[tuple[Name, Fraction]]

    def bounds(self) -> tuple[int, ...]:
        """Where blocks end, the last one's end left out."""
        return tuple(accumulate(self.blocks))[:-1]

    def local(self, spec: Spec, degree: int) -> Spec:
        """What one rank has of a tensor that is `spec` in all."""
        size = spec.dims[self.dim]
        assert isinstance(size, int)
        assert size == sum(self.blocks)
        return make_spec((*spec.dims[: self.dim], size // degree, *spec.dims[self.dim + 1 :]), spec.dtype)


@dataclass(frozen=True)
class Routed:
    """Every rank has the rows that its experts compute; `rows` says which."""

    rows: Name


Place = Whole | Partial | Split | Routed
WHOLE, PARTIAL = Whole(), Partial()


# columns: outputs of its product; rows: what it sums over; first: rank 0 has it, others have zeros; experts:
# some of them, whole.
Kind = Literal["columns", "rows", "first", "experts", "whole"]


@dataclass(frozen=True)
class WeightPart:
    """What one rank holds of a weight."""

    kind: Kind
    dim: int = 0
    blocks: tuple[int, ...] = ()

    def local(self, spec: Spec, degree: int) -> Spec:
        """What one rank has of it; of experts, the rank that has most."""
        if self.kind == "experts":
            experts, *rest = spec.dims
            assert isinstance(experts, int)
            return make_spec((-(-experts // degree), *rest), spec.dtype)
        if not self.blocks:
            return spec
        return Split(self.dim, self.blocks, frozenset()).local(spec, degree)


class ConflictError(Exception):
    """Something cannot be computed on what was split; names the products to split otherwise.

    With bounds for a product, its columns must be split in blocks that end there, too. Without, its weight
    must stay whole.
    """

    def __init__(self, bounds: Mapping[Name, Iterable[Fraction]]) -> None:
        super().__init__(", ".join(bounds))
        self.bounds = {name: frozenset(ends) for name, ends in bounds.items()}


def unsplit(splits: Iterable[Split]) -> ConflictError:
    """None of what led to these may be split."""
    return ConflictError({name: () for split in splits for name, _ in split.origins})


def refined(splits: Iterable[Split], bounds: Iterable[int]) -> ConflictError:
    """What led to these must be split in blocks that end at `bounds`, too."""
    ends = set(bounds)
    lacking = [split for split in splits if not ends <= set(split.bounds())]
    return ConflictError(
        {name: [end * scale for end in ends] for split in lacking for name, scale in split.origins}
    )


def blocks_between(bounds: Iterable[int], size: int) -> tuple[int, ...]:
    """Sizes of the blocks that end at `bounds` and at `size`."""
    ends = [0, *sorted({bound for bound in bounds if 0 < bound < size}), size]
    return tuple(end - start for start, end in pairwise(ends))


def reshaped(split: Split, before: Spec, after: Spec, degree: int) -> Split:
    """The same split of the same elements in another shape."""
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
    """One split for values of given ranks that meet element by element; its dimension counts from the end."""
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
