"""Costs of messages that a GPU sends and receives by itself, compared with those through the host.

Not verified on hardware: two GPUs, and mlx5.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lamina import fhbn
from laminabench.bench.fhbn import nccl_comparison
from laminabench.bench.fhbn.nccl_comparison import Nccl
from laminabench.bench.fhbn.options import engines_of
from laminabench.bench.fhbn.results import CAVEATS, notes, size_text, starred, us_text
from laminabench.bench.frame import (
    QUIET,
    Report,
    Spread,
    Table,
    Watcher,
    all_judged,
    seconds_of,
    spread,
)
from laminabench.calibrate.gpu_timing import require_gpu

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = 4
TRIPS = 20  # round trips launched ahead at once: few enough for the GPU's queue
TIMEOUT_S = 20.0
HEAD_START_S = 0.0005  # from a launch until the kernel certainly waits
SPIN_S = 0.01  # the host polls, and does not sleep
WARM_UP = 3
NOT_COMPARED = Nccl(missing="not requested")


def run(
    engines: str = "shm",
    sizes: Sequence[int] = (0, 64, 4 << 10, 64 << 10, 1 << 20, 16 << 20),
    rounds: int = 50,
    watcher: Watcher = QUIET,
) -> Report:
    """Measure every engine of a list such as "shm,softnic", with every size of message.

    `one_way` is from one stream to another through host memory, between two GPUs if there are two; a message
    of no bytes gives the cost of publishing and polling alone, or of posting over a NIC. `staged` is the same
    with torch: copy to the host, wait, copy on. Round trips are judged against NCCL's, which needs two GPUs.

    `round_trip` is from a host thread that sends to a kernel that adds 1 to the message and back to that
    thread: with everything launched ahead of the message (`launched_ahead`), so as a graph (`graph_ahead`),
    launched when the message is there (`launched_after`, `graph_after`), and without a channel (`torch`:
    copied to the GPU, worked on, copied back). Launching ahead hides the cost of launches.
    """
    require_gpu()
    import torch

    chosen = engines_of(engines, on_stream=True)
    rows = []
    turns = [(engine, size) for engine in chosen.names for size in sizes]
    for done, (engine, size) in enumerate(turns):
        watcher.progress(done, len(turns))
        rows.append(row(engine, size, _one_way(engine, size, rounds), _trips(engine, size, rounds)))
    rings = {engine: _ring(engine) for engine in chosen.names}
    return report(
        torch.cuda.get_device_name(),
        rows,
        chosen.skipped,
        nccl_comparison.trips(),
        torch.cuda.device_count(),
        rings,
    )


def row(
    engine: str, size: int, one_way: Mapping[str, Spread], trips: Mapping[str, Spread]
) -> Mapping[str, object]:
    """Return one engine and size: the seconds of each way to send a message."""
    caveat = CAVEATS.get(engine)
    return {"engine": engine, "bytes": size, "caveat": caveat, "one_way_s": one_way, "round_trip_s": trips}


def report(
    device: str,
    rows: Sequence[Mapping[str, Any]],
    skipped: Mapping[str, str],
    nccl: Nccl = NOT_COMPARED,
    gpus: int = 1,
    rings: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Return the report, with a line for each way. `rings`: the place of each engine's rings."""
    path = f"{'one GPU' if gpus < 2 else 'two GPUs'}, one process"
    path += "".join(f", {engine}'s rings in {place}" for engine, place in rings.items())
    compared = nccl_comparison.compared(rows, nccl)
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    facts = {
        "benchmark": "fhbn-cuda",
        "device": device,
        "engines": engines,
        "skipped": skipped,
        "path": path,
        "nccl_missing": nccl.missing,
        "beside_nccl": compared,
        "rows": rows,
        "met": all_judged([each.met for each in compared]),
    }
    lines = [
        (starred(row["engine"]), size_text(row["bytes"]), what, way, *took.cells(lambda s: us_text(s * 1e6)))
        for row in rows
        for what, ways in (("one way", row["one_way_s"]), ("round trip", row["round_trip_s"]))
        for way, took in ways.items()
    ]
    table = Table(("<engine", "<size", "<what", "<way", "median", "min to max"), lines)
    head = f"{device}; {path}"
    return Report(facts, [head, table, *nccl_comparison.text(compared, nccl), *notes(engines, skipped)])


Both = Callable[[Callable[[fhbn.Link], Any], Callable[[fhbn.Link], Any]], tuple[Any, Any]]


