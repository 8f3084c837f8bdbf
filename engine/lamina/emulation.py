"""Devices that are not here: nothing is computed on them, and what they would take is waited.

What travels between workers is then when it would be there, in nanoseconds of CLOCK_MONOTONIC, which all
processes of a machine share: a piece of work begins when what it needs would have come, however long the real
message took, and lateness of one is not the next one's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MOMENT = torch.int64  # what each head of a row is, in messages


class Emulation(msgspec.Struct, frozen=True):
    """A model and what its pieces take: nanoseconds, entry B of a table for a batch of B sequences."""

    layers: int
    heads: int  # as few as all workers can share out; of each a message has one number
    ranks: int  # model workers of a replica
    pools: int  # attention workers that have whole requests, so that their batches are a part; else 1
    first_slice: Ints
    mid_slice: Ints
    last_slice: Ints
    attention: Ints  # of a layer, but for what each token of KV takes
    per_token: Floats
    combine: int
    q_lead: Ints  # before a slice's end
    q_transfer: Ints
    kv_transfer: Ints
    out_transfer: Ints
    migration: Ints  # of the context to the next slice, where that runs elsewhere


@dataclass
class EmulatedDevice:
    """An emulated device that runs one piece of work after the other. The host submits the next piece when
    one has ended, so is a piece ahead, as with a GPU: its own work meanwhile is hidden.
    """

    model: Emulation
    now: Callable[[], int] = time.monotonic_ns
    sleep: Callable[[float], None] = time.sleep
    free: int = 0  # when what it was given will have ended
    begun: int | None = None  # the first piece since the last query
    # Of each iteration: how long the host waited for its end (less than nothing if it was late), and how long
    # after it it went on.
    ends: list[tuple[int, int]] = field(default_factory=list)

    def run(self, needs: int, takes: int, and_needs: int = 0) -> int:
        """Return when a piece ends that begins when its inputs are there, and ends no sooner than its late
        inputs.
        """
        self.until_free()
        begins = max(self.free, needs)
        self.begun = begins if self.begun is None else self.begun
        self.free = max(begins + takes, and_needs)
        return self.free

    def until_free(self) -> None:
        """Wait until all submitted work has ended."""
        if (left := self.free - self.now()) > 0:
            self.sleep(left / 1e9)

    def end_iteration(self) -> None:
        """Wait for its last piece, and note whether the host was there in time."""
        spare = self.free - self.now()
        self.until_free()
        self.ends.append((spare, self.now() - self.free))

    def took(self) -> tuple[int, int]:
        """Return the busy span since the last call."""
        begun, self.begun = self.begun, None
        return self.free if begun is None else begun, self.free


def moments(rows: int, heads: int, when: int) -> Tensor:
    """Return a tensor that has its arrival time in place of values."""
    return torch.full((rows, heads, 1), when, dtype=MOMENT)


def latest(*came: Tensor) -> int:
    """Return when all of it has arrived."""
    return max(int(each.max()) for each in came)
