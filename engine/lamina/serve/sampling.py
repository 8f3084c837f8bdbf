"""How a request wants its next tokens chosen."""

from __future__ import annotations

import math
import operator
import reprlib
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
                "sampling-value-invalid", f"stop_tokens is {self.stop_tokens!r}: give a tuple of token ids"
            )
        stops = tuple(whole("a stop token", token) for token in self.stop_tokens)
        object.__setattr__(self, "stop_tokens", stops)

    @property
    def width(self) -> int:
        """Sequences that decode side by side."""
        return self.beams if self.beams > 1 else self.n

    def require_sense(self, vocab_size: int) -> None:
        """Raise RequestError unless each value can be used, alone and with the others."""
        finite, searched = math.isfinite, self.beams > 1
        growth = abs(self.length_penalty) * math.log(max(self.max_tokens, 1))
        for name, sound, hint in (
            ("max_tokens", self.max_tokens >= 1, "ask for one or more"),
            ("temperature", finite(self.temperature) and self.temperature >= 0, "give 0 (greedy) or more"),
            ("top_k", 0 <= self.top_k < 2**31, "give 0 (all tokens) or more"),
            ("top_p", 0 < self.top_p <= 1, "give more than 0 and at most 1"),
            ("n", self.n >= 1, "give at least 1"),
            ("beams", self.beams >= 1, "give at least 1"),
            (
                "logprobs",
                self.logprobs is None or 0 <= self.logprobs <= vocab_size,
                f"give 0 to {vocab_size}",
            ),
            ("stop_tokens", len(self.stop_tokens) <= MOST_STOPS, f"give at most {MOST_STOPS}"),
            ("stop_tokens", all(0 <= token < vocab_size for token in self.stop_tokens), "give known tokens"),
            ("n", not searched or self.n <= self.beams, f"a search of {self.beams} beams has no more"),
            ("temperature", not searched or self.temperature == 0, "beam search does not draw: leave it out"),
            ("logprobs", not searched or self.logprobs is None, "beam search reveals none: leave it out"),
            ("beams", not searched or self.beams <= vocab_size // 2, "give at most half the vocabulary"),
            (
                "length_penalty",
                not searched or (finite(growth) and growth < LARGEST_EXPONENT),
                f"too large a power of {self.max_tokens:,} tokens",
            ),
            (
                "early_stopping",
                not searched or self.early_stopping in (True, False, "never"),
                "give True, False or 'never'",
            ),
        ):
            if not sound:
                value = reprlib.repr(getattr(self, name))
                raise RequestError("sampling-value-invalid", f"{name} is {value}: {hint}")


def whole(name: str, value: object) -> int:
    """The value as an int, if it is a whole number of any kind."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError("request-not-whole", f"{name} is {value!r}: give a whole number")
    return operator.index(value)
