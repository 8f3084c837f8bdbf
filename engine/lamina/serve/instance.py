"""One engine of a fleet: a thread of its own steps it, and what a fleet has there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lamina.pipeline import EngineError
from lamina.serve.engine import Engine
from lamina.serve.requests import Completion, Fault, FinishReason, Result, Step
from lamina.serve.sampling import Prompt, Sampling

State = Literal["open", "draining", "drained", "lost"]
# What an iteration under way has to end in when the fleet is closed; then its workers are killed.
CLOSE_S = 5.0


@dataclass(eq=False)
class Routed:
    """A request on its way through a fleet."""

    number: int
    prompt: Prompt
    sampling: Sampling  # with a seed, so that it draws the same anywhere
    demand: tuple[int, int]  # its prompt's tokens, and most that it may make: what a router goes by
    prefix: NDArray[np.int64]
    priority: int
    made: tuple[int, ...] = ()  # elsewhere
    instance: int | None = None  # where the router has sent it
    local: int | None = None  # its number there; None before the engine has it
    runs: bool = False  # it was reported as joined to a batch
    preemptions: int = 0  # elsewhere
    deaths: int = 0  # of engines that it ran on

    @property
    def resumable(self) -> bool:
        """Whether it can go on after its generated tokens; else it begins again."""
        return self.sampling.width == 1 and self.sampling.logprobs is None

    def result(self, reason: FinishReason, error: str | None = None) -> Result:
        """Build the result of a request that no engine has."""
        completions = (Completion(self.made, reason),) if self.made else ()
        return Result(self.number, completions, self.demand[0], 0, error)


class Instance:
    """One engine of a fleet, with the thread that steps it.

    Between two iterations the engine rests, and the fleet's thread may use it.
    """

    def __init__(
        self, number: int, engine: Engine, report: Callable[[Instance, Future[Step]], None], timeout_s: float
    ) -> None:
        self.number, self.engine = number, engine
        self.open = True  # it gets requests
        self.struck = False
        self.why: str | None = None  # it is lost
        self.requests: dict[int, Routed] = {}  # by their numbers there
        self.coming: list[Routed] = []  # that the engine does not have yet
        self.future: Future[Step] | None = None  # of the iteration under way
        self._report, self._timeout_s, self._until_s = report, timeout_s, 0.0
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"instance {number}")
        self._worked_s: dict[str, float] = {}
        self._collecting = self._hangs = False
        self._faults = 0  # already reported

    @property
    def state(self) -> State:
        if self.why is not None:
            return "lost"
        if self.open:
            return "open"
        return "draining" if self.requests or self.coming else "drained"

    @property
    def busy(self) -> bool:
        """Whether there is something to step or to take in."""
        if self.why is not None:
            return False
        return bool(self.future or self.coming) or not self.engine.idle

    @property
    def left_s(self) -> float:
        """Return the time that the iteration under way still has."""
        return max(0.0, self._until_s - time.monotonic())

    def go(self) -> None:
        """Run one iteration in the instance's thread, which reports its end."""
        self._until_s = time.monotonic() + self._timeout_s
        future = self.future = self._threads.submit(self._iterate)
        future.add_done_callback(lambda done: self._report(self, done))

    def _iterate(self) -> Step:
        step = self.engine.step()
        if self._collecting:
            self._collecting, self._worked_s = False, self.engine.worked_s()
        return step

    def ended(self) -> Step:
        """Return the result of the iteration once it has ended; raise its error."""
        assert self.future
        try:
            return self.future.result(self.left_s)
        except LateError as error:
            if self.future.done():  # the engine's own
                raise
            self._hangs = True
            why = f"an iteration did not end in {self._timeout_s:g} s"
            raise EngineError("fleet-instance-hangs", why) from error
        finally:
            self.future = None

    def worked_s(self) -> dict[str, float]:
        """Return Engine.worked_s; during a step, its last known value."""
        if self.why is None and self.future is None:
            self._worked_s = self.engine.worked_s()
        self._collecting = self.future is not None
        return {f"{self.number}/{worker}": spent for worker, spent in self._worked_s.items()}

    def faults(self) -> list[Fault]:
        """Return the unreported faults, with the workers' names in the fleet."""
        new = self.engine.faults[self._faults :]
        self._faults += len(new)
        renamed = [tuple(f"{self.number}/{worker}" for worker in fault.workers) for fault in new]
        return [replace(fault, workers=workers) for fault, workers in zip(new, renamed, strict=True)]

    def lose(self, why: str) -> None:
        """Give the engine up; its workers are ended meanwhile."""
        self.why, self.open = why, False
        self.requests.clear()
        self.coming.clear()
        self._threads.submit(self.engine.close)
        self._threads.shutdown(wait=False)

    def close(self) -> None:
        """End the engine; if an iteration that is under way does not end, its workers are killed."""
        if self.why is None:
            if self.future and wait([self.future], CLOSE_S).not_done:
                with contextlib.suppress(EngineError, KeyError):  # none to kill, or it replaces them just now
                    self.engine.inject_faults()
                self._hangs = bool(wait([self.future], CLOSE_S).not_done)
            self.engine.close()
        self._threads.shutdown(wait=not self._hangs)
