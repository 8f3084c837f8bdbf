"""What a message costs that a GPU sends and receives by itself, beside going through the host.

Not verified on hardware: nobody has run this on a GPU yet. It is written so that the first who has one can.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from laminabench.bench.timing import seconds_of, spread
from laminabench.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from lamina._native import ShmSegment

SLOTS = 4
TRIPS = 20  # there and back, launched ahead at once: few enough for the GPU's queue of launches
TIMEOUT_S = 20.0
HEAD_START_S = 0.0005  # from launching until what was launched surely waits
SPIN_S = 0.01  # the host looks, and does not sleep
WARM_UP = 3

Progress = Callable[[int, int], None]


def run(
    sizes: Sequence[int] = (0, 4 << 10, 64 << 10, 1 << 20, 16 << 20),
    rounds: int = 50,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Every size of message; the answer is ready for JSON.

    `one_way` is from one stream of a GPU to another through memory of the host, for a message of no bytes the
    price of publishing and polling alone. `staged` is the same with torch: to the host, wait, and back.

    `round_trip` is from a host thread that sends to a kernel that adds 1 to the message and back to that
    thread: with everything launched ahead of the message (`launched_ahead`), so as a graph (`graph_ahead`),
    launched when the message is there (`launched_after`, `graph_after`), and without a channel (`torch`:
    copied to the GPU, worked on, copied back). What is ahead of its message hides the launches.
    """
    torch = _torch_with_cuda()
    rows = []
    for done, size in enumerate(sizes):
        if progress:
            progress(done, len(sizes))
        rows.append(
            {"bytes": size, "one_way_s": _one_way(size, rounds), "round_trip_s": _trips(size, rounds)}
        )
    return {
        "benchmark": "fhbn-cuda",
        "device": torch.cuda.get_device_name(),
        "path": "pinned host memory, one GPU, one process; no network",
        "verified": False,
        "rows": rows,
    }


def _torch_with_cuda() -> Any:
    """Torch, if it and the kernels can use a GPU here."""
    import torch  # noqa: PLC0415 - a second to import

    from lamina import cuda_library  # noqa: PLC0415

    try:
        cuda_library.call("check_device")
    except cuda_library.CudaError as missing:
        raise UserError(f"this benchmark needs a GPU: {missing}") from None
    if not torch.cuda.is_available():
        raise UserError("this benchmark needs a GPU: this torch is built without CUDA")
    return torch


def _ring(size: int) -> ShmSegment:
    from lamina._native import ShmSegment  # noqa: PLC0415

    return ShmSegment.create(max(size, 1), SLOTS, epoch=0, first_seqno=0)


def _message(size: int) -> list[Tensor]:
    """A message of one part, or of none."""
    import torch  # noqa: PLC0415

    return [torch.zeros(size, dtype=torch.uint8, device="cuda")] if size else []


def _one_way(size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Two streams that send a message to and fro, all launched ahead; the GPU's own clock.

    The first stream begins with the host's message, which is sent when everything is launched.
    """
    from lamina._native import ShmSender  # noqa: PLC0415
    from lamina.fhbn.device import DeviceReceiver, DeviceSender  # noqa: PLC0415

    gpu: Any = importlib.import_module("torch.cuda")  # whose types are not told
    first, second = gpu.Stream(), gpu.Stream()
    there, back, gate = _ring(size), _ring(size), _ring(0)
    here, far = _message(size), _message(size)
    opener = ShmSender(gate, "the GPU", timeout_s=TIMEOUT_S, spin_s=SPIN_S)
    with ExitStack() as ends:
        serve, answer = (
            ends.enter_context(DeviceSender(ring, "the other stream", timeout_s=TIMEOUT_S))
            for ring in (there, back)
        )
        take, end = (
            ends.enter_context(DeviceReceiver(ring, "the other stream", timeout_s=TIMEOUT_S))
            for ring in (there, back)
        )
        begin = ends.enter_context(DeviceReceiver(gate, "the host", timeout_s=TIMEOUT_S))

        def seconds() -> float:
            events = [gpu.Event(enable_timing=True) for _ in range(2)]
            gpu.synchronize()
            for _ in range(TRIPS):
                take.recv_into(*far, stream=second)
                answer.send(*far, stream=second)
            begin.recv_into(stream=first)
            events[0].record(first)
            for _ in range(TRIPS):
                serve.send(*here, stream=first)
                end.recv_into(*here, stream=first)
            events[1].record(first)
            opener.send()
            gpu.synchronize()
            for one in (begin, serve, answer, take, end):
                one.check()
            return float(events[0].elapsed_time(events[1])) / 1e3 / (2 * TRIPS)

        times = {"channel": _times(seconds, rounds)}
    if size:
        times["staged"] = _times(lambda: seconds_of(lambda: _stage(here[0], far[0])), rounds)
    return times


def _stage(source: Tensor, target: Tensor) -> None:
    import torch  # noqa: PLC0415

    target.copy_(source.cpu())
    torch.cuda.synchronize()


def _trips(size: int, rounds: int) -> dict[str, dict[str, float]]:
    """The host sends, the GPU works, the host receives; the host's clock."""
    import torch  # noqa: PLC0415

    from lamina._native import ShmReceiver, ShmSender  # noqa: PLC0415
    from lamina.fhbn.device import DeviceReceiver, DeviceSender  # noqa: PLC0415

    there, back = _ring(size), _ring(size)
    held = _message(size)
    sender = ShmSender(there, "the GPU", timeout_s=TIMEOUT_S, spin_s=SPIN_S)
    receiver = ShmReceiver(back, "the GPU", timeout_s=TIMEOUT_S, spin_s=SPIN_S)
    payload = [torch.zeros(size, dtype=torch.uint8)] if size else []
    with (
        DeviceReceiver(there, "the host", timeout_s=TIMEOUT_S) as take,
        DeviceSender(back, "the host", timeout_s=TIMEOUT_S) as answer,
    ):

        def work() -> None:
            take.recv_into(*held)
            for tensor in held:
                tensor.add_(1)
            answer.send(*held)

        def seconds(launch: Callable[[], object], ahead: bool) -> float:
            torch.cuda.synchronize()
            if ahead:
                launch()
                time.sleep(HEAD_START_S)
            start = time.perf_counter()
            sender.send(*payload)
            if not ahead:
                launch()
            receiver.recv().release()
            taken = time.perf_counter() - start
            take.check()
            answer.check()
            return taken

        seconds(work, ahead=False)  # loads torch's kernels before they are captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        ways = {
            "launched_ahead": lambda: seconds(work, ahead=True),
            "graph_ahead": lambda: seconds(graph.replay, ahead=True),
            "launched_after": lambda: seconds(work, ahead=False),
            "graph_after": lambda: seconds(graph.replay, ahead=False),
        }
        times = {name: _times(way, rounds) for name, way in ways.items()}
    if size:
        times["torch"] = _times(lambda: seconds_of(lambda: payload[0].cuda().add_(1).cpu()), rounds)
    return times


def _times(seconds: Callable[[], float], rounds: int) -> dict[str, float]:
    for _ in range(WARM_UP):
        seconds()
    return spread([seconds() for _ in range(rounds)])
