"""The resource that limits a deployment: KV memory or the largest part of a token's time."""

from __future__ import annotations

from typing import NamedTuple

from laminabench.runs.summary import Summary

# KV memory filled to this share limits the batch: the rest is too little for another request.
FULL = 0.95

TIMES = ("model", "attention", "network", "host")


class Binding(NamedTuple):
    """The resource that limits one replay."""

    kv_share: float | None  # of KV memory, the largest that was in use
    time: str | None  # the part of a token's time that is the largest, and how large
    time_share: float

    @property
    def memory(self) -> bool:
        return self.kv_share is not None and self.kv_share >= FULL

    def __str__(self) -> str:
        filled = "" if self.kv_share is None else f"KV memory filled to {self.kv_share:.0%}"
        took = "" if self.time is None else f"{self.time} takes {self.time_share:.0%} of a token's time"
        first, then = (filled, took) if self.memory else (took, filled)
        return ", ".join(filter(None, (first, then)))


def binding_of(summary: Summary) -> Binding:
    shares = {name: float(getattr(summary.time_shares, name) or 0) for name in TIMES}
    longest = max(shares, key=lambda name: shares[name])
    peak = summary.kv.peak_share
    known = shares[longest] > 0
    return Binding(
        None if peak is None else float(peak), longest if known else None, shares[longest] if known else 0.0
    )
