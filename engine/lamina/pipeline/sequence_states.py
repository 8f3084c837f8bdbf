"""Recurrent states of sequences, updated as batches change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lamina.pipeline.batch_rows import NO_PARENT, BatchDelta, Ints

if TYPE_CHECKING:
    from torch import Tensor

    from lamina.convert import BoundSlice, StateMemory


def states_of(slices: Sequence[BoundSlice]) -> StateMemory | None:
    """Return the state memory that the slices share, if they have any."""
    return next((piece.states for piece in slices if piece.states), None)


class SequenceStates:
    """The recurrent states of a worker's slices; most models have none."""

    def __init__(self, memory: StateMemory | None, sequences: int) -> None:
        self._memory = memory
        self._begun: set[int] = set()  # not joined yet: their prompts are being computed
        if memory:
            memory.reserve(sequences)

    @property
    def present(self) -> bool:
        """True if the model has states."""
        return self._memory is not None

    def begin(self, name: int) -> None:
        """Add a sequence whose prompt begins to be computed."""
        if memory := self._memory:
            memory.begin(name)
            self._begun.add(name)

    def drop(self, names: Iterable[int]) -> None:
        """Remove sequences that will not join."""
        if (memory := self._memory) and (ended := self._begun.intersection(names)):
            memory.release(ended)
            self._begun -= ended

    def apply(self, delta: BatchDelta) -> None:
        """Apply forks, releases and joins, before prompts are computed."""
        if memory := self._memory:
            for parent, child, _ in delta.forks.tolist():
                memory.copy(parent, child)
            memory.release(delta.released.tolist())
            for name in delta.joined.name.tolist():
                if name not in self._begun:
                    memory.begin(name)

    def share(self, delta: BatchDelta) -> None:
        """Copy states to sequences that share a full prompt, after it has been computed."""
        if memory := self._memory:
            joined = delta.joined
            for name, parent in zip(joined.name.tolist(), joined.parent.tolist(), strict=True):
                if parent != NO_PARENT and name not in delta.prompts and name not in self._begun:
                    memory.copy(parent, name)
            self._begun.difference_update(joined.name.tolist())

    def rows(self, names: Ints) -> Tensor | None:
        return self._memory.rows(names.tolist()) if self._memory else None

    def select(self, rows: Tensor | None) -> None:
        """Select the sequences that slices run with."""
        if self._memory and rows is not None:
            self._memory.selected = rows

    def clear(self) -> None:
        self._begun.clear()
        if self._memory:
            self._memory.clear()
