"""What a worker and its model are, as plain data that can be sent to where the worker starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from lamina.cluster.layout import Layout
from lamina.model.load import LoadFormat
from lamina.pipeline.partition import Partition, Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lamina.convert import BoundSlice

# What workers are forked with: slices that they share, or the model that each takes its part of.
Weights: TypeAlias = "list[BoundSlice] | PreTrainedModel"
Kind: TypeAlias = Literal["model", "attention", "prefill"]


class ModelSource(msgspec.Struct, frozen=True):
    """Where a model comes from and how it is to be loaded."""

    source: str | dict[str, Any]  # its path, or its config as transformers has it
    dtype: str | None
    rope: str
    load_format: LoadFormat
    whole: bool = True  # bound to slices that all workers share, or left for each to take its part of


@dataclass(frozen=True)
class WorkerConfig:
    """One worker's part."""

    name: str
    host: str  # where it listens for others
    address: str  # of the front end
    secret: bytes
    core: int
    kind: Kind
    number: int  # among those of its kind
    layout: Layout
    slices: int
    partition: Partition
    most_rows: int  # of a batch
    arena_tokens: int  # of an attention worker
    decode_only: bool
    overlap: bool
    backend: str
    spin_s: float
    # One that takes over from another: how often the others had met before, and where they begin again.
    epoch: int = 0
    cycle: int = 0

    @property
    def schedule(self) -> Schedule:
        return self.layout.schedule(self.slices)

    @property
    def streams(self) -> bool:
        """Whether q leaves before k and v exist; mini-batches leave whole."""
        return self.overlap and self.partition.chunks == 1
