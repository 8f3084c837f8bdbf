"""How a request wants its next tokens chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


class RequestError(ValueError):
    """A request that cannot be served; the message says why. Nothing of it has entered the engine."""


@dataclass(frozen=True)
class Sampling:
    """Greedy unless told otherwise.

    With `temperature` above 0 tokens are drawn, from the `top_k` likeliest (0: all) and of those from the
    smallest set that has `top_p` of the probability. The same `seed` gives the same draws, whoever else is in
    the batch; without one the engine makes one up. `n` samples share their prompt. `beams` above 1 is beam
    search, which gives the `n` best. `logprobs` asks for each token's log-probability and that of so many
    likeliest (0: none but its own; None: no log-probabilities).
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    @property
    def width(self) -> int:
        """Sequences that decode side by side."""
        return self.beams if self.beams > 1 else self.n

    def require_sense(self, vocab_size: int) -> None:
        """Raise RequestError unless every wish can be fulfilled."""
        _require(self.max_tokens >= 1, f"max_tokens is {self.max_tokens}: ask for one or more")
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            f"temperature is {self.temperature}: give 0 (greedy) or more",
        )
        _require(self.top_k >= 0, f"top_k is {self.top_k}: give 0 (all tokens) or more")
        _require(0 < self.top_p <= 1, f"top_p is {self.top_p}: give more than 0 and at most 1")
        _require(
            self.n >= 1 and self.beams >= 1, f"n is {self.n} and beams {self.beams}: both are at least 1"
        )
        _require(
            self.beams == 1 or self.n <= self.beams,
            f"n is {self.n}: a search of {self.beams} beams has no more",
        )
        _require(
            self.beams == 1 or (self.temperature == 0 and self.logprobs is None),
            "beam search neither draws nor tells log-probabilities: leave temperature and logprobs out",
        )
        _require(self.beams <= vocab_size // 2, f"beams is {self.beams}: at most half the vocabulary")
        _require(
            self.logprobs is None or 0 <= self.logprobs <= vocab_size,
            f"logprobs is {self.logprobs}: give 0 to {vocab_size}",
        )
        _require(
            math.isfinite(self.length_penalty), f"length_penalty is {self.length_penalty}: give a number"
        )
        for token in self.stop_tokens:
            _require(0 <= token < vocab_size, f"stop token {token} is outside the vocabulary of {vocab_size}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RequestError(otherwise)
