"""Timing on a GPU: check that there is one, measure its calls, and generate models."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from laminabench.util.errors import UserError

if TYPE_CHECKING:
    import transformers

COPY_BYTES = 1 << 30
CALLS = 5  # between two events
AHEAD_CYCLES = 5_000_000  # the GPU waits some milliseconds while the host queues launches


def require_gpu() -> None:
    """Raise a UserError unless torch and the kernels can use a GPU here."""
    from lamina import gpu
    from lamina.cuda_library import CudaError

    try:
        gpu.require()
    except CudaError as missing:
        raise UserError("bench-no-gpu", f"this benchmark needs a GPU: {missing}") from None


def slug(device: str) -> str:
    """Return a device's name as an identifier: `h100-80gb-hbm3` for "NVIDIA H100 80GB HBM3"."""
    return re.sub("[^a-z0-9]+", "-", device.lower().replace("nvidia", "")).strip("-")


def made_up(config: transformers.PreTrainedConfig, device: str) -> transformers.PreTrainedModel:
    """Return a bfloat16 model with random weights, drawn on the device, as a core takes minutes for it."""
    import torch
    import transformers

    from lamina import gpu

    with torch.device(gpu.tensors_on(device)):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    made.eval()
    made.requires_grad_(False)
    return made


def copy_bandwidth() -> float:
    """Return bytes read and written a second by the fastest copy."""
    import torch

    source = torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / gpu_seconds(lambda: target.copy_(source))


def gpu_seconds(call: Callable[[], object]) -> float:
    """Return one call's time on the GPU, the mean of several in a row.

    The GPU is made to wait until all are launched, so that it never waits for the host in between.
    """
    from torch import cuda

    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    cuda._sleep(AHEAD_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / CALLS


def graph_seconds(call: Callable[[], object]) -> float:
    """Return one call's time as a CUDA graph, for calls with more launches than fit the GPU's queue."""
    import torch

    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        call()  # libraries choose their kernels at the first call, which cannot be captured
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return gpu_seconds(graph.replay)
