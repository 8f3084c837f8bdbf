"""Prompts of exactly a trace's lengths: token ids, the same for the same prefix block, else all their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from laminabench.systems.live.endpoint.request import Prompt
from laminabench.traces.table import Trace

# Keep these draws apart from each other, and from all others that come of the same seed.
_ROW, _BLOCK, _WARM_UP = 0x656E6470, 0x626C6F63, 0x7761726D


class Prompts(Protocol):
    """What to send for a row of the trace."""

    def of(self, row: int) -> Prompt: ...

    def warm_up(self, number: int, tokens: int) -> Prompt:
        """One that shares nothing with any row's."""


def _drawn(seed: int, stream: int, number: int, count: int, below: int) -> NDArray[np.uint64]:
    # Raw integers are what numpy promises to keep. The remainder favours nobody by more than 2**-40.
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, number)))
    return np.asarray(bits.random_raw(count), np.uint64) % np.uint64(below)


@dataclass(frozen=True, slots=True)
class Draws:
    """Numbers below `below` for every prompt of a trace, the same whichever others are asked for."""

    trace: Trace
    seed: int
    below: int

    def of(self, row: int, count: int) -> NDArray[np.uint64]:
        """`count` of them: those of the row's prefix blocks, and its own behind them."""
        blocks, size = self.trace.prefix_blocks, self.trace.meta.block_tokens
        shared = [] if blocks is None else blocks[row].tolist()
        # A block that the prompt ends in begins as the whole one does.
        parts = [_drawn(self.seed, _BLOCK, block, size, self.below) for block in shared[: -(-count // size)]]
        rest = count - size * len(parts)
        if rest > 0:
            parts.append(_drawn(self.seed, _ROW, row, rest, self.below))
        return np.concatenate(parts)[:count] if parts else np.empty(0, np.uint64)

    def warm_up(self, number: int, count: int) -> NDArray[np.uint64]:
        return _drawn(self.seed, _WARM_UP, number, count, self.below)


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Token ids as they are."""

    draws: Draws

    def of(self, row: int) -> list[int]:
        ids: list[int] = self.draws.of(row, int(self.draws.trace.prompt_tokens[row])).tolist()
        return ids

    def warm_up(self, number: int, tokens: int) -> list[int]:
        ids: list[int] = self.draws.warm_up(number, tokens).tolist()
        return ids
