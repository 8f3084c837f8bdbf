"""KV slots of the sequences on one attention worker, by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.kv import Arena
from lamina.pipeline.batch_rows import ALL, NO_PARENT, BatchDelta, Ints, places_of, staying


class Arrival(NamedTuple):
    """A sequence whose prompt's KV is to arrive, with the slots of its last tokens in each space.

    Tokens that are shared or outside a space's window have no slots here.
    """

    name: int
    tokens: int
    slots: tuple[NDArray[np.int32], ...]  # by space

    @property
    def complete(self) -> bool:
        """True if nothing has to arrive."""
        return not self.slots[0].size  # every space has slots of the last token

    def within(self, space: int, begin: int, end: int) -> NDArray[np.int32]:
        """Return the slots of the tokens `begin` to `end` that have one."""
        slots = self.slots[space]
        first = self.tokens - len(slots)
        return slots[max(begin - first, 0) : max(end - first, 0)]


class KvSlots:
    """Allocation of slots to sequences, updated by each `BatchDelta`."""

    def __init__(self, arena: Arena, batches: int) -> None:
        self.arena = arena
        self._names: list[Ints] = [np.empty(0, np.int64) for _ in range(batches)]
        self._expected: set[int] = set()  # have slots and will join a batch
        # By batch: the slots of its newest tokens in each space, or None if an iteration starts again.
        self.newest: list[tuple[NDArray[np.int32], ...] | None] = [None] * batches

    def names(self, batch: int) -> Ints:
        return self._names[batch]

    def apply(self, batch: int, delta: BatchDelta) -> list[Arrival]:
        """Apply a delta; return the joining sequences, which have slots but no KV yet."""
        for parent, child, tokens in delta.forks.tolist():
            self.arena.fork(parent, child, None if tokens == ALL else tokens)
        here = self._names[batch]
        if len(delta.renamed):
            here = here.copy()
            here[places_of(delta.renamed[:, 0], here)] = delta.renamed[:, 1]
        if delta.left.size:
            here = here[staying(here, delta.left)]
        if delta.released.size:
            self.arena.release(delta.released)
        self._drop(delta.dropped[:, 0].tolist())
        if len(delta.joined):
            here = np.concatenate([here, delta.joined.name])
        self._names[batch] = here
        return list(self._arrivals(delta))

    def expect(self, delta: BatchDelta) -> list[Arrival]:
        """Allocate slots for sequences that join when their KV has arrived, or with this delta."""
        arrivals = []
        joined = set(delta.joined.name.tolist())
        for name, parent, shared, tokens, _ in delta.expected.tolist():
            if name not in joined:
                self._expected.add(name)
            arrivals.append(self._arrival(name, tokens, parent, shared))
        return arrivals

    def expect_none(self) -> None:
        """Release the slots of sequences that were expected and have not joined."""
        self._drop(list(self._expected))

    def _drop(self, names: list[int]) -> None:
        if names:
            self._expected -= set(names)
            self.arena.release(np.array(names, np.int64))

    def _arrivals(self, delta: BatchDelta) -> Iterator[Arrival]:
        joined = delta.joined
        columns = (joined.name, joined.position, joined.parent, joined.shared)
        expected = set(delta.expected[:, 0].tolist())  # their prompts begin and end with this iteration
        for name, tokens, parent, shared in zip(*(column.tolist() for column in columns), strict=True):
            if name in self._expected:
                self._expected.remove(name)
            elif name not in expected:
                yield self._arrival(name, tokens, parent, shared)

    def _arrival(self, name: int, tokens: int, parent: int, shared: int) -> Arrival:
        if parent != NO_PARENT:
            self.arena.fork(parent, name, shared)
        return Arrival(name, tokens, self.arena.allocate(name, tokens - shared))

    def forget(self, batch: int) -> None:
        self.arena.release(self._names[batch])
        self._names[batch] = np.empty(0, np.int64)

    def extend(self, batch: int, only: Ints | None = None) -> Ints:
        """Allocate slots for the next token of a batch's sequences, or of those in `only`; return all names.

        `only` is for an iteration that starts again: the others have their slots already.
        """
        names = self._names[batch]
        slots = self.arena.extend(names if only is None else only)
        self.newest[batch] = slots if only is None else None
        return names
