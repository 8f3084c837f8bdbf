"""What is known of a value before any weight is: its shape in the batch size B, its type, its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

BATCH = "B"


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
    """The spec of a node that holds one tensor; None for sizes and tuples."""
    spec = node.meta.get("spec")
    assert spec is None or isinstance(spec, Spec)
    return spec


def known_spec(node: object) -> Spec:
    """The spec of what is known to be a node that holds one tensor."""
    assert isinstance(node, fx.Node)
    spec = spec_of(node)
    assert spec is not None
    return spec


def annotate(node: fx.Node) -> None:
    """Replace what torch.export noted about a node's value by our own plain description."""
    value = node.meta.pop("val", None)
    node.meta.clear()
    if isinstance(value, torch.Tensor):
        node.meta["spec"] = make_spec(tuple(dim(size) for size in value.shape), value.dtype)
    elif isinstance(value, torch.SymInt):
        node.meta["size"] = dim(value)


def dim(size: Any) -> int | str:
    """A dimension as a number, or as a formula in B when it grows with the batch."""
    if isinstance(size, int):
        return size
    return _formula(size.node.expr)


@lru_cache(maxsize=1024)
def _formula(expression: sympy.Expr) -> int | str:
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
    return int(sympy.sympify(formula).subs({BATCH: 1}))


def reachable(start: fx.Node, step: Callable[[fx.Node], Iterable[fx.Node]]) -> list[fx.Node]:
    """What repeated steps lead to from a node, in the order in which it is found."""
    found: dict[fx.Node, None] = {}
    stack = [start]
    while stack:
        for node in step(stack.pop()):
            if node not in found:
                found[node] = None
                stack.append(node)
    return list(found)
