"""One batch, one set of model workers: slice, attention, slice, attention, ..., tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch

from lamina.convert import BoundSlice


class Attention(Protocol):
    """What an attention worker does for one layer, wherever it is."""

    def begin(self, layer: int, q: torch.Tensor) -> None:
        """Start on the tokens there were before this iteration's."""

    def finish(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Keep the new tokens' k and v; attention over all of them, [B, heads, head_dim]."""


@dataclass
class Spent:
    """Where the time of an iteration went, in seconds as the caller's thread saw it."""

    model_s: float = 0.0
    attention_s: float = 0.0


class SerialPipeline:
    """Runs the slices of a model in turn, attention between them.

    With `overlap` an attention worker gets q before k and v are computed, and works on the earlier tokens
    meanwhile; without, it is asked when k and v are there. What is computed is the same to the last bit. It
    pays where attention has hardware of its own; on one machine's cores the two take time from each other.
    """

    def __init__(self, slices: Sequence[BoundSlice], attention: Attention, *, overlap: bool) -> None:
        self._slices = slices
        self._attention = attention
        self._overlap = overlap

    def run(self, tokens: torch.Tensor, positions: torch.Tensor, spent: Spent) -> torch.Tensor:
        """One iteration: logits [B, vocab] for the tokens after these."""
        context: tuple[torch.Tensor, ...] = (tokens, positions)
        attended: torch.Tensor | None = None
        *between, last = self._slices
        for layer, piece in enumerate(between):
            started = perf_counter()
            q, state = piece.query(context, attended)
            if self._overlap:
                self._attention.begin(layer, q)
            k, v, state = piece.keyvalue(state)
            context = piece.rest(state)
            modelled = perf_counter()
            if not self._overlap:
                self._attention.begin(layer, q)
            attended = self._attention.finish(layer, k, v)
            spent.attention_s += perf_counter() - modelled
            spent.model_s += modelled - started
        started = perf_counter()
        logits = last.logits(context, attended)
        spent.model_s += perf_counter() - started
        return logits
