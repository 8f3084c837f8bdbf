"""A hand that kills and stops an engine's workers, and what they are forked from, at random moments."""

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

# A fork server that is stopped is missed when a worker is, and then for 20 s.
FORK_SERVER = 0.02
# While lost workers are being replaced, more are struck, this often; but not so many in a row that the engine
# gives up, which it promises after eight attempts.
AT_ONCE = 0.25
MOST_AT_ONCE = 2
WITHIN_S = 0.2
# All workers have to be there again by then.
LONGEST_S = 120.0


@dataclass
class Hand:
    """Strikes the workers of one front end, as fast as it recovers from that."""

    front_end: int
    workers: int  # that there are when none is lost
    rng: random.Random
    kills: int = 0
    stops: int = 0
    why: str | None = None  # nobody came to take a lost worker's place
    # Tokens so far. No strike but one at once comes before there are more, and so many in all for each.
    progress: Callable[[], int] | None = None
    every: int = 0
    _enough: threading.Event = field(default_factory=threading.Event)
    _at_once: int = 0

    @property
    def strikes(self) -> int:
        return self.kills + self.stops

    def strike_all(self, kills: int, stops: int) -> None:
        """So many, in random order; fewer if it is told that it is enough."""
        orders = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
        self.rng.shuffle(orders)
        for number, order in enumerate(orders):
            while self.progress and self.progress() < number * self.every:
                if self._enough.wait(LOOK_S / 4):
                    return
            if not self._rest() or self._enough.wait(self.rng.uniform(0, WITHIN_S)):
                return
            self.strike(order)

    def strike(self, order: signal.Signals, *, fork_server: float = FORK_SERVER) -> None:
        """One that is there, whoever it is."""
        while not self._enough.is_set() and alive(self.front_end):
            servers, found = fork_servers(self.front_end), workers(self.front_end)
            victims = servers if self.rng.random() < fork_server else found
            if not victims:  # they all have just gone
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
        """Until the last victims were replaced, mostly; whether to go on."""
        if self._at_once < MOST_AT_ONCE and self.rng.random() < AT_ONCE:
            self._at_once += 1
            return not self._enough.is_set()
        self._at_once = 0
        end_s = time.monotonic() + LONGEST_S
        before = self.progress() if self.progress else -1
        while not self.whole() or (self.progress and self.progress() <= before):
            if self._enough.wait(LOOK_S) or not alive(self.front_end):
                return False
            if time.monotonic() > end_s:
                there = len(workers(self.front_end))
                self.why = f"{there} of {self.workers} workers, or no tokens, {LONGEST_S:g} s later"
                return False
        return True

    def whole(self) -> bool:
        """Whether all workers are there, and none is stopped. A fork server may be: nobody misses it yet."""
        there = workers(self.front_end)
        return len(there) == self.workers and all(alive(pid) and not stopped(pid) for pid in there)

    def enough(self) -> None:
        self._enough.set()


def stopped(pid: int) -> bool:
    return host.stat(pid)[:1] == ["T"]


@contextlib.contextmanager
def struck(hand: Hand, kills: int, stops: int) -> Iterator[threading.Thread]:
    """While the block runs, or until it has struck so often."""
    thread = threading.Thread(target=hand.strike_all, args=(kills, stops), name="strikes", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        hand.enough()
        thread.join(LONGEST_S)
