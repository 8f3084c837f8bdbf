"""Prefill with the slices that decode, some hundred tokens of one or several prompts at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lamina.kv.stored import KvDtype, as_stored
from lamina.operators import Attended, AttentionOp

if TYPE_CHECKING:
    from lamina.convert import BoundSlice

# PromptTokens per call of the slices: enough for matrix products, few enough for a message.
CHUNK = 512

# Limit of attention scores in memory (head x token x earlier token), and bytes of each with masks and copies.
MOST_SCORES = 32 << 20
SCORE_BYTES = 16

# Called with the layer, and k and v [tokens, kv_heads, head_dim] of a call's tokens; k alone if values
# are part of it.
Deliver = Callable[..., None]


@dataclass(frozen=True)
class Passed:
    """Context between the slices of two stages, for the tokens of a call."""

    context: tuple[Tensor, ...]
    attended: Tensor | None


class PromptRun:
    """A prompt being computed, with K and V of its earlier tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.done = tokens, 0
        self._stored: list[tuple[Tensor, ...]] = []

    def with_earlier(self, number: int, kv: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Append K and V of the next tokens in a layer; return those of all tokens so far."""
        begin, end = self.done, self.done + len(kv[0])
        if end - begin == self.tokens:
            return kv  # complete in one call: nothing to store
        if number == len(self._stored):
            self._stored.append(tuple(one.new_empty(self.tokens, *one.shape[1:]) for one in kv))
        for total, one in zip(self._stored[number], kv, strict=True):
            total[begin:end] = one
        return tuple(total[:end] for total in self._stored[number])


class PromptTokens(NamedTuple):
    """The next tokens of a prompt in a call of the slices."""

    run: PromptRun
    tokens: Tensor


class Prefill:
    """Prefill of prompts for a stage's layers: computes KV for the arena.

    Slices compute row by row, so tokens of several prompts form a batch: short prompts run at the rate of
    long ones. Attention is causal, in plain torch, separately for each prompt. Layers with state
    run token by token, with one prompt per call.
    """

    def __init__(
        self,
        slices: Sequence[BoundSlice],
        attended: Attended,
        last: BoundSlice | None = None,
        kv_dtype: KvDtype = "auto",
    ) -> None:
        """Take a stage's slices, and the `last` slice only for its recurrent state.

        Attention uses K and V rounded as in the arena; delivered KV is not rounded.
        """
        self._layers = list(zip(slices, attended.attentions, attended.sinks, strict=True))
        self._attended = attended
        self._last = last.prompt if last else None
        self._kv_dtype = kv_dtype

    def call(self, chunks: Sequence[PromptTokens], came: Passed | None, deliver: Deliver) -> Passed:
        """Run the slices for the next tokens of some prompts; return the context for the next stage.

        `came` is the context from the previous stage, None for the first one. A failed call can be repeated
        with other or fewer prompts.
        """
        context, attended = (_begin(chunks), None) if came is None else (came.context, came.attended)
        lengths = [len(one.tokens) for one in chunks]
        for number, (piece, op, sinks) in enumerate(self._layers):
            q, kv, context = _passed(piece, context, attended)
            deliver(op.layer, *kv)
            queries = torch.split(self._attended.query(number, q), lengths)
            visible = (as_stored(one, self._kv_dtype) for one in kv)
            parts = zip(*(torch.split(one, lengths) for one in visible), strict=True)
            outputs = []
            for (run, _), query, new in zip(chunks, queries, parts, strict=True):
                keys, *values = run.with_earlier(number, new)
                value = values[0] if values else keys
                outputs.append(causal(query, keys, value[..., : op.value_dim], op, sinks))
            together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
            attended = self._attended.output(number, together)
        if self._last:
            self._last(context, attended)
        for run, tokens in chunks:
            run.done += len(tokens)
        return Passed(context, attended)


def _begin(chunks: Sequence[PromptTokens]) -> tuple[Tensor, ...]:
    """Return the first slice's inputs: tokens and their positions."""
    tokens = torch.cat([one.tokens for one in chunks])
    places = [torch.arange(run.done, run.done + len(new), device=tokens.device) for run, new in chunks]
    return tokens, torch.cat(places)


def _passed(
    piece: BoundSlice, context: tuple[Tensor, ...], attended: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Run a slice; return q, KV and context."""
    if piece.prompt:
        (q,), kv, carried = piece.prompt(context, attended)
        return q, kv, carried
    q, state = piece.query(context, attended)
    *stored, state = piece.keyvalue(state)
    return q, tuple(stored), piece.rest(state)


def causal(q: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, sinks: Tensor | None = None) -> Tensor:
    """Attend from a prompt's last tokens [n, heads, dim] to keys and values of all its tokens."""
    total, last = len(keys), len(q)
    rows = max(1, MOST_SCORES // (op.heads * total))
    if last > rows:  # limits the scores of a long prompt
        parts = [
            causal(q[first : first + rows], keys[:end], values[:end], op, sinks)
            for first in range(0, last, rows)
            for end in (total - last + min(first + rows, last),)
        ]
        return torch.cat(parts)
    out = _causal(q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), op, sinks)
    return out.transpose(0, 1).contiguous()


def _causal(queries: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, sinks: Tensor | None) -> Tensor:
    """Attend from a prompt's last tokens [heads, n, dim]."""
    last, total = queries.shape[1], keys.shape[1]
    explicit = bool(op.softcap) or sinks is not None
    if last == total and not (explicit or 0 < op.window < total or 0 < op.chunk < total):
        # A complete prompt needs no mask.
        return _attend(queries, keys, values, op)
    # Faster than comparisons for long prompts.
    visible = torch.ones(last, total, dtype=torch.bool, device=queries.device).tril_(total - last)
    at = torch.arange(total - last, total, device=queries.device)[:, None]
    others = torch.arange(total, device=queries.device)[None]
    if op.window:
        visible &= others > at - op.window
    if op.chunk:
        visible &= others >= at - at % op.chunk
    if explicit:
        return _attend_explicitly(queries, keys, values, op, visible, sinks)
    return _attend(queries, keys, values, op, visible)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, visible: Tensor | None = None
) -> Tensor:
    """Attend to visible tokens; without a mask, causally."""
    return torch.nn.functional.scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        visible,
        is_causal=visible is None,
        scale=op.scale,
        enable_gqa=op.heads != op.kv_heads,
    )[0]


def _attend_explicitly(
    queries: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, visible: Tensor, sinks: Tensor | None
) -> Tensor:
    group = op.heads // op.kv_heads
    keys, values = keys.repeat_interleave(group, dim=0), values.repeat_interleave(group, dim=0)
    scores = queries @ keys.transpose(1, 2) * op.scale
    if op.softcap:
        scores = op.softcap * torch.tanh(scores / op.softcap)
    scores = scores.float().masked_fill(~visible, -torch.inf)
    if sinks is not None:  # as the score of one more token with value 0
        scores = torch.cat([scores, sinks.to(scores)[:, None, None].expand(-1, len(visible), 1)], dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., : len(values[0])]
    return shares.to(values.dtype) @ values
