"""Where workers run, as an engine needs it: a Machine, or a RayMachine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lamina.cluster.config import ModelSource, WorkerConfig
from lamina.cluster.layout import Layout
from lamina.pipeline.facts import ModelFacts


class Workplace(Protocol):
    """Workers have handles: numbers that mean something to it alone."""

    @property
    def host(self) -> str:
        """Where front end and workers listen for each other."""
        ...

    def cores(self, layout: Layout) -> list[int]:
        """One for each worker; an EngineError if there are too few."""
        ...

    def free_bytes(self) -> int:
        """Memory for weights and KV."""
        ...

    def convert(self, model: ModelSource, /) -> ModelFacts:
        """Cut the model at its attention operators; what is to be known of it."""
        ...

    def load(self, model: ModelSource, /) -> None:
        """Its weights, for workers to come."""
        ...

    def start(self, model: ModelSource, configs: Sequence[WorkerConfig], /) -> list[int]:
        """Workers; their handles."""
        ...

    def kill(self, workers: Sequence[int], /) -> None:
        """End these now, and wait until they are gone."""
        ...

    def ends(self, workers: Sequence[int], /) -> dict[int, int]:
        """How those of them that have ended did."""
        ...

    def strike(self, worker: int, how: str, /) -> None:
        """Do one harm, to see what comes of it."""
        ...

    def errors(self) -> str:
        """The end of what workers have written to standard error."""
        ...
