"""The description of a model for workers that have nothing else of it, without transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lamina.emulation import EmulatedDevice

# Of a layer's experts every rank has a share of each ("tp"), or some of them whole ("ep").
Experts = Literal["tp", "ep"]
# Queries and outputs are multiplied to and from latent KV by model workers, or by attention workers.
Absorb = Literal["model", "attention"]
_ALL = slice(None)


class Sight(NamedTuple):
    """A layer's attention span: how far back a token sees; mirrors `lamina::Sight`."""

    window: int = 0  # so many tokens, itself included; 0 = all before it
    chunk: int = 0  # those of its own chunk, of so many from the first token on; 0 = there are none

    @property
    def most(self) -> int:
        """Tokens that one sees at most; 0 = all."""
        return min(filter(None, self), default=0)

    def first(self, tokens: int) -> int:
        """Return the first token that the last one of `tokens` sees."""
        in_window = max(tokens - self.window, 0) if self.window else 0
        in_chunk = (tokens - 1) // self.chunk * self.chunk if self.chunk and tokens else 0
        return max(in_window, in_chunk)


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
    latent: int = 0  # a value is its key's first so many numbers, and stored once with it; 0 = separate
    # Of latent KV, if attention workers absorb: the constants that they multiply queries and outputs by, and
    # how many numbers of a head they are sent and give.
    to_keys: str = ""
    to_values: str = ""
    query: int = 0
    output: int = 0

    @property
    def value_dim(self) -> int:
        return self.latent or self.head_dim

    @property
    def query_dim(self) -> int:
        """Numbers of a head that travel to an attention worker, of which `head_dim` attend."""
        return self.query or self.head_dim

    @property
    def output_dim(self) -> int:
        """The numbers of each output that comes back."""
        return self.output or self.value_dim

    @property
    def absorbs(self) -> bool:
        """Whether attention workers multiply queries and outputs."""
        return bool(self.to_keys)

    @property
    def absorbing_numbers(self) -> int:
        """The number of numbers in the absorption matrices."""
        rotated = self.head_dim - self.latent
        return self.heads * self.latent * (self.query - rotated + self.output) if self.absorbs else 0

    @property
    def shared_heads(self) -> int:
        """The number of units that ranks can share: KV heads with their queries, or queries if all share one
        KV head.
        """
        return self.kv_heads if self.kv_heads > 1 else self.heads

    @property
    def sight(self) -> Sight:
        return Sight(self.window, self.chunk)


class Absorption(NamedTuple):
    """The matrices that convert one layer's queries and outputs to and from its latent KV."""

    to_keys: Tensor  # [heads, numbers, latent]
    to_values: Tensor  # [heads, latent, numbers]

    def query(self, q: Tensor) -> Tensor:
        """Convert queries of [rows, heads, numbers and rotated part] to the form in which keys are stored."""
        numbers = self.to_keys.shape[1]
        latent = torch.bmm(q[..., :numbers].transpose(0, 1), self.to_keys).transpose(0, 1)
        return torch.cat([latent, q[..., numbers:]], -1)

    def output(self, attended: Tensor) -> Tensor:
        """Convert outputs of [rows, heads, latent] to the model's form."""
        return torch.bmm(attended.transpose(0, 1), self.to_values).transpose(0, 1).contiguous()


class Attended(NamedTuple):
    """The attention worker's part of a model. It can be sent."""

    attentions: tuple[AttentionOp, ...]
    dtype: torch.dtype
    sinks: tuple[Tensor | None, ...]  # of each operator, float32, one for each of its heads
    absorptions: tuple[Absorption, ...] = ()  # of each operator, if attention workers absorb
    emulated: EmulatedDevice | None = None  # what waits in place of attending, and of the slices

    def of(self, heads: slice, layers: slice = _ALL) -> Attended:
        """Return the part for some heads of some layers."""
        return self._replace(
            attentions=self.attentions[layers],
            sinks=tuple(None if one is None else one[heads] for one in self.sinks[layers]),
            absorptions=tuple(Absorption(*(one[heads] for one in both)) for both in self.absorptions[layers]),
        )

    def query(self, layer: int, q: Tensor) -> Tensor:
        """Convert queries to the form that attends."""
        return self.absorptions[layer].query(q) if self.absorptions else q

    def output(self, layer: int, attended: Tensor) -> Tensor:
        """Convert attention outputs to the model's form."""
        return self.absorptions[layer].output(attended) if self.absorptions else attended

    def to(self, device: torch.device) -> Attended:
        """Return its numbers on the device of queries and outputs."""
        return self._replace(
            sinks=tuple(None if one is None else one.to(device) for one in self.sinks),
            absorptions=tuple(Absorption(*(one.to(device) for one in both)) for both in self.absorptions),
        )
