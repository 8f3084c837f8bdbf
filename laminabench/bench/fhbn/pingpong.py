"""Ping-pong over channels between two processes, as figure 13 of the Lamina paper measures its network.

The first process sends, the other sends back at once what it has received. A round trip is measured by the
first process, from having the data to having the answer. For the bandwidth the answer is 64 bytes, and half a
round trip of 64 bytes is subtracted: the rest is the message's way to a receiver that has not read it. It is
measured a second time with a receiver that reads every byte once before it answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina import _native, fhbn
from laminabench.bench.fhbn import results
from laminabench.bench.fhbn.options import Engines
from laminabench.bench.fhbn.peer import Echo, NotOpenedError, echoing
from laminabench.bench.fhbn.results import COPIES, SMALLEST, Round, Samples, Seconds, median
from laminabench.bench.frame import QUIET, Report, Row, Watcher, all_judged, rounds_for
from laminabench.util.errors import UserError
from laminabench.util.gc_paused import gc_paused

FEWEST_ROUNDS, ROUNDS = 3, 10
_MOST_MESSAGES = 5000  # of a turn
_WARM_UP = 8
_CACHE_LINES = 20_000
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Measured:
    report: Report
    rounds: Sequence[Round]


def run(engines: Engines, sizes: Sequence[int], seconds: float = 20.0, watcher: Watcher = QUIET) -> Measured:
    """Measure every engine with every size for about `seconds` in all.

    Engines and the limits (copies of as many bytes between two private buffers) take turns, round by round,
    so that other load on the machine affects all of them. The two threads that send and receive have a core
    each; gloo's own threads, which started before, may use both.
    """
    cores = two_cores()
    line_s = _native.cache_line_round_trip_s(cores[0], cores[1], _CACHE_LINES) if cores else None
    rows: list[Row] = []
    rounds: list[Round] = []
    rates: dict[str, dict[str, float]] = {f"{name}_gb_per_s": {} for name in COPIES}
    with ExitStack() as stack:
        echo, engines = _opened(stack, engines, max(*sizes, SMALLEST), cores[1] if cores else None)
        stack.enter_context(pinned(cores[0] if cores else None))
        stack.enter_context(gc_paused())
        watcher.detail(f"the echoing process is {echo.pid}")
        if cores is None:
            watcher.note("this process may use one core, which the two share: times are of taking turns")
        for done, size in enumerate(sizes):
            watcher.progress(done, len(sizes))
            samples, copies = Setting(echo, size).measure(seconds / len(sizes))
            for name, took in copies.items():
                rates[f"{name}_gb_per_s"][str(size)] = size / median(took) / 1e9
            for name, taken in samples.items():
                rows.append(results.row(name, size, taken, copies))
                rounds += results.rounds_of(name, size, taken, copies)
        watcher.progress(len(sizes), len(sizes))
    rows.sort(key=lambda row: engines.names.index(str(row.facts["engine"])))  # sizes are in order already
    limits = {**rates, "cache_line_round_trip_us": None if line_s is None else line_s * 1e6}
    facts = {
        "benchmark": "fhbn",
        "engines": list(engines.names),
        "auto": engines.auto,
        "skipped": engines.skipped,
        "sizes": list(sizes),
        "seconds": seconds,
        "cores": None if cores is None else list(cores),
        "targets": {"rtt_us_p50": results.TARGET_RTT_US, "share_of_memcpy": results.TARGET_SHARE},
        "limits": limits,
        "rows": rows,
        "met": all_judged([row.met for row in rows]),
    }
    return Measured(Report(facts, results.text(rows, engines.skipped, limits)), rounds)


def two_cores() -> tuple[int, int] | None:
    """Return two usable processors, on different physical cores if possible; None if there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        return None
    first = usable[0]
    threads = threads_of(first)
    other_cores = [core for core in usable[1:] if core not in threads]
    return first, (other_cores or usable[1:])[0]


def threads_of(core: int, cpus: Path = _CPUS) -> set[int]:
    """Return the processors that share this one's core, including itself."""
    path = cpus / f"cpu{core}" / "topology" / "thread_siblings_list"
    threads: set[int] = {core}
    with contextlib.suppress(OSError, ValueError):
        for stretch in path.read_text(encoding="ascii").split(","):
            start, _, end = stretch.partition("-")
            threads |= set(range(int(start), int(end or start) + 1))
    return threads


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Pin this thread to one core, and restore its affinity afterwards."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _opened(stack: ExitStack, engines: Engines, message_bytes: int, core: int | None) -> tuple[Echo, Engines]:
    """Return the peer, with a channel each way over every engine, and these engines."""
    while True:
        try:
            return stack.enter_context(echoing(engines.names, message_bytes, core)), engines
        except NotOpenedError as error:
            # The link and the other process have ended with it: start again with the other engines.
            if engines.named or len(engines.names) == 1:
                raise
            engines = engines.without(error.engine, error.reason)


