"""Attention in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def plain_partial(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    chunk: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return attention of one token's queries [heads, dim] over keys and values [tokens, kv_heads, dim].

    Returns the normalised output [heads, dim] and the logarithm of the softmax's denominator [heads], both
    computed in the inputs' precision; 0 and -infinity if there is no token. Only the last `window` tokens
    count, unless it is 0, or those of the last chunk. `sinks` [heads] are scores of no value.
    """
    if window:
        k, v = k[-window:], v[-window:]
    if chunk and len(k):
        first = (len(k) - 1) // chunk * chunk
        k, v = k[first:], v[first:]
    group = q.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,thd->ht", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    lse = scores.logsumexp(dim=1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.to(lse.dtype))
    if not len(k):
        return q.new_zeros(len(q), v.shape[-1]), lse
    return torch.einsum("ht,thd->hd", torch.exp(scores - lse[:, None]), v), lse


def plain_combine(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return attention over the union of disjoint sets of tokens, from outputs [..., dim] and lse [...]."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    lse = torch.logaddexp(lse_a, lse_b)
    shift = lse.masked_fill(lse.isinf(), 0.0)
    share_a, share_b = torch.exp(lse_a - shift), torch.exp(lse_b - shift)
    return out_a * share_a[..., None] + out_b * share_b[..., None], lse
