"""A request on its way through the engine, its result, and reports of iterations and faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.pipeline import Revealed, Spent
from lamina.serve.sampling import Sampling


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's own log-probability, and the likeliest tokens with theirs."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class LogprobTable:
    """Log-probabilities of the sequences that request them, by row: how many likeliest, and each token's.

    They are the model's own: before temperature, top-k and top-p.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, list[TokenLogprobs]]] = {}

    def open(self, row: int, most: int) -> None:
        self._rows[row] = most, []

    def record(self, rows: NDArray[np.int64], revealed: Revealed, which: NDArray[np.intp]) -> None:
        """Record the next tokens of the batch's rows, and of beams which ones continue (`which`)."""
        own_rows = rows[revealed.rows[which]]
        parts = (own_rows, revealed.chosen[which], revealed.tokens[which], revealed.logs[which])
        for row, own, ids, logs in zip(*(part.tolist() for part in parts), strict=True):
            most, entries = self._rows[row]
            entries.append(TokenLogprobs(own, tuple(zip(ids[:most], logs[:most], strict=True))))

    def of(self, row: int, since: int = 0) -> tuple[TokenLogprobs, ...] | None:
        """Return the log-probabilities of a row's tokens from one on; None if not requested."""
        return tuple(self._rows[row][1][since:]) if row in self._rows else None

    def close(self, rows: list[int]) -> None:
        """End the sequences; no-op for sequences without a callback."""
        for row in rows:
            self._rows.pop(row, None)


# The score of what must not win: far below any sum of log-probabilities, far from overflow.
HOPELESS = -1.0e9


@dataclass(frozen=True)
class Beam:
    """A finished continuation and its score, its log-probability divided by length ** length_penalty."""

    tokens: tuple[int, ...]
    score: float


