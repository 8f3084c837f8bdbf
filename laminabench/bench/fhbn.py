"""Ping-pong over channels between two processes, as figure 13 of the Lamina paper measures its network.

The first process sends, the other sends back at once what it has received. A round trip is what the first one
sees, from having the data to having the answer. For the bandwidth the answer is 64 bytes, and half of a round
trip of 64 bytes is taken off: what is left is the way of the message out.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina import _native, fhbn
from laminabench.bench.fhbn_asked import Engines
from laminabench.bench.fhbn_peer import Echo, echoing
from laminabench.errors import UserError

TARGET_RTT_US = 2.0
TARGET_SHARE = 0.9
SMALLEST, LARGEST_JUDGED = 64, 16 << 20
FEWEST_ROUNDS, ROUNDS = 3, 10
_MOST_MESSAGES = 5000  # of a turn
_WARM_UP = 8
_CACHE_LINES = 20_000

Seconds = NDArray[np.float64]
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Measured:
    """What the command tells, and what each round of it has found."""

    result: dict[str, Any]
    rounds: list[dict[str, Any]]


@dataclass
class Samples:
    """One engine and size, one entry a round."""

    rtt: list[Seconds] = field(default_factory=list)
    one_way: list[Seconds] = field(default_factory=list)


def run(
    engines: Engines,
    sizes: Sequence[int],
    seconds: float = 20.0,
    progress: Progress = lambda done, total: None,
    started: Callable[[int, tuple[int, int] | None], None] = lambda pid, cores: None,
) -> Measured:
    """Measure every engine with every size for about `seconds` in all.

    Engines and the limit, a copy of as many bytes between two private buffers, take turns, round by round, so
    that whatever else the machine does meets all of them. The two threads that send and receive have a core
    each; gloo's own, which were there before, may use both.
    """
    cores = two_cores()
    line_s = _native.cache_line_round_trip_s(cores[0], cores[1], _CACHE_LINES) if cores else None
    rows: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    limits: dict[str, Any] = {"memcpy_gb_per_s": {}}
    with (
        echoing(engines.names, max(*sizes, SMALLEST), cores[1] if cores else None) as echo,
        pinned(cores[0] if cores else None),
        uncollected(),
    ):
        started(echo.pid, cores)
        for done, size in enumerate(sizes):
            progress(done, len(sizes))
            found, copies = Setting(echo, size).measure(seconds / len(sizes))
            copy_s = float(np.median(np.concatenate(copies)))
            limits["memcpy_gb_per_s"][str(size)] = size / copy_s / 1e9
            for name, samples in found.items():
                rows.append(row(name, size, samples, copies))
                rounds += [
                    of_round(name, size, number, *three)
                    for number, three in enumerate(zip(samples.rtt, samples.one_way, copies, strict=True))
                ]
        progress(len(sizes), len(sizes))
    rows.sort(key=lambda entry: (engines.names.index(entry["engine"]), entry["bytes"]))
    limits["cache_line_round_trip_us"] = None if line_s is None else line_s * 1e6
    result = {
        "benchmark": "fhbn",
        "engines": list(engines.names),
        "auto": engines.auto,
        "skipped": engines.skipped,
        "sizes": list(sizes),
        "seconds": seconds,
        "cores": None if cores is None else list(cores),
        "targets": {"rtt_us_p50": TARGET_RTT_US, "share_of_limit": TARGET_SHARE},
        "limits": limits,
        "rows": rows,
        "met": all(entry["met"] for entry in rows if entry["met"] is not None),
    }
    return Measured(result, rounds)


class Setting:
    """One size: the buffers, and the turns that engines and the limit take."""

    def __init__(self, echo: Echo, size: int) -> None:
        self.echo = echo
        self.size = size
        # Written, and so in memory, before anything is timed. No random bytes: numpy loads what makes them
        # when it is first used, and a Ctrl-C meanwhile is lost.
        self.payload = np.resize(np.arange(251, dtype=np.uint8), size)
        self.copied = np.ones(size, np.uint8)
        self.small = np.full(SMALLEST, 7, np.uint8)

    def measure(self, seconds: float) -> tuple[dict[str, Samples], list[Seconds]]:
        samples = {name: Samples() for name in self.echo.ends}
        copies: list[Seconds] = []
        costs = {name: self._warmed_up(name) for name in samples}
        copy_s = float(self._copies(_WARM_UP).min())
        # In a round each engine has three turns, and the limit has one.
        turn_s = seconds / ROUNDS / (3 * len(samples) + 1)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(copies) < FEWEST_ROUNDS:
            copies.append(self._copies(_count(turn_s, copy_s)))
            for name, found in samples.items():
                count = _count(turn_s, costs[name])
                found.rtt.append(self._pings(name, self.payload, count))
                base = self._pings(name, self.small, max(count // 4, 20))
                out = self._pings(name, self.payload, count, answer=SMALLEST)
                # Never nothing, however badly a round went.
                found.one_way.append(np.maximum(out - float(np.median(base)) / 2, 1e-9))
        return samples, copies

    def _warmed_up(self, name: str) -> float:
        """Touch the slots, see that what comes back is what was sent, and how long it takes."""
        self.echo.begin(name, _WARM_UP)
        sender, receiver = self.echo.ends[name]
        fastest = float("inf")
        payload = on_device(name, self.payload)
        for _ in range(_WARM_UP):
            start = time.perf_counter()
            sender.send(payload)
            message = receiver.recv()
            fastest = min(fastest, time.perf_counter() - start)
            if not np.array_equal(in_host(message[0]), self.payload):
                raise UserError(f"{name} has brought back other bytes than were sent")
            message.release()
        return fastest

    def _pings(self, name: str, payload: NDArray[np.uint8], count: int, answer: int | None = None) -> Seconds:
        """Round trips; the first ones wake the other process up and are not counted."""
        self.echo.begin(name, count + 2, answer)
        sender, receiver = self.echo.ends[name]
        return pings(sender, receiver, on_device(name, payload), count + 2)[2:]

    def _copies(self, count: int) -> Seconds:
        took = np.empty(count)
        clock, copy = time.perf_counter, ctypes.memmove
        to, source, size = self.copied.ctypes.data, self.payload.ctypes.data, self.size
        for index in range(count):
            start = clock()
            copy(to, source, size)
            took[index] = clock() - start
        return took


def pings(sender: fhbn.Sender, receiver: fhbn.Receiver, payload: object, count: int) -> Seconds:
    """The inner loop: from the end of who makes the data to the beginning of who uses the answer."""
    took = np.empty(count)
    clock, send, recv = time.perf_counter, sender.send, receiver.recv
    for index in range(count):
        start = clock()
        send(payload)
        message = recv()
        took[index] = clock() - start
        message.release()
    return took


def on_device(engine: str, payload: NDArray[np.uint8]) -> Any:
    """The bytes where the engine takes them from. Not verified on hardware for NCCL."""
    if engine != "nccl":
        return payload
    import torch  # noqa: PLC0415 - shared memory needs none

    return torch.from_numpy(payload).cuda()


def in_host(part: Any) -> NDArray[np.uint8]:
    """A part's bytes, wherever the engine has put them."""
    return np.asarray(part if isinstance(part, memoryview) else part.cpu(), np.uint8)


