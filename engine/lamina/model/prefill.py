"""Prompts through the slices that decode: their K and V, some hundred tokens of one or several at a time."""

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

# Tokens that go through the slices together: enough for matrix products, few enough for a message.
CHUNK = 512

# Scores that attention has at a time, one for each head, token and earlier token; and what each takes, with
# masks and copies.
MOST_SCORES = 32 << 20
SCORE_BYTES = 16

# From layer, and k and v [tokens, kv_heads, head_dim] of all tokens of a call, or k alone where values are
# part of it.
Deliver = Callable[..., None]


@dataclass(frozen=True)
class Passed:
    """Context that goes from one stage's slices to the next one's, for the tokens of a call."""

    context: tuple[Tensor, ...]
    attended: Tensor | None


class PromptRun:
    """A prompt of so many tokens on its way, with K and V of those that it has gone through."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.done = tokens, 0
        self._kept: list[tuple[Tensor, ...]] = []

    def with_earlier(self, number: int, kv: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """K and V at one of the layers, of its next tokens and of those before them."""
        begin, end = self.done, self.done + len(kv[0])
        if end - begin == self.tokens:
            return kv  # it is whole: there is nothing to keep
        if number == len(self._kept):
            self._kept.append(tuple(one.new_empty(self.tokens, *one.shape[1:]) for one in kv))
        for whole, one in zip(self._kept[number], kv, strict=True):
            whole[begin:end] = one
        return tuple(whole[:end] for whole in self._kept[number])


class Some(NamedTuple):
    """The next tokens of a prompt, in a call of the slices."""

    run: PromptRun
    tokens: Tensor


class Prefill:
    """Computes what prompts leave in the KV arena. The papers evaluate decoding; prompts are here so that
    tokens are real.

    The slices are row by row, so tokens of several prompts go through them as a batch does, one prompt behind
    the other: short ones are computed at the rate of long ones. Attention between the slices is causal, in
    plain torch, of each prompt by itself. Layers that keep state run in turn, and have one prompt a call.
    """

    def __init__(
        self,
        slices: Sequence[BoundSlice],
        attended: Attended,
        last: BoundSlice | None = None,
        kv_dtype: KvDtype = "auto",
    ) -> None:
        """Those of one stage: all, or some that follow one another; the last one only for what it keeps.

        Tokens of a prompt see each other as an arena will hold them; what is delivered is not rounded.
        """
        self._layers = list(zip(slices, attended.attentions, attended.sinks, strict=True))
        self._attended = attended
        self._last = last.prompt if last else None
        self._kv_dtype = kv_dtype

    def call(self, some: Sequence[Some], came: Passed | None, deliver: Deliver) -> Passed:
        """Go through the slices with the next tokens of some prompts; what the next stage has to be given.

        `came` has the same from the stage before, None for the first one. A call that fails can be made
        again, with other prompts or fewer.
        """
        context, attended = (_begin(some), None) if came is None else (came.context, came.attended)
        lengths = [len(one.tokens) for one in some]
        for number, (piece, op, sinks) in enumerate(self._layers):
            q, kv, context = _passed(piece, context, attended)
            deliver(op.layer, *kv)
            queries = torch.split(self._attended.query(number, q), lengths)
            visible = (as_stored(one, self._kv_dtype) for one in kv)
            parts = zip(*(torch.split(one, lengths) for one in visible), strict=True)
            outputs = []
            for (run, _), query, new in zip(some, queries, parts, strict=True):
                keys, *values = run.with_earlier(number, new)
                value = values[0] if values else keys
                outputs.append(causal(query, keys, value[..., : op.value_dim], op, sinks))
            together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
            attended = self._attended.output(number, together)
        if self._last:
            self._last(context, attended)
        for run, tokens in some:
            run.done += len(tokens)
        return Passed(context, attended)


def _begin(some: Sequence[Some]) -> tuple[Tensor, ...]:
    """What the first slice is given: tokens, and the place of each in its prompt."""
    tokens = torch.cat([one.tokens for one in some])
    places = [torch.arange(run.done, run.done + len(new), device=tokens.device) for run, new in some]
    return tokens, torch.cat(places)


def _passed(
    piece: BoundSlice, context: tuple[Tensor, ...], attended: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A slice's q, KV and context of some tokens."""
    if piece.prompt:
        (q,), kv, carried = piece.prompt(context, attended)
        return q, kv, carried
    q, state = piece.query(context, attended)
    *stored, state = piece.keyvalue(state)
    return q, tuple(stored), piece.rest(state)


def causal(q: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, sinks: Tensor | None = None) -> Tensor:
    """Attention of a text's last tokens [n, heads, dim] over keys and values of all of it."""
    whole, last = len(keys), len(q)
    rows = max(1, MOST_SCORES // (op.heads * whole))
    if last > rows:  # of a long text not all at once
        parts = [
            causal(q[first : first + rows], keys[:end], values[:end], op, sinks)
            for first in range(0, last, rows)
            for end in (whole - last + min(first + rows, last),)
        ]
        return torch.cat(parts)
    out = _causal(q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), op, sinks)
    return out.transpose(0, 1).contiguous()


def _causal(queries: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, sinks: Tensor | None) -> Tensor:
    """Of a text's last tokens [heads, n, dim]."""
    last, whole = queries.shape[1], keys.shape[1]
    written_out = bool(op.softcap) or sinks is not None
    if last == whole and not (written_out or 0 < op.window < whole or 0 < op.chunk < whole):
        # All of a short prompt: no mask has to be made.
        return _attend(queries, keys, values, op)
    # Quicker than a comparison for each, where the text is long.
    visible = torch.ones(last, whole, dtype=torch.bool, device=queries.device).tril_(whole - last)
    at = torch.arange(whole - last, whole, device=queries.device)[:, None]
    others = torch.arange(whole, device=queries.device)[None]
    if op.window:
        visible &= others > at - op.window
    if op.chunk:
        visible &= others >= at - at % op.chunk
    if written_out:
        return _written_out(queries, keys, values, op, visible, sinks)
    return _attend(queries, keys, values, op, visible)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, visible: Tensor | None = None
) -> Tensor:
    """Over what is seen; without a mask over all that is not later."""
    return torch.nn.functional.scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        visible,
        is_causal=visible is None,
        scale=op.scale,
        enable_gqa=op.heads != op.kv_heads,
    )[0]


def _written_out(
    queries: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, visible: Tensor, sinks: Tensor | None
) -> Tensor:
    group = op.heads // op.kv_heads
    keys, values = keys.repeat_interleave(group, dim=0), values.repeat_interleave(group, dim=0)
    scores = queries @ keys.transpose(1, 2) * op.scale
    if op.softcap:
        scores = op.softcap * torch.tanh(scores / op.softcap)
    scores = scores.float().masked_fill(~visible, -torch.inf)
    if sinks is not None:  # as the score of one more token, whose value is nothing
        scores = torch.cat([scores, sinks.to(scores)[:, None, None].expand(-1, len(visible), 1)], dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., : len(values[0])]
    return shares.to(values.dtype) @ values
