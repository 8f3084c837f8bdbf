"""Another number of attention workers: what it would be, and whether it can be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lamina.cluster.layout import Layout
from lamina.cluster.machine import Workplace
from lamina.pipeline import EngineError, Partition
from lamina.pipeline.facts import ModelFacts
from lamina.pipeline.options import require_count


@dataclass(frozen=True)
class Scaled:
    """A layout with other attention workers, each with as much memory as one had before."""

    layout: Layout
    partition: Partition
    pool_tokens: int
    cores: list[int]  # of each worker

    @staticmethod
    def of(
        layout: Layout, facts: ModelFacts, pool_tokens: int, attention_workers: int, machine: Workplace
    ) -> Scaled:
        """An EngineError if there cannot be so many."""
        require_count("attention_workers", attention_workers)
        then = replace(layout, attention_workers=attention_workers)
        partition = then.dealt(facts.heads, facts.kv_heads)
        tokens, more = pool_tokens, attention_workers - layout.attention_workers
        share_bytes = pool_tokens * facts.token_bytes
        if layout.partition == "heads":
            # All of them have a part of each token: with more of them there are more tokens.
            tokens = pool_tokens * attention_workers // layout.attention_workers
            share_bytes //= layout.attention_workers
        if tokens < 1:
            raise EngineError(
                "engine-kv-too-small", f"{attention_workers} attention workers have no room: keep more"
            )
        free_bytes = machine.free_bytes()
        if more * share_bytes > free_bytes:
            raise EngineError(
                "engine-out-of-memory",
                f"{more} more attention workers need {more * share_bytes / 1e9:,.1f} GB for KV and "
                f"{free_bytes / 1e9:,.1f} GB are free: add fewer",
            )
        return Scaled(then, partition, tokens, machine.cores(then))

    @property
    def pools(self) -> int:
        """KV memories that a request can be in."""
        return self.partition.pools
