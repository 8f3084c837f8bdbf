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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lamina import fhbn
from laminabench.bench.fhbn.options import device_engines_of
from laminabench.bench.fhbn.results import CAVEATS, notes, size_text, us_text
from laminabench.bench.frame import QUIET, Report, Spread, Table, Text, Watcher, seconds_of, spread
from laminabench.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from lamina.fhbn.device import DeviceReceiver, DeviceSender

SLOTS = 4
TRIPS = 20  # there and back, launched ahead at once: few enough for the GPU's queue of launches
TIMEOUT_S = 20.0
HEAD_START_S = 0.0005  # from launching until what was launched surely waits
SPIN_S = 0.01  # the host looks, and does not sleep
WARM_UP = 3

Ends = TypeVar("Ends", bound=tuple[Any, Any])


@dataclass(frozen=True)
class Row:
    """One engine and size: the seconds of each way to do it."""

    engine: str
    bytes: int
    caveat: str | None
    one_way_s: Mapping[str, Spread]
    round_trip_s: Mapping[str, Spread]

    def cells(self) -> Iterator[tuple[str, ...]]:
        """A line for each way."""
        engine = self.engine + ("*" if self.caveat else "")
        for what, ways in (("one way", self.one_way_s), ("round trip", self.round_trip_s)):
            for way, took in ways.items():
                yield engine, size_text(self.bytes), what, way, *took.cells(lambda s: us_text(s * 1e6))


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
    torch = _torch_with_cuda()
    asked = device_engines_of(engines)
    rows = []
    turns = [(engine, size) for engine in asked.names for size in sizes]
    for done, (engine, size) in enumerate(turns):
        watcher.progress(done, len(turns))
        ways = _one_way(engine, size, rounds), _trips(engine, size, rounds)
        rows.append(Row(engine, size, CAVEATS.get(engine), *ways))
    return report(torch.cuda.get_device_name(), rows, asked.skipped)


def report(device: str, rows: Sequence[Row], skipped: Mapping[str, str]) -> Report:
    """The rows as they are printed."""
    path = "pinned host memory, one GPU, one process"
    facts = {
        "benchmark": "fhbn-cuda",
        "device": device,
        "engines": list(dict.fromkeys(row.engine for row in rows)),
        "skipped": skipped,
        "path": path,
        "verified": False,
        "rows": rows,
    }
    titles = ("<engine", "<size", "<what", "<way", "median", "min to max")
    text: list[Text] = [
        f"{device}; {path}; not verified on hardware",
        Table(titles, [cells for row in rows for cells in row.cells()]),
        *notes({row.engine: row.caveat for row in rows}, skipped),
    ]
    return Report(facts, text)


def _torch_with_cuda() -> Any:
    """Torch, if it and the kernels can use a GPU here."""
    import torch

    from lamina import cuda_library

    try:
        cuda_library.call("check_device")
    except cuda_library.CudaError as missing:
        raise UserError("bench-needs-gpu", f"this benchmark needs a GPU: {missing}") from None
    if not torch.cuda.is_available():
        raise UserError("bench-needs-gpu", "this benchmark needs a GPU: this torch is built without CUDA")
    return torch


class _Closable(Protocol):
    def close(self) -> None: ...


First = TypeVar("First", bound=_Closable)
Second = TypeVar("Second")


class Pair:
    """Two links, each to the other."""

    def __init__(self, ours: fhbn.Link, theirs: fhbn.Link, pool: ThreadPoolExecutor) -> None:
        self._ours, self._theirs, self._pool = ours, theirs, pool

    def open(
        self, first: Callable[[fhbn.Link], First], second: Callable[[fhbn.Link], Second]
    ) -> tuple[First, Second]:
        """What two calls make that need each other, such as a channel's sender and its receiver."""
        other = self._pool.submit(second, self._theirs)
        with contextlib.ExitStack() as failing:
            failing.callback(self._ours.close)  # else the other one may wait for it
            made = first(self._ours)
            failing.callback(made.close)
            pair = made, other.result()
            failing.pop_all()
            return pair


@contextlib.contextmanager
def linked(timeout_s: float) -> Iterator[Pair]:
    """Two links of this process with itself."""
    secret = fhbn.new_secret()
    with ThreadPoolExecutor(1) as pool, fhbn.Listener("one end", secret) as listener:
        other = pool.submit(listener.accept, timeout_s)
        with (
            fhbn.connect(listener.address, name="the other end", secret=secret, timeout_s=timeout_s) as ours,
            other.result() as theirs,
        ):
            yield Pair(ours, theirs, pool)


class _Channels:
    """Channels between two ends in this process, for messages of one size; closed with `stack`."""

    def __init__(self, stack: ExitStack, engine: str, size: int) -> None:
        self._stack = stack
        self._pair = stack.enter_context(linked(TIMEOUT_S))
        self._engine = engine
        self._wanted: dict[str, Any] = {"message_bytes": max(size, 1), "slots": SLOTS, "timeout_s": TIMEOUT_S}

    def within_the_gpu(self, name: str) -> tuple[DeviceSender, DeviceReceiver]:
        """From one stream to another."""
        return self._closed(
            self._pair.open(
                lambda link: link.device_sender(name, network=self._engine, timeout_s=TIMEOUT_S),
                lambda link: link.device_receiver(name, network=self._engine, **self._wanted),
            )
        )

    def to_the_gpu(self, name: str, engine: str | None = None) -> tuple[fhbn.Sender, DeviceReceiver]:
        """From this thread to a stream."""
        network = engine or self._engine
        return self._closed(
            self._pair.open(
                lambda link: link.sender(name, network=network, timeout_s=TIMEOUT_S, spin_s=SPIN_S),
                lambda link: link.device_receiver(name, network=network, **self._wanted),
            )
        )

    def from_the_gpu(self, name: str) -> tuple[DeviceSender, fhbn.Receiver]:
        """From a stream to this thread."""
        return self._closed(
            self._pair.open(
                lambda link: link.device_sender(name, network=self._engine, timeout_s=TIMEOUT_S),
                lambda link: link.receiver(name, network=self._engine, spin_s=SPIN_S, **self._wanted),
            )
        )

    def _closed(self, ends: Ends) -> Ends:
        for end in ends:
            self._stack.callback(end.close)
        return ends


def _message(size: int) -> list[Tensor]:
    """A message of one part, or of none."""
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
        channels = _Channels(stack, engine, size)
        serve, take = channels.within_the_gpu("there")
        answer, end = channels.within_the_gpu("back")
        opener, begin = channels.to_the_gpu("gate", "shm")

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
        channels = _Channels(stack, engine, size)
        sender, take = channels.to_the_gpu("there")
        answer, receiver = channels.from_the_gpu("back")

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
