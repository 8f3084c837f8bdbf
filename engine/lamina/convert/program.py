"""A slice's program as plain data: instructions on named values in execution order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]


BATCH = "B"
# Matrix products, which take most of a model worker's time.
PRODUCTS = frozenset({"linear", "addmm", "mm", "bmm", "matmul", "_grouped_mm", "baddbmm"})


@dataclass(frozen=True)
class Spec:
    """Shape (a dimension is a number or a formula in B), element type and bytes for one request."""

    dims: tuple[int | str, ...]
    dtype: torch.dtype
    bytes: int

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape for a batch of one."""
        return tuple(dim if isinstance(dim, int) else _at_one(dim) for dim in self.dims)


def make_spec(dims: tuple[int | str, ...], dtype: torch.dtype) -> Spec:
    one = prod(dim if isinstance(dim, int) else _at_one(dim) for dim in dims)
    return Spec(dims, dtype, one * dtype.itemsize)


def spec_of(node: fx.Node) -> Spec | None:
    """Return the spec of a node that is one tensor; None for sizes and tuples."""
    spec = node.meta.get("spec")
    assert spec is None or isinstance(spec, Spec)
    return spec


def known_spec(node: object) -> Spec:
    """Return the spec of a node that must be one tensor."""
    assert isinstance(node, fx.Node)
    spec = spec_of(node)
    assert spec is not None
    return spec


def annotate(node: fx.Node) -> None:
    """Replace torch.export's metadata of a node with a plain spec."""
    value = node.meta.pop("val", None)
    node.meta.clear()
    if isinstance(value, torch.Tensor):
        node.meta["spec"] = make_spec(tuple(dim(size) for size in value.shape), value.dtype)
    elif isinstance(value, torch.SymInt):
        node.meta["size"] = dim(value)


def dim(size: Any) -> int | str:
    """Return a dimension as a number, or as a formula in B if it grows with the batch."""
    if isinstance(size, int):
        return size
    return _formula(size.node.expr)


@lru_cache(maxsize=1024)
def _formula(expression: sympy.Expr) -> int | str:
    import sympy

    if not expression.free_symbols:
        return int(expression)
    # Export names each free size (s0, s13); the batch size is the only one that inputs have. One that depends
    # on values (u0) keeps its name, and is refused by it.
    inputs = [symbol for symbol in expression.free_symbols if not str(symbol).startswith("u")]
    return str(
        expression.subs({symbol: sympy.Symbol(BATCH, integer=True, positive=True) for symbol in inputs})
    )


@lru_cache(maxsize=1024)
def _at_one(formula: str) -> int:
    if formula == BATCH:
        return 1
    import sympy  # takes half a second to load

    return int(sympy.sympify(formula).subs({BATCH: 1}))


def reachable(start: fx.Node, step: Callable[[fx.Node], Iterable[fx.Node]]) -> list[fx.Node]:
    """Return the nodes that repeated steps reach from a node, in order of discovery."""
    reached: dict[fx.Node, None] = {}
    stack = [start]
    while stack:
        for node in step(stack.pop()):
            if node not in reached:
                reached[node] = None
                stack.append(node)
    return list(reached)


class Name(str):
    """A value or a weight by its name in a program; any other string is a literal."""

    __slots__ = ()


@dataclass(frozen=True)
class Value:
    """A tensor that a program is given."""

    name: Name
    spec: Spec


@dataclass(frozen=True)
class Instruction:
    """One operator: `result` = `op`(*args, **kwargs), where a Name stands for its value."""

    result: Name
    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    spec: Spec | None  # None for a tuple of tensors or a size

    @property
    def op_name(self) -> str:
        """`linear` for aten.linear.default."""
        schema = getattr(self.op, "_schema", None)
        return str(schema.name).partition("::")[2] if schema is not None else self.op.__name__

    def uses(self) -> Iterator[Name]:
        """Iterate over the names among the arguments."""
        return iter(self._uses)

    @cached_property
    def _uses(self) -> tuple[Name, ...]:
        # Cached: drawing, writing and splitting slices read it often.
        return tuple(names_in((self.args, self.kwargs)))


