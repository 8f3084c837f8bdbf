"""A worker as a Ray actor: a process on some node, which loads the model there and runs one worker after
another.
"""

from __future__ import annotations

import gc
import os
import traceback
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from lamina import host_memory
from lamina.cluster import worker
from lamina.cluster.config import ModelSource, WorkerConfig
from lamina.cluster.models import Models
from lamina.operators import Attended


@dataclass(frozen=True)
class Spot:
    """Where an actor is, and what there is."""

    version: str  # of the package on its node
    host: str
    node: str  # as Ray calls it
    pid: int
    kernel: str  # actors with the same one share cores and memory
    cores: tuple[int, ...]  # that it may use
    free_bytes: int
    loaded: bool  # whether it has the model's weights already


class RayWorker:
    """What the actor can be asked for. Ray calls one method at a time, in the process's main thread."""

    def __init__(self) -> None:
        self._models = Models()
        # Before a worker has taken one of them.
        self._cores = tuple(sorted(os.sched_getaffinity(0)))

    def look(self, model: ModelSource) -> Spot:
        import ray

        return Spot(
            version=installed_version(),
            host=str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]
            node=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            kernel=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            cores=self._cores,
            free_bytes=host_memory.free_bytes(),
            loaded=self._has(model),
        )

    def prepare(self, model: ModelSource, kind: str) -> str | None:
        """Load what a worker of this kind has of the model; or why that cannot be."""
        try:
            if has_weights(kind):
                self._models.weights(model)
        except (ValueError, OSError) as error:
            return str(error) or type(error).__name__
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        gc.freeze()  # torch and the model stay: going through them takes most of a second
        return None

    def run(self, config: WorkerConfig, model: ModelSource, attended: Attended) -> tuple[int, str]:
        """A worker's life; the status that it ends with, and why.

        What an attention worker has of the model is sent: it loads nothing of it, nor transformers.
        """
        try:
            if not has_weights(config.kind):
                return worker.run(config, attended, []), ""
            return worker.run(config, self._models.conversion(model), self._models.weights(model)), ""
        except Exception:
            return 1, traceback.format_exc().strip()
        finally:
            gc.collect()  # an actor that waits for its next worker has no arena

    def _has(self, model: ModelSource) -> bool:
        try:
            return self._models.has_weights(model)
        except OSError:  # prepare() reports it
            return False


def has_weights(kind: str) -> bool:
    """Whether such a worker computes with the model: an attention worker has only to know its shape."""
    return kind != "attention"


def installed_version() -> str:
    return version("laminabench")
