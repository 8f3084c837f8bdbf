"""Slices of the same structure: one piece of code, run with different weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lamina.convert.codegen import Code, describe_spec, slice_source
from lamina.convert.program import Program
from lamina.convert.slices import Draft, Slice


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


def classify(drafts: Sequence[Draft]) -> tuple[tuple[Slice, ...], tuple[SliceClass, ...]]:
    """Group slices by their generated source, what it calls, and the shape of everything that goes in."""
    groups: dict[tuple[str, ...], list[int]] = {}
    codes: list[Code] = []
    for index, draft in enumerate(drafts):
        code = slice_source(draft.program)
        codes.append(code)
        attended = () if draft.program.attended is None else (draft.program.attended,)
        given = [describe_spec(value.spec) for value in (*draft.program.context, *attended)]
        groups.setdefault((code.text, *sorted(code.operators), *given), []).append(index)
    classes = tuple(
        SliceClass(number, drafts[members[0]].program, codes[members[0]], tuple(members))
        for number, members in enumerate(groups.values())
    )
    class_of = {member: kind.index for kind in classes for member in kind.members}
    slices = tuple(
        Slice(index, class_of[index], draft.program, draft.weights, draft.carried)
        for index, draft in enumerate(drafts)
    )
    return slices, classes
