"""Whose recurrent state begins, is copied and goes, as batches change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lamina.pipeline.batch_rows import NO_PARENT, BatchDelta, Ints

if TYPE_CHECKING:
    from torch import Tensor

    from lamina.convert import BoundSlice, StateMemory


def states_of(slices: Sequence[BoundSlice]) -> StateMemory | None:
    """What they keep between tokens, all in one."""
    return next((piece.states for piece in slices if piece.states), None)


class SequenceStates:
    """The states of a worker's slices, which most models have none of."""

    def __init__(self, memory: StateMemory | None, sequences: int) -> None:
        self._memory = memory
        self._begun: set[int] = set()  # have not joined, and their prompts are being computed
        if memory:
            memory.reserve(sequences)

    @property
    def kept(self) -> bool:
        """True if there are any states."""
        return self._memory is not None

    def begin(self, name: int) -> None:
        """The first part of its prompt is to be computed."""
        if memory := self._memory:
            memory.begin(name)
            self._begun.add(name)

    def drop(self, names: Iterable[int]) -> None:
        """They will not join."""
        if (memory := self._memory) and (ended := self._begun.intersection(names)):
            memory.release(ended)
            self._begun -= ended

    def apply(self, delta: BatchDelta) -> None:
        """Before prompts are computed: as with KV, some fork, some go, some come."""
        if memory := self._memory:
            for parent, child, _ in delta.forks.tolist():
                memory.copy(parent, child)
            memory.release(delta.released.tolist())
            for name in delta.joined.name.tolist():
                if name not in self._begun:
                    memory.begin(name)

    def share(self, delta: BatchDelta) -> None:
        """When prompts are computed: who shares all of one begins as it has ended."""
        if memory := self._memory:
            joined = delta.joined
            for name, parent in zip(joined.name.tolist(), joined.parent.tolist(), strict=True):
                if parent != NO_PARENT and name not in delta.prompts and name not in self._begun:
                    memory.copy(parent, name)
            self._begun.difference_update(joined.name.tolist())

    def rows(self, names: Ints) -> Tensor | None:
        return self._memory.rows(names.tolist()) if self._memory else None

    def select(self, rows: Tensor | None) -> None:
        """Slices run with these sequences from now on."""
        if self._memory and rows is not None:
            self._memory.selected = rows

    def clear(self) -> None:
        self._begun.clear()
        if self._memory:
            self._memory.clear()
