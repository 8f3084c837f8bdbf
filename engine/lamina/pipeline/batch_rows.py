"""Batches on workers: one row per sequence, deltas between iterations, and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from lamina.model import sampler

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
        """Return all columns in the order of declaration."""
        return msgspec.structs.astuple(self)


class PromptPart(msgspec.Struct, array_like=True, frozen=True):
    """Tokens of a prompt whose KV is computed with an iteration.

    A prompt too long for one iteration has several parts, computed in order at one place; its sequence is
    expected and joins with the last part or later.
    """

    name: int
    begin: int
    end: int
    tokens: int  # of the whole text
    shared: int  # of them whose KV is there
    pool: int
    text: Tokens  # from begin to end; for attention workers nothing


class BatchDelta(msgspec.Struct, omit_defaults=True):
    """Changes of a batch since its last iteration; fields are in the order of application.

    If attention workers have complete requests, each is sent its own; model workers are sent everything.
    """

    forks: Ints = NO_TRIPLES  # parent, child, tokens or ALL
    renamed: Ints = NO_TRIPLES  # old, new name, next token
    left: Ints = NONE  # names no longer in the batch
    released: Ints = NONE  # names whose KV is no longer needed
    joined: Joined = Joined()
    # Sequences whose KV is computed by prefill workers or in parts, and that join once it is there, which may
    # be with this delta: name, parent or NO_PARENT, shared tokens, tokens, pool. And those of them that will
    # not join: name, pool.
    expected: Ints = NO_EXPECTED
    dropped: Ints = NO_PAIRS
    # The text, by name, whose KV a joining sequence needs, plus its last token; empty if KV is random.
    prompts: Mapping[int, Tokens] = {}
    # Computed before these.
    parts: list[PromptPart] = []
    # For attention workers, instead of both: the parts of each call, in order.
    calls: list[list[PromptPart]] = []


class BatchSnapshot(msgspec.Struct):
    """A complete batch after a change, for workers without its earlier state."""

    whole: BatchDelta  # all sequences join, with all prompts
    new: Ints  # sequences whose KV no worker has yet


def staying(among: Ints, removed: Ints) -> NDArray[np.intp]:
    """Return the places in `among` of those not in `removed`, which is short: a few leave at a time."""
    if removed.size > _FEW:
        return np.flatnonzero(~np.isin(among, removed))
    stay = np.ones(among.size, np.bool_)
    for one in removed.tolist():
        stay &= among != one
    return np.flatnonzero(stay)


def places_of(wanted: Ints, among: Ints) -> NDArray[np.intp]:
    """Return the place of each of `wanted` in `among`, which has it."""
    order = np.argsort(among)
    return order[np.searchsorted(among, wanted, sorter=order)]


class Revealed(msgspec.Struct, frozen=True):
    """The model's log-probabilities for the rows that request them."""

    rows: Ints
    chosen: Floats  # of the token that was chosen
    tokens: Ints  # [rows, most], the likeliest ones first
    logs: Floats  # of `tokens`


@dataclass(frozen=True)
class Choice:
    """The next token of every row of a batch."""

    tokens: Ints
    revealed: Revealed | None = None


@dataclass
class Spent:
    """Time of an iteration by use, in seconds, without the caller's own work."""

    prefill_s: float = 0.0
    model_s: float = 0.0
    attention_s: float = 0.0
    sampling_s: float = 0.0
    waited_s: float = 0.0  # for other workers, which did the work


@dataclass
class Landed:
    """An iteration's tokens."""

    choice: Choice
    spent: Spent
    ended_s: float  # time.monotonic() when the tokens were there
    failed: dict[int, str] = field(default_factory=dict)  # sequences whose prompt could not be computed


class BatchRows:
    """The sequences of one batch, in the order in which they joined."""

    def __init__(self) -> None:
        self.columns = Joined()

    def __len__(self) -> int:
        return len(self.columns)

    def apply(self, delta: BatchDelta) -> None:
        """Apply renames of beams, leaving sequences and joining ones."""
        rows = self.columns
        if len(delta.renamed):
            old, new, tokens = delta.renamed.T
            places = places_of(old, rows.name)
            rows = msgspec.structs.replace(rows, name=rows.name.copy(), token=rows.token.copy())
            rows.name[places], rows.token[places] = new, tokens
        if delta.left.size:
            rows = rows.where(staying(rows.name, delta.left))
        self.columns = rows.with_rows(delta.joined) if len(delta.joined) else rows

    def advance(self, tokens: Ints | None) -> None:
        """Advance all rows by a token; None if the next iteration does not start on this worker."""
        rows = self.columns
        token = rows.token if tokens is None else tokens
        self.columns = msgspec.structs.replace(
            rows, position=rows.position + 1, made=rows.made + 1, token=token
        )

    def choose(self, logits: torch.Tensor) -> Choice:
        """Sample tokens from logits [rows, vocab]."""
        rows = self.columns
        wishes = sampler.Wishes(rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.made)
        tokens = sampler.choose(logits, wishes)
        shown = np.flatnonzero(rows.most != NO_LOGPROBS)
        revealed = _reveal(logits, tokens, shown, int(rows.most[shown].max())) if shown.size else None
        return Choice(tokens.cpu().numpy(), revealed)


def _reveal(logits: torch.Tensor, tokens: torch.Tensor, shown: Ints, most: int) -> Revealed:
    places = torch.from_numpy(shown).to(logits.device)
    logs = torch.log_softmax(logits[places].float(), dim=-1)
    top = logs.topk(min(most, logs.shape[-1]), dim=-1)
    chosen = logs.gather(1, tokens[places][:, None])[:, 0]
    return Revealed(shown, chosen.cpu().numpy(), top.indices.cpu().numpy(), top.values.cpu().numpy())
