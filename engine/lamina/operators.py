"""What those must know of a model who have nothing else of it: here is no need of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

# Of a layer's experts every rank has a share of each ("tp"), or some of them whole ("ep").
Experts = Literal["tp", "ep"]


@dataclass(frozen=True)
class AttentionOp:
    """One attention operator that was cut out: all that an attention worker must know of it."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int  # tokens a token may see, itself included; 0 = all before it
    softcap: float  # 0 = none
    chunk: int = 0  # tokens in a chunk, if a token may see those of its own only; 0 = no chunks
    sinks: str = ""  # the constant with each head's sink, a score of no value that counts in the softmax
    latent: int = 0  # a value is its key's first so many numbers, and stored once with it; 0 = it is apart

    @property
    def value_dim(self) -> int:
        return self.latent or self.head_dim

    @property
    def shared_heads(self) -> int:
        """How many ranks can share out: KV heads, with their queries; or queries of one that all have."""
        return self.kv_heads if self.kv_heads > 1 else self.heads


class Attended(NamedTuple):
    """What an attention worker has of a model. It can be sent."""

    attentions: tuple[AttentionOp, ...]
    dtype: torch.dtype
    sinks: tuple[torch.Tensor | None, ...]  # of each operator, float32, one for each of its heads

    def sinks_of(self, attentions: Sequence[AttentionOp], heads: slice) -> list[torch.Tensor | None]:
        """Those of some heads of some layers."""
        return [None if (sinks := self.sinks[op.layer]) is None else sinks[heads] for op in attentions]
