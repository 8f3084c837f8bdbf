"""The load that every client offers, and what a client says of it when it is over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """Requests of these lengths, and how many at a time."""

    requests: int = 40
    concurrency: int = 4
    prompt_tokens: int = 40
    output_tokens: int = 32


@dataclass(frozen=True)
class Reported:
    """A client's own numbers, and what it calls the two that have as many names as there are clients."""

    client: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    token_gap: tuple[str, float]  # the mean time of a token after the first, in ms
    chunk_gap: tuple[str, float] | None  # the mean time between two pieces of a stream, in ms
    ttft_ms: float
    throughput_tokens_per_s: float


@dataclass(frozen=True)
class Counted:
    """Counts of our server in the same time, from its /metrics."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    gaps: int  # between two tokens of one request
    gaps_s: float  # their sum
    ttft_ms: float  # from a request's arrival to its first token

    def between(self) -> float:
        """Return the mean TBT in ms."""
        return 1e3 * self.gaps_s / self.gaps if self.gaps else float("nan")

    def at_most(self, load: Load) -> float:
        """Return the tokens a second that a client that is never late could have: each slot always has a
        request.
        """
        request_s = (self.ttft_ms + (load.output_tokens - 1) * self.between()) / 1e3
        return load.concurrency * load.output_tokens / request_s