class BeamSearch:
    """The beams of one request. Each step takes the live beams' likeliest tokens and decides which go on.

    The rules are those of transformers' generate(num_beams=...), so that results can be compared with it:
    with k end tokens, max(2, 1 + k) times as many candidates as beams are considered; of those that end, only
    the ones among the best `beams` count; the search stops when no live beam could still better the worst
    finished one.
    """

    def __init__(self, sampling: Sampling, stops: tuple[int, ...]) -> None:
        self._sampling = sampling
        self._stops = torch.tensor(stops, dtype=torch.int64)
        self._scores = torch.full((sampling.beams,), HOPELESS)
        self._scores[0] = 0.0  # all beams are the prompt yet: only one of them may be continued
        self.live: list[tuple[int, ...]] = [()] * sampling.beams  # what each beam has made
        self._finished: list[Beam] = []
        self._hopeful = True
        self.done = False

    @property
    def candidates(self) -> int:
        """Continuations that are looked at; of one beam no more of them can count."""
        return max(2, 1 + len(self._stops)) * self._sampling.beams

    def step(self, logs: NDArray[np.float32], likeliest: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Extend the beams from each live beam's likeliest tokens, [beams, candidates] or all there are, and
        their log-probabilities; return each surviving beam's parent and token.
        """
        beams = self._sampling.beams
        total = torch.from_numpy(logs) + self._scores[:, None]
        scores, places = total.view(-1).topk(self.candidates)
        parents = places // logs.shape[-1]
        tokens = torch.from_numpy(likeliest).view(-1)[places]
        length = len(self.live[0]) + 1
        ends = torch.isin(tokens, self._stops) | (length >= self._sampling.max_tokens)

        alive, survivors = (scores + ends * HOPELESS).topk(beams)
        self._finish(scores, parents, tokens, ends, length)
        chosen = [(int(parents[i]), int(tokens[i])) for i in survivors]
        self.live = [(*self.live[parent], token) for parent, token in chosen]
        self._scores = alive
        self._hopeful = self._hopeful and self._could_improve(length)
        self.done = not self._hopeful or self._full or bool(ends.all())
        return [parent for parent, _ in chosen], [token for _, token in chosen]

    def best(self, n: int) -> list[Beam]:
        """Return the n best, finished ones before those that still ran when the search was stopped."""
        length = max(1, len(self.live[0]))
        running = [
            Beam(tokens, self._normalised(float(score), length))
            for tokens, score in zip(self.live, self._scores, strict=True)
            if score > HOPELESS / 2
        ]
        return (self._finished + running)[:n]

    def _finish(
        self,
        scores: torch.Tensor,
        parents: torch.Tensor,
        tokens: torch.Tensor,
        ends: torch.Tensor,
        length: int,
    ) -> None:
        if self._full or not self._hopeful:
            return
        for rank in torch.nonzero(ends[: self._sampling.beams])[:, 0].tolist():
            sequence = (*self.live[int(parents[rank])], int(tokens[rank]))
            self._finished.append(Beam(sequence, self._normalised(float(scores[rank]), length)))
        # Stable: of equal scores the one that was there first stays first.
        self._finished.sort(key=lambda beam: -beam.score)
        del self._finished[self._sampling.beams :]

    @property
    def _full(self) -> bool:
        """Whether there are enough finished beams for a search that stops at the first ones."""
        return self._sampling.early_stopping is True and len(self._finished) == self._sampling.beams

    def _could_improve(self, length: int) -> bool:
        if len(self._finished) < self._sampling.beams:
            return True
        lasting = self._sampling.early_stopping == "never" and self._sampling.length_penalty > 0
        best = self._normalised(float(self._scores[0]), self._sampling.max_tokens if lasting else length)
        return best > self._finished[-1].score

    def _normalised(self, score: float, length: int) -> float:
        return score / math.pow(length, self._sampling.length_penalty)


FinishReason = Literal["length", "stop", "cancelled", "failed"]


@dataclass(frozen=True)
class Completion:
    """One sequence that came of a request."""

    tokens: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None = None
    score: float | None = None  # of beam search


@dataclass(frozen=True)
class Result:
    """The result of a request: its completions, in the order of samples or of falling score."""

    request: int
    completions: tuple[Completion, ...]
    prompt_tokens: int
    preemptions: int
    error: str | None = None  # why it failed

    def pieces(self, delivered: Mapping[int, int]) -> list[Piece]:
        return pieces_of(dict(enumerate(self.completions)), delivered)


@dataclass(frozen=True)
class Piece:
    """Tokens that a stream has next, of one of the request's sequences."""

    sample: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None  # of the sequence's last


def pieces_of(ended: Mapping[int, Completion], delivered: Mapping[int, int]) -> list[Piece]:
    """Return the last piece of each sequence that has ended and has not been delivered whole."""
    result = []
    for sample, done in ended.items():
        since = delivered.get(sample, 0)
        if since < len(done.tokens):
            logprobs = done.logprobs and done.logprobs[since:]
            result.append(Piece(sample, done.tokens[since:], logprobs, done.finish_reason))
    return result


@dataclass
class Request:
    number: int
    prompt: NDArray[np.int64]  # of a decode-only request: its last token alone matters
    sampling: Sampling
    stops: tuple[int, ...]
    seed: int
    scheduler_row: int  # the number that the scheduler knows it by
    key: int = 0  # its place among those that wait: smaller ones go first
    made: tuple[int, ...] = ()  # tokens that it had made before it came here
    batch: int = 0  # that it is in, or was in last
    pool: int = 0  # the KV memory that it is in, or was in last
    staged: bool = False  # its sequences have memory, and their KV comes before they join
    expected: list[int] = field(default_factory=list)  # their names, as far as attention workers know them
    setbacks: float = 0.0  # losses of workers that its prompt may have been the cause of, since it ran last
    rows: list[int] = field(default_factory=list)  # its live sequences' rows; none before it has begun
    samples: dict[int, int] = field(default_factory=dict)  # row -> which sample it is
    ended: dict[int, Completion] = field(default_factory=dict)  # by sample
    search: BeamSearch | None = None
    preemptions: int = 0


class Progress(NamedTuple):
    """The state of a request that another engine continues."""

    made: tuple[int, ...]  # tokens of its first sample
    runs: bool  # it is in a batch, or has memory
    preemptions: int


@dataclass
class Step(Spent):
    """One iteration of one batch. Requests are given by their numbers, times in seconds, as the caller's
    thread saw them; of workers elsewhere, engine.records() has theirs.
    """

    batch: int = 0  # which one
    iteration: int = 0  # of this batch, from 0
    size: int = 0  # sequences; 0 if nothing ran
    kv_tokens: int = 0  # that attention read
    prompt_tokens: int = 0  # of prompts that model workers computed with it, before its tokens
    joined: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)  # made room before it
    moved: list[int] = field(default_factory=list)  # ran on an engine of a fleet, and continue on another one
    ended: list[int] = field(default_factory=list)
    started_s: float = 0.0  # time.monotonic()
    ended_s: float = 0.0  # when its tokens were there
    host_s: float = 0.0  # not spent on what Spent has: scheduling, telling workers, bookkeeping


@dataclass(frozen=True)
class Fault:
    """Workers were lost and replaced. No token was."""

    workers: tuple[str, ...]  # that were replaced; none if they had only lost each other
    why: str
    noticed_s: float  # time.monotonic()
    resumed_s: float  # when everything that had been under way was under way again
    requests: int  # whose KV, or a part of it, has to be computed again
    kv_tokens: int  # of theirs
