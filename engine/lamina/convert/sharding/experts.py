"""Expert parallelism: a rank has some experts of each layer and computes the rows routed to them.

A row is a token for one of its experts. All ranks have all tokens and the same routing, so that each selects
its own rows, and results are summed like those of other products.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from lamina.convert.errors import ConversionError
from lamina.convert.program import RANK, Instruction, Name, Spec, make_spec
from lamina.convert.sharding.places import Place, Routed, Split, Whole, unsplit
from lamina.convert.sharding.rules import is_pointwise

# Operators that compute each row independently, as long as their result has as many rows.
_BY_ROWS = frozenset(
    {
        *("slice", "select", "unsqueeze", "squeeze", "transpose", "view", "_unsafe_view", "reshape"),
        *("contiguous", "clone", "bmm", "linear", "mean", "rms_norm"),
    }
)
_SPLITS = frozenset({"chunk", "split", "split_with_sizes"})


class Rows(NamedTuple):
    """The rows that a rank's experts compute."""

    own: slice | Tensor
    total: int  # rows of all ranks


def experts_of(rank: int, degree: int, experts: int) -> range:
    """Return the experts of a rank; counts differ by at most one between ranks."""
    return range(experts * rank // degree, experts * (rank + 1) // degree)


# Generated code calls these.


def grouped_rows(ends: Tensor, rank: int, degree: int) -> tuple[Rows, Tensor]:
    """Return a rank's part of rows sorted by expert, and the ends of its experts within that part."""
    own = experts_of(rank, degree, len(ends))
    begin = int(ends[own.start - 1]) if own.start else 0
    rows = Rows(slice(begin, int(ends[own.stop - 1])), int(ends[-1]))
    return rows, ends[own.start : own.stop] - begin


def picked_rows(expert: Tensor, experts: int, rank: int, degree: int) -> tuple[Rows, Tensor]:
    """Return a rank's part of rows with one expert each, and these experts by number within the rank."""
    own = experts_of(rank, degree, experts)
    index = ((expert >= own.start) & (expert < own.stop)).nonzero().squeeze(1)
    return Rows(index, len(expert)), expert[index] - own.start


def own_rows(x: Tensor, rows: Rows) -> Tensor:
    return x[rows.own]


def among_all(x: Tensor, rows: Rows) -> Tensor:
    """Return a rank's rows in a tensor of all rows, with zeros for those of other ranks."""
    whole = x.new_zeros(rows.total, *x.shape[1:])
    whole[rows.own] = x
    return whole


Result = tuple[Routed, tuple[Any, ...]]


class Flow(Protocol):
    """The interface of a slice that `Routing` uses."""

    degree: int

    def place(self, name: Name) -> Place: ...
    def routed(self, name: Name) -> Routed | None: ...
    def spec(self, name: Name) -> Spec: ...
    def is_weight(self, name: Name) -> bool: ...
    def settle(self, name: Name) -> None: ...
    def distribute(self, table: Name) -> None: ...
    def append(self, op: Any, args: tuple[Any, ...], spec: Spec | None) -> Name: ...


class Routing:
    """Rules for the operators that look up experts, and those that follow row by row."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._known: dict[Name, tuple[Name, Name]] = {}  # rows, and their routing

    def apply(self, one: Instruction) -> Result | None:
        """Return place and arguments of a result with a rank's rows only; None if no rule applies."""
        args = one.args
        if one.op_name == "_grouped_mm" and self._is_table(args[1]):
            rows, ends = self._rows(grouped_rows, args[1], args[2])
            return Routed(rows), (self._own(args[0], rows), args[1], ends, *args[3:])
        if one.op_name == "index" and self._is_table(args[0]) and len(args[1]) == 1:
            rows, experts = self._rows(picked_rows, args[0], args[1][0])
            return Routed(rows), (args[0], [experts])
        return self._by_rows(one)

    def _is_table(self, value: object) -> bool:
        return (
            isinstance(value, Name) and self._flow.is_weight(value) and len(self._flow.spec(value).dims) == 3
        )

    def _rows(self, choose: Callable[..., Any], table: Name, routing: Name) -> tuple[Name, Name]:
        flow = self._flow
        (experts, *_), degree = flow.spec(table).dims, flow.degree
        assert isinstance(experts, int)
        if experts < degree:
            raise ConversionError(
                "convert-experts-few",
                f"{experts} experts cannot be distributed over {degree} ranks: take at most {experts}, or "
                'split them (experts "tp")',
            )
        flow.distribute(table)
        if routing not in self._known:
            self._whole(routing)
            given = (routing,) if choose is grouped_rows else (routing, experts)
            both = flow.append(choose, (*given, RANK, degree), None)
            dims, dtype = flow.spec(routing).dims, flow.spec(routing).dtype
            self._known[routing] = (
                flow.append(operator.getitem, (both, 0), None),
                flow.append(operator.getitem, (both, 1), make_spec(dims, dtype)),
            )
        return self._known[routing]

    def _by_rows(self, one: Instruction) -> Result | None:
        flow = self._flow
        given = [name for name in one.uses() if flow.routed(name)]
        if not given or one.kwargs:
            return None
        place = flow.routed(given[0])
        assert place
        if one.op_name == "getitem":
            return place, one.args
        count, *row = flow.spec(given[0]).dims
        if one.op_name in _SPLITS:
            by_rows = len(one.args) > 2 and one.args[2] not in (0, -1 - len(row))
        else:
            by_rows = one.spec is not None and one.spec.dims[0] == count
        if not by_rows or {flow.routed(name) for name in given} != {place}:
            return None
        if not is_pointwise(one) and one.op_name not in _BY_ROWS | _SPLITS:
            return None
        dims = 1 + len(row) if one.spec is None else len(one.spec.dims)
        args = tuple(
            self._own(arg, place.rows) if isinstance(arg, Name) and self._has_rows(arg, count, dims) else arg
            for arg in one.args
        )
        return place, args

    def _has_rows(self, name: Name, count: int | str, dims: int) -> bool:
        spec = self._flow.spec(name)
        return len(spec.dims) == dims and spec.dims[0] == count

    def _own(self, name: Name, rows: Name) -> Name:
        flow = self._flow
        if flow.routed(name) == Routed(rows):
            return name
        self._whole(name)
        return flow.append(own_rows, (name, rows), flow.spec(name))

    def _whole(self, name: Name) -> None:
        self._flow.settle(name)
        place = self._flow.place(name)
        if isinstance(place, Split):
            raise unsplit([place])
        assert isinstance(place, Whole)
