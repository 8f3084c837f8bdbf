"""Offering a trace to a running engine by real clocks: who comes when, and what became of them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from laminabench.sim.simulate import Offered, Priority
from laminabench.systems.live_tables import Tables
from laminabench.traces.table import Trace


class StepLike(Protocol):
    """One iteration of one batch, as lamina.serve.Step has it."""

    batch: int
    iteration: int
    size: int
    kv_tokens: int
    started_s: float
    ended_s: float
    joined: Sequence[int]
    preempted: Sequence[int]
    ended: Sequence[int]
    model_s: float
    attention_s: float
    host_s: float


class EngineLike(Protocol):
    """What of an engine a replay uses."""

    @property
    def idle(self) -> bool: ...

    def step(self) -> StepLike: ...

    def result(self, number: int) -> Any: ...


@dataclass(slots=True)
class Clock:
    """Seconds since the replay began, by the clock that the engine's times are of."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    began: float = 0.0

    def start(self) -> None:
        self.began = self.now()

    def elapsed(self) -> float:
        return self.now() - self.began


@dataclass(slots=True)
class Order:
    """The queue's order for the engine, whose policies see a request and not its row in the trace.

    The row that is being submitted is noted here, and `policy` answers for it.
    """

    key: Callable[[int], int] | None
    row: int = 0

    def policy(self, *_: object) -> int:
        assert self.key is not None
        return self.key(self.row)


def order_of(name: str, priority: Priority | None, rows: int) -> Order:
    """The order of a policy's name; its keys are made small enough for the engine.

    Where all keys are known beforehand their ranks say as much. A policy of the user's own is asked when a
    request enters, so its numbers keep about seven digits.
    """
    if priority is None:
        return Order(None)
    if ":" in name:
        return Order(lambda row: squeezed(priority(row)))
    ranks = np.unique([priority(row) for row in range(rows)], return_inverse=True)[1].reshape(-1).tolist()
    return Order(ranks.__getitem__)


def squeezed(key: int) -> int:
    """A number in the same order, below the engine's 2**30: a float's bits, which sort as the float does."""
    bits = int(np.float32(abs(key)).view(np.int32)) >> 1
    return bits if key >= 0 else -bits


@dataclass(slots=True)
class Replay:
    """A trace on its way through an engine. `run` is the whole of it."""

    engine: EngineLike
    trace: Trace
    offered: Offered
    submit: Callable[[int, int], int]  # prompt and output tokens to a request's number
    refusal: type[Exception]  # what `submit` raises for a request that can never be served
    order: Order
    clock: Clock
    progress: Callable[[int, int], None] = lambda done, tokens: None
    why_rejected: str | None = None
    tables: Tables = field(init=False)
    _rows: dict[int, int] = field(init=False, default_factory=dict)  # of requests in the system, by number
    _next: int = field(init=False, default=0)
    _arrivals: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.tables = Tables(self.trace)
        self._arrivals = self.trace.arrival_s.tolist() if self.offered.mode == "open" else []

    @classmethod
    def on(
        cls,
        engine: Any,
        trace: Trace,
        offered: Offered,
        order: Order,
        progress: Callable[[int, int], None],
    ) -> Replay:
        """On a lamina.Engine: requests give a length, and make as many tokens as the trace says."""
        serve: Any = importlib.import_module("lamina.serve")

        def submit(prompt: int, output: int) -> int:
            number: int = engine.submit(prompt, serve.Sampling(max_tokens=output, ignore_eos=True))
            return number

        refusal: type[Exception] = serve.RequestError
        return cls(engine, trace, offered, submit, refusal, order, Clock(), progress)

    def run(self) -> Tables:
        """Until every request has been served or refused."""
        self.clock.start()
        self.tables.began_s = self.clock.began
        self._offer()
        while self._rows or self._next < len(self.trace):
            if not self._rows:
                # Only an open replay has nobody in the system and somebody to come.
                self.clock.sleep(max(0.0, self._arrivals[self._next] - self.clock.elapsed()))
            else:
                self._step()
            self._offer()
        return self.tables

    def _offer(self) -> None:
        """Submit everybody whose time has come."""
        mode, most = self.offered.mode, self.offered.concurrency
        while self._next < len(self.trace):
            arrived = 0.0
            if mode == "open":
                arrived = self._arrivals[self._next]
                if arrived > self.clock.elapsed():
                    return
            elif mode == "closed":
                if len(self._rows) >= most:
                    return
                arrived = self.clock.elapsed()
            self._submit(self._next, arrived)
            self._next += 1

    def _submit(self, row: int, arrived: float) -> None:
        self.tables.arrived(row, arrived)
        self.order.row = row
        try:
            number = self.submit(int(self.trace.prompt_tokens[row]), int(self.trace.output_tokens[row]))
        except self.refusal as error:
            self.why_rejected = self.why_rejected or str(error)
            return
        self._rows[number] = row
        self.tables.waiting += 1

    def _step(self) -> None:
        step = self.engine.step()
        self.tables.add(step, self._rows)
        for number in step.ended:
            # A result is kept until it is asked for.
            self.engine.result(number)
            del self._rows[number]
        self.progress(self.tables.finished, self.tables.tokens)
