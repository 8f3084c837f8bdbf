"""Fault injection: kills and stops an engine's workers and their fork server at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from experiments.processes import LOOK_S, alive, fork_servers, workers
from laminabench.util import host

# A stopped fork server is only noticed when a worker is replaced, after 20 s.
FORK_SERVER = 0.02
# The probability of another fault while lost workers are being replaced; but not so many in a row that the
# engine gives up, which it does after eight attempts.
AT_ONCE = 0.25
MOST_AT_ONCE = 2
WITHIN_S = 0.2
# The time in which all workers must have been replaced.
LONGEST_S = 120.0


@dataclass
class Hand:
    """Injects faults into the workers of one front end, as fast as it recovers."""

    front_end: int
    workers: int  # when none is lost
    rng: random.Random
    kills: int = 0
    stops: int = 0
    why: str | None = None  # a lost worker was not replaced
    # Tokens so far. Faults that are not simultaneous wait for progress, and for `every` tokens per fault.
    progress: Callable[[], int] | None = None
    every: int = 0
    _enough: threading.Event = field(default_factory=threading.Event)
    _at_once: int = 0

    @property
    def strikes(self) -> int:
        return self.kills + self.stops

    def inject_all(self, kills: int, stops: int) -> None:
        """Inject this many faults in random order; stop early when `enough` was called."""
        orders = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
        self.rng.shuffle(orders)
        for number, order in enumerate(orders):
            while self.progress and self.progress() < number * self.every:
                if self._enough.wait(LOOK_S / 4):
                    return
            if not self._rest() or self._enough.wait(self.rng.uniform(0, WITHIN_S)):
                return
            self.inject(order)

    def inject(self, order: signal.Signals, *, fork_server: float = FORK_SERVER) -> None:
        """Inject a fault into a random process."""
        while not self._enough.is_set() and alive(self.front_end):
            servers, running = fork_servers(self.front_end), workers(self.front_end)
            victims = servers if self.rng.random() < fork_server else running
            if not victims:  # they have all just ended
                time.sleep(LOOK_S)
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(victims), order)
                if order == signal.SIGKILL:
                    self.kills += 1
                else:
                    self.stops += 1
                return

    def _rest(self) -> bool:
        """Wait until the last victims were replaced, mostly; return whether to continue."""
        if self._at_once < MOST_AT_ONCE and self.rng.random() < AT_ONCE:
            self._at_once += 1
            return not self._enough.is_set()
        self._at_once = 0
        end_s = time.monotonic() + LONGEST_S
        before = self.progress() if self.progress else -1
        while not self.all_running() or (self.progress and self.progress() <= before):
            if self._enough.wait(LOOK_S) or not alive(self.front_end):
                return False
            if time.monotonic() > end_s:
                there = len(workers(self.front_end))
                self.why = f"{there} of {self.workers} workers, or no tokens, {LONGEST_S:g} s later"
                return False
        return True

    def all_running(self) -> bool:
        """Return whether all workers run. A stopped fork server does not count: it is not noticed yet."""
        there = workers(self.front_end)
        return len(there) == self.workers and all(alive(pid) and not stopped(pid) for pid in there)

    def enough(self) -> None:
        self._enough.set()


def stopped(pid: int) -> bool:
    return host.stat(pid)[:1] == ["T"]


@contextlib.contextmanager
def struck(hand: Hand, kills: int, stops: int) -> Iterator[threading.Thread]:
    """Inject faults while the block runs, or until all are done."""
    thread = threading.Thread(target=hand.inject_all, args=(kills, stops), name="strikes", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        hand.enough()
        thread.join(LONGEST_S)
