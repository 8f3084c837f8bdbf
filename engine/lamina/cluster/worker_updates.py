"""Plans for single workers, made of the plan of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from lamina.cluster.messages import NONE, Plan
from lamina.pipeline import BatchDelta, BatchSnapshot, Partition
from lamina.pipeline.batch_rows import Ints
from lamina.pipeline.prompt_calls import calls_of, without_text


class WorkerUpdates:
    """The plans of single workers, derived from the plan of a batch.

    It knows which attention worker has which sequence, where each has whole requests. `snapshot` is given
    after workers were replaced: replaced attention workers (`lacking`) and all model workers have no state of
    the batch, so all model workers get the same full snapshot.
    """

    def __init__(self, partition: Partition, *, stateful: bool) -> None:
        self._partition = partition
        self._stateful = stateful  # model workers keep state of sequences, which goes with them
        self._pool_of: dict[int, int] = {}

    def copied(
        self, snapshot: BatchSnapshot, lacking: Collection[int], copies: Sequence[Mapping[int, int]]
    ) -> frozenset[int]:
        """Return the sequences whose KV the `lacking` workers read back: their `copies` have all of it."""
        if self._stateful or not lacking:  # recurrent states are computed from the text, and KV with them
            return NONE
        joined, by_request = snapshot.whole.joined, self._partition.along == "requests"
        columns = (joined.name.tolist(), joined.position.tolist(), joined.pool.tolist())
        return frozenset(
            name
            for name, tokens, pool in zip(*columns, strict=True)
            if (not by_request or pool in lacking)
            and all(copies[each].get(name, 0) >= tokens for each in ({pool} if by_request else lacking))
        ).difference(snapshot.new.tolist())

    def to_attention(
        self,
        plan: Plan,
        snapshot: BatchSnapshot | None,
        lacking: Collection[int],
        copied: frozenset[int] = NONE,
    ) -> list[Plan]:
        plans, delta = [], plan.delta
        calls = calls_of(self.to_model(plan, snapshot, lacking, copied).delta, alone=self._stateful)
        for number in range(self._partition.workers):
            afresh, own = snapshot is not None and number in lacking, delta
            if snapshot and afresh:
                own = _at_once(snapshot, delta)
            if self._partition.pools > 1:
                own = self._of_pool(own, number)
            # The texts are for workers that compute with them.
            names = {*own.prompts, *(part.name for part in own.parts)}
            own = msgspec.structs.replace(own, prompts={}, parts=[], calls=without_text(calls, names))
            plans.append(msgspec.structs.replace(plan, delta=own, afresh=afresh))
        for name in delta.released.tolist():
            self._pool_of.pop(name, None)
        joined = delta.joined
        self._pool_of.update(zip(joined.name.tolist(), joined.pool.tolist(), strict=True))
        return plans

    def to_model(
        self,
        plan: Plan,
        snapshot: BatchSnapshot | None,
        lacking: Collection[int],
        copied: frozenset[int] = NONE,
    ) -> Plan:
        if snapshot is None:
            return plan
        joined = snapshot.whole.joined
        chosen = np.isin(joined.name, snapshot.new)
        if self._stateful:
            chosen[:] = True
        elif self._partition.along == "requests":
            chosen |= np.isin(joined.pool, list(lacking))
        elif lacking:
            chosen[:] = True
        with_text = set(joined.name[chosen].tolist()) - copied
        prompts = {name: text for name, text in snapshot.whole.prompts.items() if name in with_text}
        return msgspec.structs.replace(
            plan,
            delta=msgspec.structs.replace(_at_once(snapshot, plan.delta), prompts=prompts),
            lacking=frozenset(lacking),
            partial=frozenset(with_text - set(snapshot.new.tolist())),
        )

    def _of_pool(self, delta: BatchDelta, pool: int) -> BatchDelta:
        """Return the part of a delta for an attention worker that has complete requests."""
        for name, where in zip(delta.joined.name.tolist(), delta.joined.pool.tolist(), strict=True):
            self._pool_of[name] = where
        for parent, child, _ in delta.forks.tolist():
            self._pool_of[child] = self._pool_of[parent]
        own = delta.joined.where(delta.joined.pool == pool)
        here = set(own.name.tolist())
        return BatchDelta(
            forks=delta.forks[self._lie(delta.forks[:, 0], pool)],
            renamed=delta.renamed[self._lie(delta.renamed[:, 0], pool)],
            left=delta.left[self._lie(delta.left, pool)],
            released=delta.released[self._lie(delta.released, pool)],
            joined=own,
            expected=delta.expected[delta.expected[:, -1] == pool],
            dropped=delta.dropped[delta.dropped[:, -1] == pool],
            prompts={name: text for name, text in delta.prompts.items() if name in here},
            parts=[part for part in delta.parts if part.pool == pool],
        )

    def _lie(self, names: Ints, pool: int) -> NDArray[np.bool_]:
        return np.fromiter((self._pool_of[name] == pool for name in names.tolist()), np.bool_, len(names))


def _at_once(snapshot: BatchSnapshot, delta: BatchDelta) -> BatchDelta:
    """Return the whole batch, and what is new to all: sequences that have not joined yet."""
    return msgspec.structs.replace(
        snapshot.whole, expected=delta.expected, dropped=delta.dropped, parts=delta.parts
    )
