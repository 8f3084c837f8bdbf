"""Prompts through the slices that decode: their K and V, some hundred tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lamina.operators import Attended, AttentionOp

if TYPE_CHECKING:
    from lamina.convert import BoundSlice

# Tokens that go through the slices together: enough for matrix products, few enough for a message.
CHUNK = 512

# Scores that attention has at a time, one for each head, token and earlier token; and what each takes, with
# masks and copies.
MOST_SCORES = 32 << 20
SCORE_BYTES = 16

# From layer, first token, k and v [tokens, kv_heads, head_dim], or k alone where values are part of it.
Deliver = Callable[..., None]


@dataclass(frozen=True)
class Passed:
    """What goes from one stage's slices to the next one's, for some tokens of a prompt."""

    context: tuple[Tensor, ...]
    attended: Tensor | None


class Prefill:
    """Computes what a prompt leaves in the KV arena. The papers evaluate decoding; prompts are here so that
    tokens are real.

    The slices are row by row, so a prompt's tokens go through them as a batch does; attention between them
    is causal, in plain torch. One prompt at a time: what it gives does not depend on which others came.
    """

    def __init__(
        self,
        slices: Sequence[BoundSlice],
        attended: Attended,
        last: BoundSlice | None = None,
    ) -> None:
        """Those of one stage: all, or some that follow one another; the last one only for what it keeps."""
        self._layers = list(zip(slices, attended.attentions, attended.sinks, strict=True))
        self._attended = attended
        self._last = last.prompt if last else None

    def run(self, tokens: Tensor, passed: Iterator[Passed] | None, deliver: Deliver) -> Iterator[Passed]:
        """Go through a prompt chunk by chunk; yields what the next stage has to be given for each.

        `passed` has the same from the stage before, None for the first one.
        """
        yield from PromptRun(self, len(tokens)).go_on(tokens, passed, deliver)

    def chunk(
        self,
        came: Passed,
        begin: int,
        end: int,
        tokens: int,
        kept: list[tuple[Tensor, ...]],
        deliver: Deliver,
    ) -> Passed:
        context, attended = came.context, came.attended
        for number, (piece, op, sinks) in enumerate(self._layers):
            q, kv, context = _passed(piece, context, attended)
            if begin == 0:
                kept.append(tuple(one.new_empty(tokens, *one.shape[1:]) for one in kv))
            for whole, one in zip(kept[number], kv, strict=True):
                whole[begin:end] = one
            deliver(op.layer, begin, *kv)
            keys, values = kept[number][0][:end], kept[number][-1][:end]
            q = self._attended.query(number, q)
            attended = causal(q, keys, values[..., : op.value_dim], op, sinks)
            attended = self._attended.output(number, attended)
        if self._last:
            self._last(context, attended)
        return Passed(context, attended)


class PromptRun:
    """A prompt of so many tokens on its way, with K and V of those that it has gone through."""

    def __init__(self, prefill: Prefill, tokens: int) -> None:
        self._prefill, self._tokens, self._done = prefill, tokens, 0
        self._kept: list[tuple[Tensor, ...]] = []

    def go_on(self, part: Tensor, passed: Iterator[Passed] | None, deliver: Deliver) -> Iterator[Passed]:
        """With its next tokens, chunk by chunk, as Prefill.run goes through all."""
        for begin in range(0, len(part), CHUNK):
            some = part[begin : begin + CHUNK]
            begun, self._done = self._done, self._done + len(some)
            if passed is None:
                positions = torch.arange(begun, self._done, device=part.device)
                came = Passed((some, positions), None)
            else:
                came = next(passed)
            yield self._prefill.chunk(came, begun, self._done, self._tokens, self._kept, deliver)


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
    # Quicker than a comparison for each, where the text is long.
    seen = torch.ones(last, whole, dtype=torch.bool, device=q.device).tril_(whole - last)
    at = torch.arange(whole - last, whole, device=q.device)[:, None]
    others = torch.arange(whole, device=q.device)[None]
    if op.window:
        seen &= others > at - op.window
    if op.chunk:
        seen &= others >= at - at % op.chunk
    queries, keys, values = (tensor.transpose(0, 1) for tensor in (q, keys, values))
    if op.softcap or sinks is not None:
        out = _written_out(queries, keys, values, op, seen, sinks)
    else:
        out = torch.nn.functional.scaled_dot_product_attention(
            queries[None], keys[None], values[None], seen, scale=op.scale, enable_gqa=op.heads != op.kv_heads
        )[0]
    return out.transpose(0, 1).contiguous()


def _written_out(
    queries: Tensor, keys: Tensor, values: Tensor, op: AttentionOp, seen: Tensor, sinks: Tensor | None
) -> Tensor:
    group = op.heads // op.kv_heads
    keys, values = keys.repeat_interleave(group, dim=0), values.repeat_interleave(group, dim=0)
    scores = queries @ keys.transpose(1, 2) * op.scale
    if op.softcap:
        scores = op.softcap * torch.tanh(scores / op.softcap)
    scores = scores.float().masked_fill(~seen, -torch.inf)
    if sinks is not None:  # as the score of one more token, whose value is nothing
        scores = torch.cat([scores, sinks.to(scores)[:, None, None].expand(-1, len(seen), 1)], dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., : len(values[0])]
    return shares.to(values.dtype) @ values
