"""Random numbers that are the same on every machine, for traces made from a profile.

Only PCG64's raw integers are used: numpy promises to keep them, and does not promise that for its samplers
(normal, gamma, shuffle), which also call log and exp, whose last bit depends on the processor. What is left
is + - * /, comparisons and sorts of unequal integers, which are exact everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from laminabench.traces.table import Float64, Int64

UInt64 = NDArray[np.uint64]

# Requests that share one stratification: every run of this many has the whole distribution in it, so a short
# trace has the same mix as a long one. A power of two: its bits carry positions through the sorts below.
BLOCK = 8192
# Requests next to each other in some order that together see the whole of a distribution.
NEIGHBOURS = 64
_POSITION = np.uint64(BLOCK - 1)


class Draws:
    """One independent stream of uniform numbers; `stream` separates lengths, arrivals and reuse."""

    def __init__(self, seed: int, stream: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream,)))

    def integers(self, size: int) -> UInt64:
        return np.asarray(self._bits.random_raw(size), np.uint64)

    def uniform(self, size: int) -> Float64:
        numbers: Float64 = (self.integers(size) >> np.uint64(11)).astype(np.float64)
        numbers *= 2.0**-53
        return numbers

    def _inside(self, size: int) -> Float64:
        """Return positions within a part: 32 bits, so that no sum is rounded up into the next."""
        numbers: Float64 = (self.integers(size) >> np.uint64(32)).astype(np.float64)
        numbers *= 2.0**-32
        return numbers

    def stratified(self, rows: int, block: int) -> Float64:
        """Return `rows` shuffled blocks of uniform numbers: in each, one in every 1/block-th of [0, 1)."""
        keys = self.integers(rows * block).reshape(rows, block) & ~_POSITION
        keys |= np.arange(block, dtype=np.uint64)
        keys.sort(axis=1)
        places = (keys & _POSITION).ravel()
        return (places + self._inside(rows * block)) / block

    def along(self, places: Int64) -> Float64:
        """Return a uniform number for the request at each of these places (a permutation), even among
        neighbours.
        """
        return self.stratified(-(-len(places) // NEIGHBOURS), NEIGHBOURS)[places]

    def restratified(self, values: Float64, rows: int, block: int) -> Float64:
        """Return the same order within every block, each value moved to the 1/block-th that its rank has."""
        keys = (values.reshape(rows, block) * 2.0**50).astype(np.uint64) * np.uint64(BLOCK)
        keys |= np.arange(block, dtype=np.uint64)
        keys.sort(axis=1)
        owners: Int64 = (keys & _POSITION).astype(np.int64)
        places = np.empty((rows, block), np.float64)
        np.put_along_axis(places, owners, np.arange(block, dtype=np.float64)[None, :], axis=1)
        return (places.ravel() + self._inside(rows * block)) / block
