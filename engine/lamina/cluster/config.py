"""What a worker is told when it starts: plain data, so that it can be sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lamina.pipeline.partition import Partition
from lamina.pipeline.schedule import Pipelining, Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lamina.convert import BoundSlice

# What workers are forked with: slices that they share, or the model that each takes its part of.
Weights: TypeAlias = "list[BoundSlice] | PreTrainedModel"


@dataclass(frozen=True)
class WorkerConfig:
    """One worker's part."""

    name: str
    host: str  # where it listens for others
    address: str  # of the front end
    secret: bytes
    core: int
    kind: str  # "model", "attention" or "prefill"
    number: int  # among those of its kind
    pipelining: Pipelining
    batches: int
    stages: int
    slices: int
    partition: dict[str, Any]
    most_rows: int  # of a batch
    arena_tokens: int  # of an attention worker
    decode_only: bool
    overlap: bool
    backend: str
    network: str
    spin_s: float
    timeout_s: float
    prefill_workers: int = 0  # that others have to do with
    # One that takes over from another: how often the others had met before, and where they begin again.
    epoch: int = 0
    cycle: int = 0

    def said(self) -> dict[str, Any]:
        """As msgpack takes it."""
        return asdict(self)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.pipelining, self.batches, self.slices, self.stages)

    @property
    def deal(self) -> Partition:
        return Partition(**self.partition)

    @property
    def streams(self) -> bool:
        """Whether q leaves before k and v exist; mini-batches leave whole."""
        return self.overlap and self.deal.chunks == 1
