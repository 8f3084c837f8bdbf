"""What each worker is told before a batch's next iteration: what is new to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline import Change, Joined, Partition, State
from lamina.pipeline.change import Ints


class Telling:
    """Which attention worker has which sequence, where each has whole requests, and what follows from it.

    `state` is given where workers have taken over from others: attention workers that are `lacking` know
    nothing of the batch, and model workers nothing either, so that all of them are told the same.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._pool_of: dict[int, int] = {}

    def to_attention(
        self, change: Change, state: State | None, lacking: Collection[int]
    ) -> list[dict[str, Any]]:
        """Of each attention worker."""
        parts = []
        for number in range(self._partition.workers):
            afresh, mine = state is not None and number in lacking, change
            if state and afresh:
                mine = replace(state.whole, expected=change.expected, dropped=change.dropped)
            if self._partition.pools > 1:
                mine = self._of_pool(mine, number)
            # The texts are for those who compute with them.
            names_only = [(name, b"") for name in mine.prompts]
            parts.append({**mine.said(), "prompts": names_only, "afresh": afresh})
        for name in change.released.tolist():
            self._pool_of.pop(name, None)
        joined = change.joined
        self._pool_of.update(zip(joined.name.tolist(), joined.pool.tolist(), strict=True))
        return parts

    def to_model(self, change: Change, state: State | None, lacking: Collection[int]) -> dict[str, Any]:
        """Of all model workers."""
        if state is None:
            return change.said()
        everybody = state.whole.joined
        wanted = np.isin(everybody.name, state.new)
        if self._partition.along == "requests":
            wanted |= np.isin(everybody.pool, list(lacking))
        elif lacking:
            wanted[:] = True
        asked = set(everybody.name[wanted].tolist())
        prompts = {name: text for name, text in state.whole.prompts.items() if name in asked}
        return {
            **replace(state.whole, prompts=prompts).said(),
            "lacking": list(lacking),
            "partial": list(asked - set(state.new.tolist())),
        }

    def _of_pool(self, change: Change, pool: int) -> Change:
        """What an attention worker that has whole requests must know."""
        for name, where in zip(change.joined.name.tolist(), change.joined.pool.tolist(), strict=True):
            self._pool_of[name] = where
        for parent, child, _ in change.forks.tolist():
            self._pool_of[child] = self._pool_of[parent]
        mine: Joined = change.joined.where(change.joined.pool == pool)
        here = set(mine.name.tolist())
        return Change(
            forks=change.forks[self._lie(change.forks[:, 0], pool)],
            renamed=change.renamed[self._lie(change.renamed[:, 0], pool)],
            left=change.left[self._lie(change.left, pool)],
            released=change.released[self._lie(change.released, pool)],
            joined=mine,
            expected=change.expected[change.expected[:, -1] == pool],
            dropped=change.dropped[change.dropped[:, -1] == pool],
            prompts={name: text for name, text in change.prompts.items() if name in here},
        )

    def _lie(self, names: Ints, pool: int) -> NDArray[np.bool_]:
        return np.fromiter((self._pool_of[name] == pool for name in names.tolist()), np.bool_, len(names))
