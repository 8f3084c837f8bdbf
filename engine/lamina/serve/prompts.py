"""A prompt as it was given, made into token ids or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.serve.sampling import RequestError, whole

Prompt = Sequence[int] | NDArray[Any] | int


def checked_prompt(prompt: Prompt, vocab_size: int, *, by_length: bool) -> NDArray[np.int64]:
    """The engine's own copy of the token ids; `by_length`: of as many zeros, if the prompt is a number."""
    if hasattr(prompt, "__index__") and not hasattr(prompt, "__len__"):
        if not by_length:
            raise RequestError(
                "request-prompt-length-only",
                "a prompt given by its length is for decode-only engines: give token ids",
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
            "request-prompt-token",
            f"prompt token {where} is {given[where]}: the vocabulary has {vocab_size:,}",
        )
    return given.astype(np.int64, copy=True)


def _array(prompt: Any) -> NDArray[Any]:
    try:
        given = np.asarray(prompt)
    except ValueError as error:  # rows of different lengths
        raise RequestError("request-prompt-shape", f"the prompt is no row of token ids: {error}") from error
    # numpy makes nothing at all into floats.
    return given.astype(np.int64) if not given.size else given
