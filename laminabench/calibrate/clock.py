"""The device where something is measured, and its timer: a core's clock, or the GPU's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lamina import gpu
from laminabench.calibrate.gpu_timing import gpu_seconds, graph_seconds

Seconds = Callable[[Callable[[], object]], float]


def seconds_of(action: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@dataclass(frozen=True)
class Clock:
    """A device and its timers. A GPU's `seconds` queues all launches first; `seconds_of_many` is for more
    launches than fit its queue."""

    device: str = "cpu"
    seconds: Seconds = seconds_of
    seconds_of_many: Seconds = seconds_of

    @property
    def place(self) -> torch.device:
        """The device of the tensors."""
        return gpu.tensors_on(self.device)


CORE = Clock()
GPU = Clock("cuda", gpu_seconds, graph_seconds)
