"""Prompts for a trace, which has only their lengths: token ids drawn by the replay's seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laminabench.traces.table import Trace

# Keeps these draws apart from all others that come of the same seed.
_STREAM = 0x70726F6D


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompt of each row, the same whichever others are asked for and in whatever order."""

    trace: Trace
    seed: int
    vocab: int

    def of(self, row: int) -> list[int]:
        # Raw integers are what numpy promises to keep. The remainder favours nobody by more than 2**-40.
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(_STREAM, row)))
        drawn = np.asarray(bits.random_raw(int(self.trace.prompt_tokens[row])), np.uint64)
        tokens: list[int] = (drawn % np.uint64(self.vocab)).tolist()
        return tokens
