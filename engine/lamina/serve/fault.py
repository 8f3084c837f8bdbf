"""What went wrong with workers, and what it took to go on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Workers were lost and replaced. No token was."""

    workers: tuple[str, ...]  # that were replaced; none if they had only lost each other
    why: str
    noticed_s: float  # time.monotonic()
    resumed_s: float  # when everything that had been under way was under way again
    requests: int  # whose KV, or a part of it, has to be computed again
    kv_tokens: int  # of theirs
