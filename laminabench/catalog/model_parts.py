"""Parts that only some models have: experts, latent attention, windows."""

from __future__ import annotations

from dataclasses import dataclass

# A window of more tokens than this gives nothing back: requests are seldom longer, so it is counted as if it
# kept everything.
LONGEST_WINDOW_FREED = 2048


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts of the feed-forward layers: many, of which a token goes through few."""

    count: int
    top_k: int
    intermediate: int
    shared: int = 0  # width of the experts that every token passes in addition
    dense_layers: int = 0  # first ones without experts
    every: int = 1  # of the others one in so many has experts
    groups: int = 1  # of experts, and of how many of them a token's are
    groups_taken: int = 1
    dtype: str = ""  # of their weights; else the model's

    def layers(self, of: int) -> int:
        """Return how many of so many layers have experts."""
        return (of - self.dense_layers) // self.every


@dataclass(frozen=True, slots=True)
class Latent:
    """MLA: keys and values of all heads are made of one vector a token, which alone is stored."""

    kv_rank: int
    rotary: int  # size of the rotated part
    nope: int  # of a head's query: what is not rotated
    value: int  # of a head's output
    q_rank: int = 0  # 0 where queries are made of the hidden state at once

    @property
    def width(self) -> int:
        """Number of stored values."""
        return self.kv_rank + self.rotary

    @property
    def query(self) -> int:
        """A head's query."""
        return self.nope + self.rotary


@dataclass(frozen=True, slots=True)
class Window:
    """Layers that look back no farther than so many tokens."""

    tokens: int
    layers: int
    chunked: bool = False  # no farther than the beginning of their chunk of so many tokens (Llama-4)

    @property
    def frees(self) -> bool:
        """Whether tokens outside the window are freed."""
        return self.tokens <= LONGEST_WINDOW_FREED
