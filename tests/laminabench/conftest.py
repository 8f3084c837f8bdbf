"""An engine whose clock is made up; it keeps lamina's schedule, and its records are of the real kind."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lamina.pipeline import Records

SLICES = 3
# Milliseconds of one piece of work; the clock starts at no special moment.
SLICE_NS, ATTENTION_NS, BEGAN_NS = 1_000_000, 2_000_000, 7_000_000_000


@dataclass
class MadeUpEngine:
    """One model worker, one attention worker, serial; reserve admission, first come or by a key."""

    capacity: int = 10_000
    most: int = 4
    now_ns: int = BEGAN_NS
    slept: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    priority: Callable[[], int] = lambda: 0
    _waiting: list[tuple[int, int]] = field(default_factory=list)
    _left: dict[int, int] = field(default_factory=dict)
    _charge: dict[int, int] = field(default_factory=dict)
    _running: list[int] = field(default_factory=list)
    _iteration: int = 0
    peak_kv_tokens: int = 0

    def __post_init__(self) -> None:
        # lamina.pipeline brings torch along, which tests of the modelled systems do without.
        from lamina.pipeline import Recorder, Schedule  # noqa: PLC0415

        self.schedule = Schedule("serial", 1, SLICES)
        self._workers = (Recorder(), Recorder())

    def now(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += round(seconds * 1e9) + 1

    @property
    def kv_tokens(self) -> int:
        return self.capacity

    @property
    def core(self) -> Any:
        return SimpleNamespace(network="none")

    def submit(self, prompt: int, asked: Any) -> int:
        output = getattr(asked, "max_tokens", asked)
        if prompt + output > self.capacity:
            raise ValueError(f"{prompt + output} tokens never fit")
        number = len(self._left)
        self._left[number], self._charge[number] = output, prompt + output
        heapq.heappush(self._waiting, (self.priority(), number))
        return number

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running)

    def step(self) -> Any:
        started, joined = self.now(), []
        while self._waiting and len(self._running) < self.most:
            number = self._waiting[0][1]
            if sum(self._charge[one] for one in (*self._running, number)) > self.capacity:
                break
            heapq.heappop(self._waiting)
            self._running.append(number)
            charged = sum(self._charge[one] for one in self._running)
            self.peak_kv_tokens = max(self.peak_kv_tokens, charged)
            joined.append(number)
        size = len(self._running)
        for place in range(SLICES):
            self._work(0, place, SLICE_NS)
            if place < SLICES - 1:
                self._work(1, place, ATTENTION_NS)
        for number in self._running:
            self._left[number] -= 1
        ended = [number for number in self._running if not self._left[number]]
        self._running = [number for number in self._running if self._left[number]]
        self._iteration += 1
        return SimpleNamespace(
            batch=0, iteration=self._iteration - 1, size=size, kv_tokens=size, started_s=started,
            ended_s=self.now(), joined=joined, preempted=[], ended=ended, model_s=0.0, attention_s=0.0,
            host_s=0.0005,
        )  # fmt: skip

    def _work(self, worker: int, place: int, took_ns: int) -> None:
        began = self.now_ns
        self.now_ns += took_ns
        self._workers[worker].note(0, self._iteration, self._iteration, place, began, self.now_ns)

    def result(self, number: int) -> None:
        self.asked.append(number)

    def records(self) -> Records:
        from lamina.pipeline.records import gather  # noqa: PLC0415

        names = ("model 0", "attention 0")
        return gather(names, (0, -1), [list(worker.messages()) for worker in self._workers])


@pytest.fixture
def made_up_engine() -> type[MadeUpEngine]:
    return MadeUpEngine