def names_in(value: Any) -> Iterator[Name]:
    """Yield every Name in nested lists, tuples and dicts."""
    if isinstance(value, Name):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from names_in(item)
    elif isinstance(value, dict):
        yield from names_in(list(value.values()))


def with_names(value: Any, fill: Callable[[Name], Any], other: Callable[[Any], Any] = lambda it: it) -> Any:
    """Map every Name in nested lists, tuples and dicts with `fill`, and every other leaf with `other`."""
    if isinstance(value, Name):
        return fill(value)
    if isinstance(value, (list, tuple)):
        return type(value)(with_names(item, fill, other) for item in value)
    if isinstance(value, dict):
        return {key: with_names(item, fill, other) for key, item in value.items()}
    return other(value)


@dataclass(frozen=True)
class Piece:
    """A part of a slice between two messages: its instructions and results."""

    name: str  # "query", "keyvalue", "rest" or "logits"
    instructions: tuple[Instruction, ...]
    gives: tuple[Name, ...]


@dataclass(frozen=True)
class Program:
    """A slice without its weights: equal programs are one class."""

    context: tuple[Value, ...]
    attended: Value | None
    weights: tuple[Value, ...]
    pieces: tuple[Piece, ...]
    specs: dict[Name, Spec] = field(repr=False)  # of every tensor in it
    bound: tuple[Name, ...] = ()  # other objects bound once, before the weights

    def inputs(self) -> tuple[Name, ...]:
        """Return the names of the arguments, in order."""
        attended = () if self.attended is None else (self.attended.name,)
        return (*(value.name for value in self.context), *attended)

    def live_after(self, position: int) -> tuple[Name, ...]:
        """Return the values that exist after piece `position` and are used later."""
        weights = {value.name for value in self.weights}
        later: set[Name] = set()
        for piece in self.pieces[position + 1 :]:
            made = {instruction.result for instruction in piece.instructions}
            used = [name for instruction in piece.instructions for name in instruction.uses()]
            later.update(name for name in [*used, *piece.gives] if name not in made and name not in weights)
        there = dict.fromkeys(self.inputs())
        for piece in self.pieces[: position + 1]:
            there.update(dict.fromkeys(instruction.result for instruction in piece.instructions))
        return tuple(name for name in there if name in later)


# Names of bound objects in generated code.
COLLECTIVE, RANK = Name("collective"), Name("rank")


class Collective(Protocol):
    """Collective operations between ranks; all ranks call the same methods in the same order.

    The argument is contiguous and not used afterwards; the result must outlive later calls.
    """

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, bitwise the same on each; may work in place."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Return all ranks' tensors concatenated along the last dimension, in rank order."""
        ...


# Name of the recurrent states in generated code.
STATES = Name("states")


class States(Protocol):
    """A slice's recurrent states of the requests of a batch; numbers count within the slice."""

    def read(self, number: int) -> Tensor:
        """Return a row for each request, as of its last token."""
        ...

    def write(self, number: int, rows: Tensor) -> None:
        """Store a row for each request, as of this token."""
        ...


def own_part(x: Tensor, rank: int, degree: int) -> Tensor:
    """Return a rank's heads of a value that every rank has in full."""
    heads = x.shape[1] // degree
    return x.narrow(1, rank * heads, heads).contiguous()


class Rows:
    """The rows (or columns) of a weight that a projection uses."""

    def __init__(self, index: Tensor) -> None:
        self.index = index
        first, count = int(index[0]), len(index)
        self.start = first if torch.equal(index, torch.arange(first, first + count)) else None

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        if self.start is not None:
            return f"{self.start}:{self.start + len(self)}"
        ends = torch.nonzero(self.index.diff() != 1).flatten()
        first = int(ends[0]) + 1
        return f"{int(self.index[0])}:{int(self.index[0]) + first} and {len(ends)} more like it"


def take_rows(weight: Tensor, dim: int, rows: Rows) -> Tensor:
    """Return the rows of a weight: a view if they are adjacent, else a copy."""
    if rows.start is not None:
        return weight.narrow(dim, rows.start, len(rows))
    return weight.index_select(dim, rows.index.to(weight.device))
