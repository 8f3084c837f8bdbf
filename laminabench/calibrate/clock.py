"""Where something is measured, and how its time is taken there: by a core's clock, or a GPU's own."""

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
    """A GPU is given everything before it begins; `seconds_of_many`: more launches than can be ahead."""

    device: str = "cpu"
    seconds: Seconds = seconds_of
    seconds_of_many: Seconds = seconds_of

    @property
    def place(self) -> torch.device:
        """Where the tensors are."""
        return gpu.tensors_on(self.device)


CORE = Clock()
GPU = Clock("cuda", gpu_seconds, graph_seconds)
