"""Whether a request can be served at all, and its place among those that wait."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline import EngineError
from lamina.pipeline.facts import ModelFacts
from lamina.serve.sampling import RequestError, Sampling, whole

# From what a request asks and its prompt's length to its place in the queue: smaller first, then who came
# first.
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
    """The request, if it can be served, else a RequestError with why not."""
    sampling.require_sense(facts.vocab_size)
    tokens = checked_prompt(prompt, facts.vocab_size, by_length=decode_only)
    stops = set(sampling.stop_tokens)
    if not sampling.ignore_eos and not decode_only:
        stops.update(facts.eos_token_ids)
    if sampling.beams > 1 and len(stops) >= facts.vocab_size:
        raise RequestError(
            "request-beams-no-token", "every token is an end token: a beam search needs one to go on with"
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
            "request-resume-unsupported", "requests go on with one sample and without logprobs only"
        )
    if len(before) >= sampling.max_tokens:
        raise RequestError(
            "request-nothing-to-make", f"all {sampling.max_tokens:,} tokens that are wanted are made"
        )
    if wrong := [token for token in before if not 0 <= token < facts.vocab_size]:
        raise RequestError(
            "request-token-unknown", f"token {wrong[0]} was never made: the model has {facts.vocab_size:,}"
        )
    return tokens, sampling, tuple(sorted(stops)), before


def checked_prompt(prompt: Prompt, vocab_size: int, *, by_length: bool) -> NDArray[np.int64]:
    """The engine's own copy of the token ids; `by_length`: of as many zeros, if the prompt is a number."""
    if hasattr(prompt, "__index__") and not hasattr(prompt, "__len__"):
        if not by_length:
            raise RequestError(
                "request-prompt-length-only", "prompts by length are for decode-only engines: give token ids"
            )
        length = whole("the prompt's length", prompt)
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
