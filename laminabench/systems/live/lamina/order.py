"""The queue's order in a live replay: a policy's numbers as keys that the engine takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from laminabench.sim.simulate import Priority

# A key before all others, for those who ran when a replay was interrupted.
FIRST = -(2**30)


@dataclass(slots=True)
class Order:
    """The queue's order for the engine, whose policies see a request and not its row in the trace.

    The row that is being submitted is noted here, and `policy` answers for it.
    """

    key: Callable[[int], int] | None
    row: int = 0
    first: bool = False  # it goes before everybody whose place the key decides

    def policy(self, *_: object) -> int:
        assert self.key is not None
        return FIRST if self.first else self.key(self.row)


def order_of(name: str, priority: Priority | None, rows: int) -> Order:
    """The order of a policy's name; its keys are made small enough for the engine.

    Where all keys are known beforehand their ranks say as much. A policy of the user's own is asked when a
    request enters, so its numbers keep about seven digits.
    """
    if priority is None:
        return Order(None)
    if ":" in name:
        return Order(lambda row: squeezed(priority(row)))
    ranks = np.unique([priority(row) for row in range(rows)], return_inverse=True)[1].reshape(-1).tolist()
    return Order(ranks.__getitem__)


def squeezed(key: int) -> int:
    """A number in the same order, below the engine's 2**30: a float's bits, which sort as the float does."""
    bits = int(np.float32(abs(key)).view(np.int32)) >> 1
    return bits if key >= 0 else -bits
