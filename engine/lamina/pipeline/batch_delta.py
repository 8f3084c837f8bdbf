"""What is new since a batch's last iteration: all that its workers have to know before the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

ALL = -1  # of a fork: every token
NO_PARENT = -1  # a sequence that joins and shares nothing
NO_LOGPROBS = -1
_FEW = 32  # up to as many it is faster to look for one after the other

Ints = NDArray[np.int64]
Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]

NONE: Ints = np.empty(0, np.int64)
NO_PAIRS: Ints = np.empty((0, 2), np.int64)
NO_TRIPLES: Ints = np.empty((0, 3), np.int64)
NO_EXPECTED: Ints = np.empty((0, 5), np.int64)
_NO_FLOATS: Floats = np.empty(0, np.float32)


class Joined(msgspec.Struct, array_like=True, frozen=True):
    """Sequences that join a batch, one row each."""

    name: Ints = NONE  # in the KV arena
    token: Ints = NONE  # that its first iteration begins with
    position: Ints = NONE  # of that token: as many come before it
    parent: Ints = NONE  # whose first tokens it shares, or NO_PARENT
    shared: Ints = NONE  # how many
    pool: Ints = NONE  # which attention worker has it, where each has whole requests
    made: Ints = NONE  # tokens it has made before
    top_k: Ints = NONE
    most: Ints = NONE  # likeliest tokens to reveal, or NO_LOGPROBS
    seed: NDArray[np.uint64] = np.empty(0, np.uint64)
    temperature: Floats = _NO_FLOATS
    top_p: Floats = _NO_FLOATS

    def __len__(self) -> int:
        return len(self.name)

    def where(self, rows: NDArray[Any]) -> Joined:
        return Joined(*(column[rows] for column in self.columns()))

    def with_rows(self, more: Joined) -> Joined:
        return Joined(*map(np.concatenate, zip(self.columns(), more.columns(), strict=True)))

    def columns(self) -> tuple[NDArray[Any], ...]:
        """All of them, in the order in which they are declared."""
        return msgspec.structs.astuple(self)


class BatchDelta(msgspec.Struct, omit_defaults=True):
    """In the order in which it is to be applied.

    Where attention workers have whole requests, each is sent its own; model workers are sent everything.
    """

    forks: Ints = NO_TRIPLES  # parent, child, tokens or ALL
    renamed: Ints = NO_TRIPLES  # old, new name, next token
    left: Ints = NONE  # names that are not in the batch any more
    released: Ints = NONE  # names whose KV is not needed any more
    joined: Joined = Joined()
    # Sequences that will join once their KV has come from prefill workers: name, parent or NO_PARENT, shared
    # tokens, tokens, pool. And those of them that will not: name, pool.
    expected: Ints = NO_EXPECTED
    dropped: Ints = NO_PAIRS
    # By name the whole text whose KV a joining sequence needs, but for its last token; none where KV is made
    # up.
    prompts: Mapping[int, Tokens] = {}


class BatchSnapshot(msgspec.Struct):
    """A batch as it is once it has changed: for workers that know nothing of it."""

    whole: BatchDelta  # all sequences join, with all prompts
    new: Ints  # those of them whose KV no worker has yet


def staying(among: Ints, gone: Ints) -> NDArray[np.intp]:
    """Where those are in `among` that are not in `gone`, which is short: a few leave at a time."""
    if gone.size > _FEW:
        return np.flatnonzero(~np.isin(among, gone))
    stay = np.ones(among.size, np.bool_)
    for one in gone.tolist():
        stay &= among != one
    return np.flatnonzero(stay)


def places_of(wanted: Ints, among: Ints) -> NDArray[np.intp]:
    """Where each of `wanted` is in `among`, which has it."""
    order = np.argsort(among)
    return order[np.searchsorted(among, wanted, sorter=order)]
