"""When tokens came and how many at once: at the ends of iterations, or in the chunks that a client saw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from laminabench.analysis.exact import chunks
from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import Ticks, ticks


def arrivals(outcome: Outcome) -> Iterator[tuple[Ticks, NDArray[np.int32]]]:
    """Times and numbers of tokens, some rows at a time, in the order of the table that they are from."""
    if outcome.chunks is not None:
        at_s, tokens = outcome.chunks["at_s"], outcome.chunks["tokens"]
        for rows in chunks(len(at_s)):
            yield ticks(at_s[rows]), tokens[rows]
        return
    start_s, duration_s = outcome.iterations["start_s"], outcome.iterations["duration_s"]
    for rows in chunks(len(start_s)):
        yield ticks(start_s[rows]) + ticks(duration_s[rows]), outcome.iterations["size"][rows]


def all_arrivals(outcome: Outcome) -> tuple[Ticks, NDArray[np.int32]]:
    """All of them at once, for what follows them over time."""
    found = list(arrivals(outcome))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    at, tokens = zip(*found, strict=True)
    return np.concatenate(at), np.concatenate(tokens)
