"""What is new since a batch's last iteration: all that its workers have to be told before the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALL = -1  # of a fork: every token
NOBODY = -1  # a sequence that joins and shares nothing
NO_LOGPROBS = -1
# Tables have so many columns; what has none is a column itself.
_WIDTHS = {"forks": 3, "renamed": 3, "left": None, "released": None, "expected": 5, "dropped": 2}
_FEW = 32  # up to as many it is faster to look for one after the other

Ints = NDArray[np.int64]


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass
class Joined:
    """Sequences that join a batch, one row each."""

    name: Ints = field(default_factory=_none)  # in the KV arena
    token: Ints = field(default_factory=_none)  # that its first iteration begins with
    position: Ints = field(default_factory=_none)  # of that token: as many come before it
    parent: Ints = field(default_factory=_none)  # whose first tokens it shares, or NOBODY
    shared: Ints = field(default_factory=_none)  # how many
    pool: Ints = field(default_factory=_none)  # which attention worker has it, where each has whole requests
    made: Ints = field(default_factory=_none)  # tokens it has made before
    top_k: Ints = field(default_factory=_none)
    most: Ints = field(default_factory=_none)  # likeliest tokens to tell of, or NO_LOGPROBS
    seed: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    temperature: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    top_p: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def __len__(self) -> int:
        return len(self.name)

    def where(self, rows: NDArray[Any]) -> Joined:
        """Some of them."""
        return Joined(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})


@dataclass
class BatchDelta:
    """In the order in which it is to be applied.

    Where attention workers have whole requests, each is told of its own; model workers are told everything.
    """

    forks: Ints = field(default_factory=lambda: np.empty((0, 3), np.int64))  # parent, child, tokens or ALL
    renamed: Ints = field(default_factory=lambda: np.empty((0, 3), np.int64))  # old, new name, next token
    left: Ints = field(default_factory=_none)  # names that are not in the batch any more
    released: Ints = field(default_factory=_none)  # names whose KV nobody needs
    joined: Joined = field(default_factory=Joined)
    # Those who will join once their KV has come from prefill workers: name, parent or NOBODY, shared tokens,
    # tokens, pool. And those of them who will not: name, pool.
    expected: Ints = field(default_factory=lambda: np.empty((0, 5), np.int64))
    dropped: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))
    # By name the whole text whose KV a joining sequence needs, but for its last token; none where KV is made
    # up.
    prompts: dict[int, NDArray[np.int32]] = field(default_factory=dict)

    def said(self) -> dict[str, Any]:
        """As msgpack takes it: what is not empty, in bytes."""
        told: dict[str, Any] = {
            name: getattr(self, name).tobytes() for name in _WIDTHS if len(getattr(self, name))
        }
        if len(self.joined):
            told["joined"] = {item.name: getattr(self.joined, item.name).tobytes() for item in fields(Joined)}
        if self.prompts:
            told["prompts"] = [(name, tokens.tobytes()) for name, tokens in self.prompts.items()]
        return told

    @staticmethod
    def heard(told: Mapping[str, Any]) -> BatchDelta:
        """What was said."""
        delta = BatchDelta()
        for name, width in _WIDTHS.items():
            column = np.frombuffer(told.get(name, b""), np.int64)
            setattr(delta, name, column.reshape(-1, width) if width else column)
        if "joined" in told:
            empty = Joined()
            columns = {
                item.name: np.frombuffer(told["joined"][item.name], getattr(empty, item.name).dtype)
                for item in fields(Joined)
            }
            delta.joined = Joined(**columns)
        delta.prompts = {name: np.frombuffer(tokens, np.int32) for name, tokens in told.get("prompts", [])}
        return delta


@dataclass
class BatchSnapshot:
    """A batch as it is once it has changed: for workers that know nothing of it."""

    whole: BatchDelta  # everybody joins, with everybody's prompt
    new: Ints  # those of them whose KV no worker has yet


def names(values: Iterable[int]) -> Ints:
    """As a column."""
    return np.fromiter(values, np.int64)


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
