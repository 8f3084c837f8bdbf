"""Sampling parameters of a request."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CodedError
from lamina.pipeline import EngineError
from lamina.pipeline.options import ModelFacts

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
            object.__setattr__(self, name, integer(name, getattr(self, name)))
        for name in ("seed", "logprobs"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else integer(name, value))
        if isinstance(self.stop_tokens, str) or not isinstance(self.stop_tokens, Iterable):
            raise RequestError(
                "sampling-value-invalid", f"stop_tokens is {self.stop_tokens!r}: give a tuple of token ids"
            )
        stops = tuple(integer("a stop token", token) for token in self.stop_tokens)
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
            ("temperature", 0 <= self.temperature <= 1e30, "give 0 (greedy) to 1e30"),
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


def integer(name: str, value: object) -> int:
    """Return the value as an int, if it is a whole number of any kind."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError("request-not-whole", f"{name} is {value!r}: give a whole number")
    return operator.index(value)


# From a request's sampling and prompt length to its key in the queue: smaller first, then first come, first
# served.
Policy = Callable[[Sampling, int], int]
POLICIES: dict[str, Policy] = {
    "fifo": lambda sampling, prompt_tokens: 0,
    "sjf": lambda sampling, prompt_tokens: sampling.max_tokens,
}
ADMISSIONS = ("reserve", "grow")
LARGEST_PRIORITY = 2**30

Prompt = Sequence[int] | NDArray[Any] | int
# Prompt, sampling, end tokens, and tokens made before, of a request that can be served.
Checked = tuple[NDArray[np.int64], Sampling, tuple[int, ...], tuple[int, ...]]


def policy_of(policy: str | Policy) -> Policy:
    if isinstance(policy, str) and policy not in POLICIES:
        raise EngineError(
            "engine-policy-unknown", f"policy '{policy}': give a function, or {', '.join(POLICIES)}"
        )
    return POLICIES[policy] if isinstance(policy, str) else policy


def priority(policy: Policy, sampling: Sampling, prompt_tokens: int) -> int:
    result = policy(sampling, prompt_tokens)
    if not hasattr(result, "__index__") or abs(result) > LARGEST_PRIORITY:
        raise EngineError(
            "engine-priority-invalid",
            f"the policy gave {result!r}: a priority is a whole number, at most {LARGEST_PRIORITY:,} either "
            "side of 0",
        )
    return operator.index(result)


def checked(
    facts: ModelFacts,
    prompt: Prompt,
    sampling: Sampling,
    made: Sequence[int] = (),
    *,
    decode_only: bool,
    max_sequences: int,
) -> Checked:
    """Return the request, if it can be served, else a RequestError with why not."""
    sampling.require_sense(facts.vocab_size)
    tokens = checked_prompt(prompt, facts.vocab_size, by_length=decode_only)
    stops = set(sampling.stop_tokens)
    if not sampling.ignore_eos and not decode_only:
        stops.update(facts.eos_token_ids)
    if sampling.beams > 1 and len(stops) >= facts.vocab_size:
        raise RequestError(
            "request-beams-no-token", "every token is an end token: a beam search needs one that is not"
        )
    if sampling.width > max_sequences:
        raise RequestError(
            "request-too-wide",
            f"{sampling.width} sequences side by side are more than the {max_sequences} that this engine "
            "decodes together (max_sequences)",
        )
    # The last token made is never read, so it needs no position.
    if len(tokens) + sampling.max_tokens - 1 > facts.max_positions:
        raise RequestError(
            "request-too-long",
            f"a prompt of {len(tokens):,} tokens and {sampling.max_tokens:,} to make need more than the "
            f"model's {facts.max_positions:,} positions",
        )
    before = tuple(map(operator.index, made))
    if before and (sampling.width > 1 or sampling.logprobs is not None):
        raise RequestError(
            "request-resume-unsupported", "only requests with one sample and without logprobs can be resumed"
        )
    if len(before) >= sampling.max_tokens:
        raise RequestError(
            "request-nothing-to-make", f"all {sampling.max_tokens:,} requested tokens exist already"
        )
    if wrong := [token for token in before if not 0 <= token < facts.vocab_size]:
        raise RequestError(
            "request-token-unknown", f"token {wrong[0]} was never made: the model has {facts.vocab_size:,}"
        )
    return tokens, sampling, tuple(sorted(stops)), before


def checked_prompt(prompt: Prompt, vocab_size: int, *, by_length: bool) -> NDArray[np.int64]:
    """Return the engine's own copy of the token ids; `by_length`: of as many zeros, if the prompt is a
    number.
    """
    if hasattr(prompt, "__index__") and not hasattr(prompt, "__len__"):
        if not by_length:
            raise RequestError(
                "request-prompt-length-only", "prompts by length are for decode-only engines: give token ids"
            )
        length = integer("the prompt's length", prompt)
        if length < 1:
            raise RequestError(
                "request-prompt-empty", f"the prompt's length is {length}: it has at least one token"
            )
        return np.zeros(length, np.int64)
    given = _array(prompt)
    if given.ndim != 1:
        raise RequestError(
            "request-prompt-shape", f"the prompt has the shape {given.shape}: give one row of token ids"
        )
    if not given.size:
        raise RequestError("request-prompt-empty", "the prompt is empty: give at least one token")
    if given.dtype.kind not in "iu":
        raise RequestError(
            "request-prompt-type", f"the prompt is made of {given.dtype}: token ids are whole numbers"
        )
    outside = np.flatnonzero((given < 0) | (given >= vocab_size))
    if outside.size:
        where = int(outside[0])
        raise RequestError(
            "request-prompt-token", f"prompt token {where} is {given[where]}, not below {vocab_size:,}"
        )
    return given.astype(np.int64, copy=True)


def _array(prompt: Any) -> NDArray[Any]:
    try:
        given = np.asarray(prompt)
    except ValueError as error:  # rows of different lengths
        raise RequestError("request-prompt-shape", f"the prompt is no row of token ids: {error}") from error
    # numpy makes nothing at all into floats.
    return given.astype(np.int64) if not given.size else given
