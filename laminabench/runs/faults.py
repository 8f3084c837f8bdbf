"""What went wrong during a live replay, and what was done on purpose to make it: facts, as they were seen.

Times are seconds since the replay began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Strike(NamedTuple):
    """A worker that the replay itself killed or stopped."""

    number: int  # in the order of the plan
    worker: str
    how: str  # kill or stop
    at_s: float


class Fault(NamedTuple):
    """Workers that the engine had to replace."""

    workers: Sequence[str]
    why: str
    noticed_s: float
    resumed_s: float  # when iterations went on
    requests: int  # whose KV had to be computed again in part
    kv_tokens: int  # that had to be computed again