class Setting:
    """One message size: the buffers, and the turns of engines and limits."""

    def __init__(self, echo: Echo, size: int) -> None:
        self.echo = echo
        # Written, and so in memory, before anything is timed. Not random: numpy imports its generator at the
        # first use, and a Ctrl-C meanwhile is lost.
        self.payload = np.resize(np.arange(251, dtype=np.uint8), size)
        self.small = np.full(SMALLEST, 7, np.uint8)
        room = np.ones(size + 64, np.uint8)
        start = -room.ctypes.data % 64
        self.copied = room[start : start + size]
        to, source = self.copied.ctypes.data, self.payload.ctypes.data
        self.copies: dict[str, Callable[[], object]] = {
            "memcpy": lambda: ctypes.memmove(to, source, size),
            "channel_copy": lambda: _native.channel_copy(self.copied, self.payload),
        }

    def measure(self, seconds: float) -> tuple[dict[str, Samples], dict[str, list[Seconds]]]:
        """Return every engine's samples and every copy's, by rounds."""
        samples = {name: Samples() for name in self.echo.ends}
        copies: dict[str, list[Seconds]] = {name: [] for name in self.copies}
        costs = {name: self._warmed_up(name) for name in samples}
        copy_s = {name: float(_times(copy, _WARM_UP).min()) for name, copy in self.copies.items()}
        # In a round each engine has four turns, and each copy has one.
        turn_s = seconds / ROUNDS / (4 * len(samples) + len(copies))
        for _ in rounds_for(seconds, FEWEST_ROUNDS):
            for name, copy in self.copies.items():
                copies[name].append(_times(copy, _count(turn_s, copy_s[name])))
            for name, taken in samples.items():
                count = _count(turn_s, costs[name])
                taken.rtt.append(self._pings(name, self.payload, count))
                back_s = float(np.median(self._pings(name, self.small, max(count // 4, 20)))) / 2
                for ways, read in ((taken.one_way, False), (taken.read, True)):
                    out = self._pings(name, self.payload, count, answer=SMALLEST, read=read)
                    # Always positive, however noisy the round.
                    ways.append(np.maximum(out - back_s, 1e-9))
        return samples, copies

    def _warmed_up(self, name: str) -> float:
        """Touch the slots, check that the same bytes come back, and return the shortest time."""
        self.echo.begin(name, _WARM_UP)
        sender, receiver = self.echo.ends[name]
        fastest = float("inf")
        payload = on_device(name, self.payload)
        for _ in range(_WARM_UP):
            start = time.perf_counter()
            sender.send(payload)
            message = receiver.recv()
            fastest = min(fastest, time.perf_counter() - start)
            part = message[0] if isinstance(message[0], memoryview) else message[0].cpu()
            if not np.array_equal(np.asarray(part, np.uint8), self.payload):
                raise UserError("fhbn-corrupted", f"{name} has returned other bytes than were sent")
            message.release()
        return fastest

    def _pings(
        self,
        name: str,
        payload: NDArray[np.uint8],
        count: int,
        *,
        answer: int | None = None,
        read: bool = False,
    ) -> Seconds:
        """Measure round trips; the first ones wake the other process up and are not counted."""
        self.echo.begin(name, count + 2, answer, read=read)
        sender, receiver = self.echo.ends[name]
        return pings(sender, receiver, on_device(name, payload), count + 2)[2:]


def pings(sender: fhbn.Sender, receiver: fhbn.Receiver, payload: object, count: int) -> Seconds:
    """Measure round trips, each from having the data to having the answer."""
    took = np.empty(count)
    clock, send, recv = time.perf_counter, sender.send, receiver.recv
    for index in range(count):
        start = clock()
        send(payload)
        message = recv()
        took[index] = clock() - start
        message.release()
    return took


def _times(action: Callable[[], object], count: int) -> Seconds:
    took = np.empty(count)
    clock = time.perf_counter
    for index in range(count):
        start = clock()
        action()
        took[index] = clock() - start
    return took


def on_device(engine: str, payload: NDArray[np.uint8]) -> object:
    """Return the bytes where the engine takes them from. Not verified on hardware for NCCL."""
    if engine != "nccl":
        return payload
    import torch

    return torch.from_numpy(payload).cuda()


def _count(seconds: float, each_s: float) -> int:
    return max(3, min(_MOST_MESSAGES, int(seconds / max(each_s, 1e-7))))
