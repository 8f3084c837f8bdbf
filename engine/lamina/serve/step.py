"""Reports of an engine's iterations, and of its workers' faults."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Step:
    """One iteration of one batch. Requests are given by their numbers, times in seconds."""

    batch: int = 0  # which one
    iteration: int = 0  # of this batch, from 0
    size: int = 0  # sequences; 0 if nothing ran
    kv_tokens: int = 0  # that attention read
    joined: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)  # made room before it
    ended: list[int] = field(default_factory=list)
    started_s: float = 0.0  # time.monotonic()
    ended_s: float = 0.0  # when its tokens were there
    # As the caller's thread saw them; of workers elsewhere, engine.records() has theirs.
    prefill_s: float = 0.0
    model_s: float = 0.0
    attention_s: float = 0.0
    sampling_s: float = 0.0
    waited_s: float = 0.0  # for workers elsewhere
    host_s: float = 0.0  # the rest: scheduling, telling workers, bookkeeping


@dataclass(frozen=True)
class Fault:
    """Workers were lost and replaced. No token was."""

    workers: tuple[str, ...]  # that were replaced; none if they had only lost each other
    why: str
    noticed_s: float  # time.monotonic()
    resumed_s: float  # when everything that had been under way was under way again
    requests: int  # whose KV, or a part of it, has to be computed again
    kv_tokens: int  # of theirs
