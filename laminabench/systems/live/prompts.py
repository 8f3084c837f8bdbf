"""Prompts for a trace, which has only their lengths: token ids drawn by the replay's seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from laminabench.traces.table import Trace

# Separates these draws from all others of the same seed.
_STREAM = 0x70726F6D


def drawn(seed: int, stream: int, number: int, count: int, below: int) -> NDArray[np.uint64]:
    """Return numbers below `below`, each independent of which others are drawn and in what order."""
    # Raw integers are what numpy promises to keep. The remainder favours none by more than 2**-40.
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, number)))
    return np.asarray(bits.random_raw(count), np.uint64) % np.uint64(below)


def prompt_of(trace: Trace, seed: int, vocab: int, row: int) -> list[int]:
    """Return the reference engine's prompt for a row."""
    tokens: list[int] = drawn(seed, _STREAM, row, int(trace.prompt_tokens[row]), vocab).tolist()
    return tokens


def prompts_of(trace: Trace, seed: int, vocab: int) -> Iterator[list[int]]:
    """Return the prompts of all rows."""
    return (prompt_of(trace, seed, vocab, row) for row in range(len(trace)))
