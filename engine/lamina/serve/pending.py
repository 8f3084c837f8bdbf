"""What a batch's workers will have to be told before its next iteration, as it comes together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline import BatchDelta, Joined
from lamina.pipeline.batch_delta import Ints, names
from lamina.serve.sequence_table import SequenceTable


@dataclass
class DeltaBuilder:
    """A Change in the making: lists that grow, made into columns once."""

    forks: list[tuple[int, int, int]] = field(default_factory=list)
    renamed: list[tuple[int, int, int]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # that join
    parents: list[int] = field(default_factory=list)  # of each
    shared: list[int] = field(default_factory=list)
    pools: list[int] = field(default_factory=list)
    prompts: dict[int, NDArray[np.int32]] = field(default_factory=dict)

    def join(self, row: int, parent: int, shared: int, pool: int) -> None:
        """A sequence comes, which shares that many tokens of its parent."""
        self.rows.append(row)
        self.parents.append(parent)
        self.shared.append(shared)
        self.pools.append(pool)

    def leave(self, gone: Ints) -> None:
        """Sequences go, and their KV."""
        self.left += gone.tolist()
        self.released += gone.tolist()

    def build(self, table: SequenceTable) -> BatchDelta:
        """All of it."""
        rows = np.array(self.rows, np.int64)
        joined = Joined(
            name=table.kv[rows],
            token=table.last[rows],
            position=table.position[rows],
            parent=names(self.parents),
            shared=names(self.shared),
            pool=names(self.pools),
            made=table.made[rows],
            top_k=table.top_k[rows],
            most=table.most[rows],
            seed=table.seed[rows],
            temperature=table.temperature[rows],
            top_p=table.top_p[rows],
        )
        return BatchDelta(
            forks=np.array(self.forks, np.int64).reshape(-1, 3),
            renamed=np.array(self.renamed, np.int64).reshape(-1, 3),
            left=names(self.left),
            released=names(self.released),
            joined=joined,
            prompts=self.prompts,
        )
