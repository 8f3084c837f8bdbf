"""Offering requests to a running engine by real clocks, between its steps, as laminabench does to its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .protocol import EVERY_S, EventWriter, Order

if TYPE_CHECKING:
    from .engine import VllmEngine

# Steps in a row that schedule nothing: what waits then waits for ever.
_IDLE_STEPS = 1000


class StuckError(Exception):
    """A standstill: requests wait, and the engine does nothing."""


@dataclass
class Offering:
    """A trace on its way through an engine; `run` does all of it."""

    engine: VllmEngine
    order: Order
    writer: EventWriter
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _began_s: float = field(init=False, default=0.0)
    _next: int = field(init=False, default=0)  # the first row that has not been submitted
    _inside: int = field(init=False, default=0)  # requests that the engine has
    _running: int = field(init=False, default=0)  # of them, those that had a token in the last step

    def run(self) -> None:
        """Run until every request has been served or refused."""
        self._began_s = self.now()
        if self.order.mode == "saturate":
            # All come at the beginning; the engine gets them a queue at a time, which is the same to it.
            for row in range(len(self.order)):
                self.writer.arrived(row, 0.0, self.engine.why_not(row))
        self._offer()
        idle = 0
        while self._inside or self._next < len(self.order):
            if self._inside:
                idle = 0 if self._step() else idle + 1
                if idle == _IDLE_STEPS:
                    raise StuckError(f"{self._inside} requests wait, and {idle} steps did nothing for them")
            else:
                self._sleep()
            self._offer()
            self.writer.flush_if_due()
        self.writer.flush()

    def elapsed(self) -> float:
        return self.now() - self._began_s

    def _offer(self) -> None:
        """Submit every request whose time has come."""
        order = self.order
        while self._next < len(order):
            row = self._next
            if order.mode == "open":
                at_s = order.arrival_s[row]
                if at_s > self.elapsed():
                    return
                self._come(row, at_s)
            elif order.mode == "closed":
                if self._inside >= order.concurrency:
                    return
                self._come(row, self.elapsed())
            else:
                # As many wait as could join at once.
                if self._inside >= self._running + order.max_num_seqs:
                    return
                if self.engine.why_not(row) is None:
                    self._submit(row)
            self._next += 1

    def _come(self, row: int, at_s: float) -> None:
        why_not = self.engine.why_not(row)
        self.writer.arrived(row, at_s, why_not)
        if why_not is None:
            self._submit(row)

    def _submit(self, row: int) -> None:
        self.engine.submit(row)
        self._inside += 1

    def _step(self) -> bool:
        """Run a step; return whether anything was computed."""
        start_s = self.elapsed()
        step = self.engine.step()
        if step.begun:
            step = step._replace(begun=[(row, at_s - self._began_s) for row, at_s in step.begun])
        self.writer.stepped(start_s, self.elapsed(), step)
        self._inside -= len(step.ended)
        self._running = step.size - len(step.ended)
        return bool(step.size) or self.engine.busy

    def _sleep(self) -> None:
        """Sleep until the next request arrives, but not long: it shows signs of life.

        Only an open replay has no request inside and some to come.
        """
        wait_s = self.order.arrival_s[self._next] - self.elapsed()
        self.sleep(min(max(wait_s, 0.0), EVERY_S))
