"""An engine whose clock is made up; it keeps lamina's schedule, and its records are of the real kind."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lamina.pipeline import Records

SLICES = 3
# Until a worker that was struck is noticed, and until the iteration goes on.
NOTICED_NS, RECOVERED_NS = {"kill": 200_000_000, "stop": 1_000_000_000}, 300_000_000
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
    workers: list[str] = field(default_factory=lambda: ["model 0", "attention 0"])
    faults: list[Any] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)  # tokens that requests came with, by number
    _prompts: dict[int, int] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)
    _struck: dict[str, str] = field(default_factory=dict)
    peak_kv_tokens: int = 0

    def __post_init__(self) -> None:
        # lamina.pipeline brings torch along, which tests of the modelled systems do without.
        from lamina.pipeline import Recorder, Schedule  # noqa: PLC0415

        self.schedule = Schedule("serial", 1, SLICES)
        self._workers = [Recorder(), Recorder()]

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

    def submit(self, prompt: int | list[int], asked: Any, made: Sequence[int] = ()) -> int:
        output = getattr(asked, "max_tokens", asked)
        length = prompt if isinstance(prompt, int) else len(prompt)
        if length + output > self.capacity:
            raise ValueError(f"{length + output} tokens never fit")
        number = len(self._left)
        self._prompts[number] = sum(
            i * token for i, token in enumerate([length] if isinstance(prompt, int) else prompt)
        )
        self._left[number], self._charge[number] = output - len(made), length + output
        self._lengths[number] = output
        self.given[number] = len(made)
        assert isinstance(prompt, int) or list(made) == self._tokens(number)
        heapq.heappush(self._waiting, (self.priority(), number))
        return number

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running)

    def strike(self, name: str, how: str = "kill") -> None:
        assert name in self.workers
        assert name not in self._struck, "who is dead cannot be killed"
        self._struck[name] = how

    def _recover(self) -> None:
        """A new worker knows nothing of what its predecessor did."""
        from lamina.pipeline import Recorder  # noqa: PLC0415

        if not self._struck:
            return
        noticed_ns = self.now_ns + max(NOTICED_NS[how] for how in self._struck.values())
        self.now_ns = noticed_ns + RECOVERED_NS
        for name in self._struck:
            self._workers[self.workers.index(name)] = Recorder()
        self.faults.append(
            SimpleNamespace(
                workers=tuple(self._struck), why="it was struck", noticed_s=noticed_ns / 1e9,
                resumed_s=self.now(), requests=len(self._running), kv_tokens=10 * len(self._running),
            )
        )  # fmt: skip
        self._struck.clear()

    def _tokens(self, number: int) -> list[int]:
        made = self._lengths[number] - self._left[number]
        return [(self._prompts[number] + 7 * place) % 1000 for place in range(made)]

    def made(self, number: int, since: int = 0) -> tuple[int, ...]:
        return tuple(self._tokens(number)[since:])

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
        self._recover()
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

    def result(self, number: int) -> Any:
        self.asked.append(number)
        return SimpleNamespace(completions=[SimpleNamespace(tokens=tuple(self._tokens(number)))], error=None)

    def records(self) -> Records:
        from lamina.pipeline.records import gather  # noqa: PLC0415

        names = ("model 0", "attention 0")
        return gather(names, (0, -1), [list(worker.messages()) for worker in self._workers])


@pytest.fixture
def made_up_engine() -> type[MadeUpEngine]:
    return MadeUpEngine
