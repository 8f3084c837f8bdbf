"""How a request wants its next tokens chosen."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lamina.errors import CodedError

MOST_STOPS = 64
LARGEST_EXPONENT = 600  # of e: far from overflow


class RequestError(CodedError, ValueError):
    """A request that cannot be served; the message says why. Nothing of it has entered the engine."""


@dataclass(frozen=True)
class Sampling:
    """Greedy by default.

    With `temperature` above 0 (in effect 0.00001) tokens are drawn, from the `top_k` likeliest (0: all) and
    of those from the smallest set that has `top_p` of the probability. The same `seed` gives the same draws,
    whatever else is in the batch; without one the engine draws one. `n` samples share their prompt. `beams`
    above 1 is beam search, which gives the `n` best. `logprobs` asks for each token's log-probability and
    that of so many likeliest (0: none but its own; None: no log-probabilities).
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

    def __post_init__(self) -> None:
        for name in ("max_tokens", "top_k", "n", "beams"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name in ("seed", "logprobs"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else whole(name, value))
        if isinstance(self.stop_tokens, str) or not isinstance(self.stop_tokens, Iterable):
            raise RequestError(
                "sampling-stop-tokens-invalid",
                f"stop_tokens is {self.stop_tokens!r}: give a tuple of token ids",
            )
        stops = tuple(whole("a stop token", token) for token in self.stop_tokens)
        object.__setattr__(self, "stop_tokens", stops)

    @property
    def width(self) -> int:
        """Sequences that decode side by side."""
        return self.beams if self.beams > 1 else self.n

    def require_sense(self, vocab_size: int) -> None:
        """Raise RequestError unless every wish can be fulfilled."""
        _require(
            self.max_tokens >= 1,
            "sampling-max-tokens-invalid",
            f"max_tokens is {self.max_tokens}: ask for one or more",
        )
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            "sampling-temperature-invalid",
            f"temperature is {self.temperature}: give 0 (greedy) or more",
        )
        _require(
            0 <= self.top_k < 2**31,
            "sampling-top-k-invalid",
            f"top_k is {self.top_k}: give 0 (all tokens) or more",
        )
        _require(
            0 < self.top_p <= 1,
            "sampling-top-p-invalid",
            f"top_p is {self.top_p}: give more than 0 and at most 1",
        )
        _require(
            self.n >= 1 and self.beams >= 1,
            "sampling-n-invalid",
            f"n is {self.n} and beams {self.beams}: both are at least 1",
        )
        _require(
            self.logprobs is None or 0 <= self.logprobs <= vocab_size,
            "sampling-logprobs-invalid",
            f"logprobs is {self.logprobs}: give 0 to {vocab_size}",
        )
        _require(
            len(self.stop_tokens) <= MOST_STOPS,
            "sampling-stop-tokens-invalid",
            f"stop_tokens has {len(self.stop_tokens)} tokens: give at most {MOST_STOPS}",
        )
        for token in self.stop_tokens:
            _require(
                0 <= token < vocab_size,
                "sampling-stop-tokens-invalid",
                f"stop token {token} is outside the vocabulary of {vocab_size}",
            )
        if self.beams > 1:
            self._require_search(vocab_size)

    def _require_search(self, vocab_size: int) -> None:
        _require(
            self.n <= self.beams,
            "sampling-n-invalid",
            f"n is {self.n}: a search of {self.beams} beams has no more",
        )
        _require(
            self.temperature == 0 and self.logprobs is None,
            "sampling-beams-invalid",
            "beam search neither draws nor reveals log-probabilities: leave temperature and logprobs out",
        )
        _require(
            self.beams <= vocab_size // 2,
            "sampling-beams-invalid",
            f"beams is {self.beams}: at most half the vocabulary",
        )
        _require(
            math.isfinite(self.length_penalty)
            and abs(self.length_penalty) * math.log(self.max_tokens) < LARGEST_EXPONENT,
            "sampling-length-penalty-invalid",
            f"length_penalty is {self.length_penalty}: too large a power of {self.max_tokens:,} tokens",
        )
        _require(
            self.early_stopping in (True, False, "never"),
            "sampling-early-stopping-invalid",
            f"early_stopping is {self.early_stopping!r}: give True, False or 'never'",
        )


def whole(name: str, value: object) -> int:
    """The value as an int, if it is a whole number of any kind."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError("request-not-whole", f"{name} is {value!r}: give a whole number")
    return operator.index(value)


def _require(holds: bool, code: str, otherwise: str) -> None:
    if not holds:
        raise RequestError(code, otherwise)
