"""Grouping of an iteration's prompt tokens into calls of the slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from lamina.model.prefill import CHUNK
from lamina.pipeline.batch_rows import BatchDelta, PromptPart, Tokens

Call = list[PromptPart]
_NO_TEXT: Tokens = np.empty(0, np.int32)


def calls_of(delta: BatchDelta, *, alone: bool) -> list[Call]:
    """Return the calls of an iteration in order, with up to a chunk of tokens each.

    A prompt is cut where it would be cut alone, so that a short one is in one call. With `alone`, for layers
    with state, each call has tokens of one prompt.
    """
    calls: list[Call] = []
    room = 0
    for part in (*delta.parts, *_joining(delta)):
        for piece in _pieces(part):
            tokens = piece.end - piece.begin
            if alone or tokens > room:
                calls.append([])
                room = CHUNK
            calls[-1].append(piece)
            room -= tokens
    return calls


def fitting(lengths: Sequence[int], room: int) -> list[int]:
    """Return which waiting prompts a prefill worker computes together: the first ones that fit."""
    places = []
    for at, tokens in enumerate(lengths):
        if tokens <= room:
            places.append(at)
            room -= tokens
    return places


def without_text(calls: list[Call], names: set[int]) -> list[Call]:
    """Return the calls without text, for a worker that has these sequences and does not compute."""
    own = [[part for part in call if part.name in names] for call in calls]
    return [[msgspec.structs.replace(part, text=_NO_TEXT) for part in call] for call in own if call]


def _joining(delta: BatchDelta) -> Iterator[PromptPart]:
    """Yield complete prompts of sequences that join."""
    joined = delta.joined
    columns = (joined.name, joined.shared, joined.pool)
    for name, shared, pool in zip(*(column.tolist() for column in columns), strict=True):
        if name in delta.prompts:
            text = delta.prompts[name][:-1]
            yield PromptPart(name, 0, len(text), len(text), shared, pool, text)


def _pieces(part: PromptPart) -> Iterator[PromptPart]:
    for begin in range(part.begin, part.end, CHUNK):
        end = min(begin + CHUNK, part.end)
        text = part.text[begin - part.begin : end - part.begin]
        yield msgspec.structs.replace(part, begin=begin, end=end, text=text)
