"""A request on its way through the engine, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lamina.serve.beams import BeamSearch
from lamina.serve.sampler import Logprobs
from lamina.serve.sampling import Sampling

FinishReason = Literal["length", "stop", "cancelled", "failed"]


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's own log-probability, and the likeliest tokens with theirs."""

    chosen: float
    top: tuple[tuple[int, float], ...]


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


@dataclass(frozen=True)
class Piece:
    """Tokens that a stream has next, of one of the request's sequences."""

    sample: int
    tokens: tuple[int, ...]


class LogprobLog:
    """The log-probabilities of one sequence as they come."""

    def __init__(self, tokens: int, most: int) -> None:
        self._chosen = np.empty(tokens, np.float32)
        self._top_tokens = np.empty((tokens, most), np.int64)
        self._top = np.empty((tokens, most), np.float32)

    @property
    def most(self) -> int:
        return self._top.shape[1]

    def record(self, place: int, found: Logprobs, row: int) -> None:
        self._chosen[place] = found.chosen[row]
        self._top_tokens[place] = found.top_tokens[row, : self.most]
        self._top[place] = found.top[row, : self.most]

    def told(self, tokens: int) -> tuple[TokenLogprobs, ...]:
        return tuple(
            TokenLogprobs(chosen, tuple(zip(ids, values, strict=True)))
            for chosen, ids, values in zip(
                self._chosen[:tokens].tolist(),
                self._top_tokens[:tokens].tolist(),
                self._top[:tokens].tolist(),
                strict=True,
            )
        )


@dataclass
class Request:
    """A request while it waits or runs."""

    number: int
    prompt: NDArray[np.int64]  # of a decode-only request: its last token alone matters
    sampling: Sampling
    stops: tuple[int, ...]
    seed: int
    place: int  # its row in the scheduler
    rows: list[int] = field(default_factory=list)  # its live sequences' rows; none before it has begun
    samples: dict[int, int] = field(default_factory=dict)  # row -> which sample it is
    ended: dict[int, Completion] = field(default_factory=dict)  # by sample
    search: BeamSearch | None = None
    preemptions: int = 0
