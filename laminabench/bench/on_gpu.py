"""What benchmarks on a GPU have in common: that there is one, and how long it takes for something."""

from __future__ import annotations

from collections.abc import Callable

from laminabench.errors import UserError

COPY_BYTES = 1 << 30
CALLS = 5  # between two events
AHEAD_CYCLES = 5_000_000  # what the GPU waits while the host launches what is to be timed: some milliseconds


def require_gpu() -> None:
    """A UserError unless torch and the kernels can use a GPU here."""
    from lamina import gpu
    from lamina.cuda_library import CudaError

    try:
        gpu.require()
    except CudaError as missing:
        raise UserError("bench-no-gpu", f"this benchmark needs a GPU: {missing}") from None


def copy_bandwidth() -> float:
    """Bytes read and written a second by the fastest thing that does both."""
    import torch

    source = torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / gpu_seconds(lambda: target.copy_(source))


def gpu_seconds(call: Callable[[], object]) -> float:
    """One call's time on the GPU, the mean of several in a row.

    The GPU is kept waiting until they are all launched, so that it never waits for the host in between.
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
