"""What an iteration was: its size, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Step:
    """One iteration of the batch. Times are in seconds, as the caller's thread saw them."""

    ended: list[int] = field(default_factory=list)  # the numbers of requests
    batch: int = 0  # sequences
    kv_tokens: int = 0  # that attention read
    prefill_s: float = 0.0
    model_s: float = 0.0
    attention_s: float = 0.0
    sampling_s: float = 0.0
    host_s: float = 0.0  # the rest: scheduling, slots, bookkeeping