@contextlib.contextmanager
def linked(timeout_s: float) -> Iterator[Both]:
    """Yield a function that opens both ends over two links of this process with itself.

    It takes the two functions that open the ends, such as a channel's sender and receiver, which need each
    other.
    """
    secret = fhbn.new_secret()
    with ThreadPoolExecutor(1) as pool, fhbn.Listener("one end", secret) as listener:
        other = pool.submit(listener.accept, timeout_s)
        with (
            fhbn.connect(listener.address, name="the other end", secret=secret, timeout_s=timeout_s) as ours,
            other.result(timeout_s) as theirs,
        ):

            def both(
                first: Callable[[fhbn.Link], Any], second: Callable[[fhbn.Link], Any]
            ) -> tuple[Any, Any]:
                coming = pool.submit(second, theirs)
                with ExitStack() as failing:
                    failing.callback(ours.close)  # else the other one may wait for it
                    made = first(ours)
                    failing.callback(made.close)
                    pair = made, coming.result(timeout_s)
                    failing.pop_all()
                    return pair

            yield both


def _opener(stack: ExitStack, engine: str, size: int) -> Callable[..., tuple[Any, Any]]:
    """Return a function that opens channels for one size from this process to itself; `stack` closes them."""
    both = stack.enter_context(linked(TIMEOUT_S))

    def opened(
        name: str,
        *,
        from_gpu: bool = True,
        to_gpu: bool = True,
        network: str = engine,
        gpus: tuple[int, int] = (0, 0),
    ) -> tuple[Any, Any]:
        how: dict[str, Any] = {"network": network, "timeout_s": TIMEOUT_S}
        receiver_options = how | {"message_bytes": max(size, 1), "slots": SLOTS}

        def sender(link: fhbn.Link) -> Any:
            if from_gpu:
                with _on(gpus[0]):
                    return link.device_sender(name, **how)
            return link.sender(name, spin_s=SPIN_S, **how)

        def receiver(link: fhbn.Link) -> Any:
            if to_gpu:
                with _on(gpus[1]):
                    return link.device_receiver(name, **receiver_options)
            return link.receiver(name, spin_s=SPIN_S, **receiver_options)

        ends = both(sender, receiver)
        for end in ends:
            stack.callback(end.close)
        return ends

    return opened


def _ring(engine: str) -> str:
    with ExitStack() as stack:
        ends = _opener(stack, engine, 1)("ring")
        return " and ".join(dict.fromkeys(end.ring.name for end in ends))


def _on(number: int) -> Any:
    """Select a device: an end is on the device that is current, in its thread, when it is opened."""
    import torch

    return torch.cuda.device(number)


def _message(size: int, number: int = 0) -> list[Tensor]:
    import torch

    return [torch.zeros(size, dtype=torch.uint8, device=f"cuda:{number}")] if size else []


def _one_way(engine: str, size: int, rounds: int) -> dict[str, Spread]:
    """Measure two streams that send a message back and forth, all launched ahead, by the first GPU's clock.

    The first stream begins with the host's message, which is sent when everything is launched.
    """
    gpu: Any = importlib.import_module("torch.cuda")  # it has no types
    other = min(gpu.device_count() - 1, 1)
    first, second = gpu.Stream(0), gpu.Stream(other)
    here, far = _message(size), _message(size, other)
    with ExitStack() as stack:
        opened = _opener(stack, engine, size)
        serve, take = opened("there", gpus=(0, other))
        answer, end = opened("back", gpus=(other, 0))
        opener, begin = opened("gate", from_gpu=False, network="shm")

        def seconds() -> float:
            events = [gpu.Event(enable_timing=True) for _ in range(2)]
            first.synchronize()
            second.synchronize()
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
            first.synchronize()
            second.synchronize()
            for one in (begin, serve, answer, take, end):
                one.check()
            return float(events[0].elapsed_time(events[1])) / 1e3 / (2 * TRIPS)

        times = {"channel": _times(seconds, rounds)}
    if size:
        times["staged"] = _times(lambda: seconds_of(lambda: _stage(here[0], far[0])), rounds)
    return times


def _stage(source: Tensor, target: Tensor) -> None:
    import torch

    target.copy_(source.cpu())
    torch.cuda.synchronize(target.device)


def _trips(engine: str, size: int, rounds: int) -> dict[str, Spread]:
    """Measure round trips by the host's clock: the host sends, the GPU works, the host receives."""
    import torch

    buffers = _message(size)
    payload = [torch.zeros(size, dtype=torch.uint8)] if size else []
    with ExitStack() as stack:
        opened = _opener(stack, engine, size)
        sender, take = opened("there", from_gpu=False)
        answer, receiver = opened("back", to_gpu=False)

        def work() -> None:
            take.recv_into(*buffers)
            for tensor in buffers:
                tensor.add_(1)
            answer.send(*buffers)

        def seconds(launch: Callable[[], object], ahead: bool) -> float:
            torch.cuda.synchronize()
            if ahead:
                launch()
                # Not by sleep, from which a core wakes up slower than a message takes.
                begins = time.perf_counter() + HEAD_START_S
                while time.perf_counter() < begins:
                    pass
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


def _times(seconds: Callable[[], float], rounds: int) -> Spread:
    for _ in range(WARM_UP):
        seconds()
    return spread([seconds() for _ in range(rounds)])
