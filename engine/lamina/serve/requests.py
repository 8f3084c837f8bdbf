"""A request on its way through the engine, what it comes to, and reports of iterations and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline import Spent
from lamina.serve.beams import BeamSearch
from lamina.serve.logprobs import TokenLogprobs
from lamina.serve.sampling import Sampling

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
    """What came of a request: its completions, in the order of samples or of falling score."""

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
    """The last piece of each sequence that has ended and has not been delivered whole."""
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
    place: int  # its row in the scheduler
    key: int = 0  # its place among those that wait: smaller ones go first
    made: tuple[int, ...] = ()  # tokens that it had made before it came here
    batch: int = 0  # that it is in, or was in last
    pool: int = 0  # the KV memory that it is in, or was in last
    staged: bool = False  # its sequences have memory, and their KV comes before they join
    rows: list[int] = field(default_factory=list)  # its live sequences' rows; none before it has begun
    samples: dict[int, int] = field(default_factory=dict)  # row -> which sample it is
    ended: dict[int, Completion] = field(default_factory=dict)  # by sample
    search: BeamSearch | None = None
    preemptions: int = 0


@dataclass
class Step(Spent):
    """One iteration of one batch. Requests are given by their numbers, times in seconds, as the caller's
    thread saw them; of workers elsewhere, engine.records() has theirs.
    """

    batch: int = 0  # which one
    iteration: int = 0  # of this batch, from 0
    size: int = 0  # sequences; 0 if nothing ran
    kv_tokens: int = 0  # that attention read
    joined: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)  # made room before it
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