def row(engine: str, size: int, samples: Samples, copies: list[Seconds]) -> dict[str, Any]:
    """What is told of one engine and size."""
    rtt, one_way, copy = (np.concatenate(each) for each in (samples.rtt, samples.one_way, copies))
    shares = [
        float(np.median(limit) / np.median(ours)) for limit, ours in zip(copies, samples.one_way, strict=True)
    ]
    found: dict[str, Any] = {
        "engine": engine,
        "bytes": size,
        **{f"rtt_us_p{share}": float(np.percentile(rtt, share)) * 1e6 for share in (10, 50, 99)},
        "rtt_us_min": float(rtt.min()) * 1e6,
        "one_way_us_p50": float(np.median(one_way)) * 1e6,
        "gb_per_s": size / float(np.median(one_way)) / 1e9,
        "share_of_limit": float(np.median(copy) / np.median(one_way)),
        "share_by_round": {"median": float(np.median(shares)), "min": min(shares), "max": max(shares)},
        "round_trips": len(rtt),
        "rounds": len(copies),
        "target": None,
        "met": None,
    }
    if engine == "shm" and size == SMALLEST:
        found["target"] = {"rtt_us_p50": TARGET_RTT_US}
        found["met"] = found["rtt_us_p50"] <= TARGET_RTT_US
    if engine == "shm" and size == LARGEST_JUDGED:
        found["target"] = {"share_of_limit": TARGET_SHARE}
        found["met"] = found["share_of_limit"] >= TARGET_SHARE
    return found


def of_round(
    engine: str, size: int, number: int, rtt: Seconds, one_way: Seconds, copies: Seconds
) -> dict[str, Any]:
    """A row of the table that --out writes."""
    return {
        "engine": engine,
        "bytes": size,
        "round": number,
        "round_trips": len(rtt),
        "rtt_us_min": float(rtt.min()) * 1e6,
        "rtt_us_p50": float(np.median(rtt)) * 1e6,
        "rtt_us_p99": float(np.percentile(rtt, 99)) * 1e6,
        "one_way_us_p50": float(np.median(one_way)) * 1e6,
        "memcpy_us_p50": float(np.median(copies)) * 1e6,
    }


def two_cores() -> tuple[int, int] | None:
    """Two that this process may use, if there are, and not one core's two threads if that can be."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        return None
    first = usable[0]
    apart = [core for core in usable[1:] if core not in _threads_of(first)]
    return first, (apart or usable[1:])[0]


def _threads_of(core: int) -> set[int]:
    """The processors that share this one's core, itself among them."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    found: set[int] = {core}
    with contextlib.suppress(OSError, ValueError):
        for stretch in path.read_text(encoding="ascii").split(","):
            start, _, end = stretch.partition("-")
            found |= set(range(int(start), int(end or start) + 1))
    return found


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """This thread on one core, and where it was before afterwards."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is looked for while times are taken."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _count(seconds: float, each_s: float) -> int:
    return max(3, min(_MOST_MESSAGES, int(seconds / max(each_s, 1e-7))))
