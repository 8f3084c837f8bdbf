"""Progress of a live replay: its state, and faults as they happen.

Times are seconds since its clock began. Unknown values are None, never a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Bounded, since it is read back from files that others wrote.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Facts known when the clock starts."""

    requests: int
    tokens: int | None = None  # that all of them will make, where that is certain
    last_arrival_s: float = 0.0  # of an open replay
    kv_capacity_tokens: int | None = None
    workers: tuple[str, ...] = ()


class Moment(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="moment"):
    """State of a live replay."""

    at_s: float
    finished: Count
    failed: Count
    requests: Count  # that the trace has
    tokens: Count
    tokens_per_s: float | None = None  # of about the last second
    tbt_ms_p50: float | None = None  # of the last seconds' tokens
    tbt_ms_p99: float | None = None
    batch: Count | None = None  # requests that decode now
    waiting: Count | None = None
    kv_tokens: Count | None = None
    workers_lost: Count = 0  # that are being replaced now


class FaultEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fault"):
    """Workers that the engine lost and replaced, or a fault that the replay itself injected."""

    at_s: float  # when it was injected, or noticed
    workers: tuple[str, ...]
    why: str
    resumed_s: float | None = None  # when work went on without them, or with others in their place
    struck: str | None = None  # kill or stop, of one that was injected
    number: Count = 0  # of an injected one, in the plan
    requests: Count = 0  # whose KV had to be computed again in part
    kv_tokens: Count = 0  # that had to be computed again

    @property
    def recovered_s(self) -> float:
        """The time when work continued after workers were replaced."""
        assert self.resumed_s is not None
        return self.resumed_s


class Gaps(NamedTuple):
    """Times between tokens since the last report: all of them, or none if a system has none."""

    seconds: NDArray[np.float64]
    tokens: NDArray[np.int64]  # how many came after that time


Happening = Moment | FaultEvent | Gaps
