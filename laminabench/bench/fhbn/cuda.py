"""What a message costs that a GPU sends and receives by itself, beside going through the host.

Not verified on hardware: it has not run on a GPU yet.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from lamina import fhbn
from laminabench.bench.fhbn.options import engines_of
from laminabench.bench.fhbn.results import CAVEATS, notes, size_text, starred, us_text
from laminabench.bench.frame import QUIET, Report, Spread, Table, Watcher, seconds_of, spread
from laminabench.bench.on_gpu import require_gpu

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = 4
TRIPS = 20  # there and back, launched ahead at once: few enough for the GPU's queue of launches
TIMEOUT_S = 20.0
HEAD_START_S = 0.0005  # from launching until what was launched surely waits
SPIN_S = 0.01  # the host looks, and does not sleep
WARM_UP = 3


def run(
    engines: str = "shm",
    sizes: Sequence[int] = (0, 4 << 10, 64 << 10, 1 << 20, 16 << 20),
    rounds: int = 50,
    watcher: Watcher = QUIET,
) -> Report:
    """Every engine of a list such as "shm,softnic", with every size of message.

    `one_way` is from one stream of a GPU to another through memory of the host, for a message of no bytes the
    price of publishing and polling alone, and of posting over a NIC. `staged` is the same with torch: to the
    host, wait, and back.

    `round_trip` is from a host thread that sends to a kernel that adds 1 to the message and back to that
    thread: with everything launched ahead of the message (`launched_ahead`), so as a graph (`graph_ahead`),
    launched when the message is there (`launched_after`, `graph_after`), and without a channel (`torch`:
    copied to the GPU, worked on, copied back). What is ahead of its message hides the launches.
    """
    require_gpu()
    import torch

    asked = engines_of(engines, on_stream=True)
    rows = []
    turns = [(engine, size) for engine in asked.names for size in sizes]
    for done, (engine, size) in enumerate(turns):
        watcher.progress(done, len(turns))
        rows.append(row(engine, size, _one_way(engine, size, rounds), _trips(engine, size, rounds)))
    return report(torch.cuda.get_device_name(), rows, asked.skipped)


def row(engine: str, size: int, one_way: Mapping[str, Spread], trips: Mapping[str, Spread]) -> dict[str, Any]:
    """One engine and size: the seconds of each way to do it."""
    caveat = CAVEATS.get(engine)
    return {"engine": engine, "bytes": size, "caveat": caveat, "one_way_s": one_way, "round_trip_s": trips}


def report(device: str, rows: Sequence[Mapping[str, Any]], skipped: Mapping[str, str]) -> Report:
    """The rows as they are printed, with a line for each way."""
    path = "pinned host memory, one GPU, one process"
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    facts = {
        "benchmark": "fhbn-cuda",
        "device": device,
        "engines": engines,
        "skipped": skipped,
        "path": path,
        "verified": False,
        "rows": rows,
    }
    lines = [
        (starred(row["engine"]), size_text(row["bytes"]), what, way, *took.cells(lambda s: us_text(s * 1e6)))
        for row in rows
        for what, ways in (("one way", row["one_way_s"]), ("round trip", row["round_trip_s"]))
        for way, took in ways.items()
    ]
    table = Table(("<engine", "<size", "<what", "<way", "median", "min to max"), lines)
    head = f"{device}; {path}; not verified on hardware"
    return Report(facts, [head, table, *notes(engines, skipped)])


Both = Callable[[Callable[[fhbn.Link], Any], Callable[[fhbn.Link], Any]], tuple[Any, Any]]


@contextlib.contextmanager
def linked(timeout_s: float) -> Iterator[Both]:
    """Two links of this process with itself.

    Given is what opens at both what needs the other, such as a channel's sender and its receiver.
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
    """Opens channels for messages of one size from this process to itself; closed with `stack`."""
    both = stack.enter_context(linked(TIMEOUT_S))

    def opened(
        name: str, *, from_gpu: bool = True, to_gpu: bool = True, network: str = engine
    ) -> tuple[Any, Any]:
        how: dict[str, Any] = {"network": network, "timeout_s": TIMEOUT_S}
        wanted = how | {"message_bytes": max(size, 1), "slots": SLOTS}

        def sender(link: fhbn.Link) -> Any:
            return link.device_sender(name, **how) if from_gpu else link.sender(name, spin_s=SPIN_S, **how)

        def receiver(link: fhbn.Link) -> Any:
            if to_gpu:
                return link.device_receiver(name, **wanted)
            return link.receiver(name, spin_s=SPIN_S, **wanted)

        ends = both(sender, receiver)
        for end in ends:
            stack.callback(end.close)
        return ends

    return opened


def _message(size: int) -> list[Tensor]:
    import torch

    return [torch.zeros(size, dtype=torch.uint8, device="cuda")] if size else []


def _one_way(engine: str, size: int, rounds: int) -> dict[str, Spread]:
    """Two streams that send a message to and fro, all launched ahead; the GPU's own clock.

    The first stream begins with the host's message, which is sent when everything is launched.
    """
    gpu: Any = importlib.import_module("torch.cuda")  # whose types are not told
    first, second = gpu.Stream(), gpu.Stream()
    here, far = _message(size), _message(size)
    with ExitStack() as stack:
        opened = _opener(stack, engine, size)
        serve, take = opened("there")
        answer, end = opened("back")
        opener, begin = opened("gate", from_gpu=False, network="shm")

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
    import torch

    target.copy_(source.cpu())
    torch.cuda.synchronize()


def _trips(engine: str, size: int, rounds: int) -> dict[str, Spread]:
    """The host sends, the GPU works, the host receives; the host's clock."""
    import torch

    held = _message(size)
    payload = [torch.zeros(size, dtype=torch.uint8)] if size else []
    with ExitStack() as stack:
        opened = _opener(stack, engine, size)
        sender, take = opened("there", from_gpu=False)
        answer, receiver = opened("back", to_gpu=False)

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


def _times(seconds: Callable[[], float], rounds: int) -> Spread:
    for _ in range(WARM_UP):
        seconds()
    return spread([seconds() for _ in range(rounds)])
