"""A deployment as the simulator needs it: how many of what, and tables of how long."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from laminabench.errors import UserError

if TYPE_CHECKING:
    from laminabench.sim.board import BoardTiming

Pipelining = Literal["serial", "rotational", "fixed"]
Admission = Literal["reserve", "grow"]
Mode = Literal["saturate", "open", "closed"]

TICKS_PER_S = 10_000_000_000
# No step of serving takes this long; one that does comes from a wrong coefficient.
LONGEST_S = 3600.0
Ticks = NDArray[np.int64]
Float64 = NDArray[np.float64]


def ticks(seconds: Float64 | float) -> Ticks:
    """Seconds as whole ticks of 0.1 ns."""
    return np.floor(np.asarray(seconds, np.float64) * TICKS_PER_S + 0.5).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, as docs/simulator.md names them; arrays have entry B for a batch of B requests."""

    first_slice: Float64
    mid_slice: Float64
    last_slice: Float64
    attention_fixed: Float64
    attention_per_token: Float64
    q_lead: Float64 | float = 0.0
    q_transfer: Float64 | float = 0.0
    kv_transfer: Float64 | float = 0.0
    out_transfer: Float64 | float = 0.0
    migration: Float64 | float = 0.0
    combine: float = 0.0
    stream_chunks: int = 1
    stream_by_request: bool = True
    chunk_overhead: float = 0.0
    transfer_latency: float = 0.0
    device_tokens: int = 2**62
    paged_per_token: float = 0.0
    host_fixed: float = 0.0
    host_per_request: float = 0.0
    host_async: bool = False
    recompute_per_token: float = 0.0

    def tables(self) -> dict[str, object]:
        """As the native module takes it: ticks, every table as long as the others."""
        self.check()
        rows = len(self.first_slice)
        tables: dict[str, object] = {
            name: np.ascontiguousarray(np.broadcast_to(ticks(getattr(self, name)), rows))
            for name in (
                "first_slice",
                "mid_slice",
                "last_slice",
                "attention_fixed",
                "q_lead",
                "q_transfer",
                "kv_transfer",
                "out_transfer",
                "migration",
            )
        }
        for name in ("combine", "transfer_latency", "chunk_overhead", "host_fixed"):
            tables[name] = int(ticks(getattr(self, name)))
        # Slopes stay fractions of a tick: they are multiplied before they are rounded.
        tables["attention_per_token"] = np.ascontiguousarray(self.attention_per_token * TICKS_PER_S)
        for name in ("paged_per_token", "host_per_request", "recompute_per_token"):
            tables[name] = float(getattr(self, name)) * TICKS_PER_S
        for name in ("stream_chunks", "stream_by_request", "device_tokens", "host_async"):
            tables[name] = getattr(self, name)
        return tables

    def check(self) -> None:
        """A UserError if a time is no time: a coefficient somewhere is wrong."""
        for each in fields(self):
            values = np.asarray(getattr(self, each.name), np.float64)
            if each.name == "device_tokens":
                continue
            if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= LONGEST_S):
                worst = values.flat[int(np.argmax(~((values >= 0) & (values <= LONGEST_S))))]
                raise UserError(
                    "costs-impossible-time",
                    f"the costs give {worst:g} s for {each.name.replace('_', ' ')}; "
                    "check the cost set's coefficients and the network",
                )


@dataclass(frozen=True, slots=True)
class Spec:
    """One modelled deployment, ready to be replayed against."""

    layers: int
    timing: Timing | BoardTiming
    tokens_per_pool: int
    max_requests: int
    pools: int = 1
    block_tokens: int = 1
    batches: int = 1
    pipelining: Pipelining = "serial"
    admission: Admission = "reserve"
    prefix_sharing: bool = False
    # What the lanes of a timeline and the utilisation table call the workers.
    replica_names: tuple[str, ...] = field(default=("model workers",))
    attention_name: str = "attention workers"
    # Attention runs on the model workers' own devices: one pool of devices, not two.
    shared_devices: bool = False
    # So many of this deployment side by side, requests dealt to them in turn; `replica_names` are of all.
    copies: int = 1
