"""What a conversion's slices are, and the classes of those that run the same code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lamina.convert.codegen import Code
from lamina.convert.fuse import Fused, Fusing, fuse
from lamina.convert.program import Name, Program, Spec
from lamina.convert.prompt import prompt_source


@dataclass(frozen=True)
class Carried:
    """A value of the context between two slices."""

    name: str  # of its node in the traced graph
    op: str
    spec: Spec
    bytes: int  # for one request; 0 for tokens and positions, which every worker knows


@dataclass(frozen=True)
class Slice:
    """One of the n+1 pieces that the model falls into between its attention operators."""

    index: int
    program: Program
    weights: tuple[Name, ...]  # the constants that fill the program's weights, in their order
    carried: tuple[Carried, ...]  # what `rest` gives, in its order: the context of the next slice
    states: tuple[int, ...] = ()  # the model's, in the order in which the slice counts them
    class_index: int = -1  # once slices of the same structure are known


@dataclass(frozen=True)
class SliceClass:
    """A structure that one or more slices have."""

    index: int
    program: Program = field(repr=False)  # its first slice's; others have equal ones
    code: Code = field(repr=False)
    members: tuple[int, ...]

    @property
    def source(self) -> str:
        """The Python source that the default backend runs."""
        return self.code.text

    @cached_property
    def bind(self) -> Callable[..., tuple[Callable[..., Any], ...]]:
        """Compiled source: takes a device and the weights, gives the functions of the pieces."""
        compiled: Callable[..., tuple[Callable[..., Any], ...]]
        compiled = self.code.function("bind", f"<slice class {self.index}>")
        return compiled

    def fused(self, how: Fusing) -> Fused:
        """The program as one device runs it; made once."""
        if how not in self._fused:
            self._fused[how] = fuse(self.program, how)
        return self._fused[how]

    @cached_property
    def _fused(self) -> dict[Fusing, Fused]:
        return {}

    @cached_property
    def bind_prompt(self) -> Callable[..., Callable[..., Any]]:
        """The same of the function that takes some tokens of one text, where the slice keeps state."""
        compiled: Callable[..., Callable[..., Any]]
        compiled = prompt_source(self.program).function("bind", f"<prompts of slice class {self.index}>")
        return compiled
