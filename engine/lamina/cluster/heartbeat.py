"""Heartbeats, which show whether a silent worker still works: a link of their own, answered by a thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Self

from lamina.cluster import messages
from lamina.cluster.messages import Activity, MessageError, Order, WorkerConfig, unexpected
from lamina.cluster.process_states import wants_core
from lamina.fhbn import ChannelError, connect
from lamina.fhbn.control import Control, Deadline
from lamina.fhbn.readiness import readable

# What the link is called, after its worker.
HEARTBEAT = " heartbeat"
# While there are no requests the front end is silent.
FOREVER_S = 1e9
MEETING_S = 60.0
# A worker that is not stopped answers within this.
ANSWER_S = 0.75
# Limit for a worker without a core, or whose thread cannot answer while another one computes.
BUSY_ANSWER_S = 10.0
# One that begins imports and binds, which lets no other thread of it run.
BEGINNING_S = 5.0
# A piece of work that takes so much longer than any before it, for as much, and than this, will not end.
SLOW_S = 0.75
SLOWER = 50
# Of the first ones nothing is known: memory is touched, kernels are compiled.
FIRST_PIECES = 10
# What one look counts for at most: one that comes late shows only that there was no core to look with.
MOST_GAP_S = 0.25


class Heartbeat:
    """The worker's side: its main thread notes what it does, another one answers the front end."""

    def __init__(self, config: WorkerConfig) -> None:
        # Kind, work, when it began, and the seconds of a core that the thread had had by then.
        self._since: tuple[str, float, float, float] | None = None
        self._pieces: defaultdict[str, int] = defaultdict(int)
        self._slowest: defaultdict[str, float] = defaultdict(float)  # seconds for a unit of work
        self._worked_s = 0.0
        self._effort = Effort()
        # Called when the front end hangs up, by the thread that answers: the main one may wait for a GPU.
        self.hung_up: Callable[[], None] = lambda: None
        self._link = connect(
            config.address, name=config.name + HEARTBEAT, secret=config.secret, timeout_s=MEETING_S
        )
        # Torch lets other threads run while it computes, and the process ends without this one.
        threading.Thread(target=self._answer, daemon=True).start()

    def start(self, kind: str, work: float = 1.0) -> None:
        """Begin a piece of work, so much of its kind."""
        self._since = kind, work, time.monotonic(), time.thread_time()

    def stop(self) -> None:
        """Mark the work as ended; from now on the worker waits for others."""
        if self._since is None:
            return
        (kind, work, since, _), self._since = self._since, None
        took_s = time.monotonic() - since
        self._pieces[kind] += 1
        self._slowest[kind] = max(self._slowest[kind], took_s / work)
        self._worked_s += took_s

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for another worker within a piece of work; that time does not count."""
        now, self._since = self._since, None
        self._worked_s += time.monotonic() - now[2] if now else 0.0
        yield
        self._since = now and (now[0], now[1], time.monotonic(), time.thread_time())

    def _answer(self) -> None:
        try:
            while True:
                messages.receive(self._link.control, Deadline(FOREVER_S))
                messages.send(self._link.control, self._activity(), Deadline(MEETING_S))
        except ChannelError:
            self.hung_up()

    def _activity(self) -> Activity:
        computed_s, blocked_s = self._effort.look()
        if (since := self._since) is None:
            return Activity(self._worked_s)
        kind, work, began, computed_before_s = since
        busy_s = min(computed_s - computed_before_s + blocked_s, time.monotonic() - began)
        usual_s = work * self._slowest[kind]
        return Activity(self._worked_s, busy_s, usual_s, self._pieces[kind])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()


class Effort:
    """The time of a working thread, as another one samples it: computing, or blocked. Waiting for a core is
    neither: on an over-committed host a worker is slow and does not hang.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sampled: Callable[[], tuple[float, bool]] | None = None,
    ) -> None:
        """Report for the calling thread. `sampled`: its seconds of a core, and whether it wants one now."""
        self._now = now
        self._sampled = sampled or partial(_sampled, threading.get_ident(), threading.get_native_id())
        self._looked, self._computed_s, self._blocked_s = now(), 0.0, 0.0

    def look(self) -> tuple[float, float]:
        """Return the seconds that it has computed, and those that it has been blocked for since."""
        now, (computed_s, would_go_on) = self._now(), self._sampled()
        advances = would_go_on or computed_s > self._computed_s
        self._blocked_s = 0.0 if advances else self._blocked_s + min(now - self._looked, MOST_GAP_S)
        self._looked, self._computed_s = now, computed_s
        return computed_s, self._blocked_s


def _sampled(thread: int, native_id: int) -> tuple[float, bool]:
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread)), wants_core(native_id)
    except OSError:  # it has ended
        return 0.0, False


class Patience(Deadline):
    """A deadline that work moves: a fixed time from now, or from the last observed progress.

    A worker that computes a long prompt is slow and not lost; one that stands still is.
    """

    def __init__(self, timeout_s: float, advanced: Callable[[], float]) -> None:
        super().__init__(timeout_s)
        self._timeout_s, self._advanced = timeout_s, advanced

    @property
    def left_s(self) -> float:
        self._end = max(self._end, self._advanced() + self._timeout_s)
        return super().left_s


class HeartbeatMonitor:
    """The front end's side: notices workers that do not answer, or whose work does not end."""

    def __init__(
        self, timeout_s: float, runs: Callable[[int], bool], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`runs` says whether a worker has a core or waits for one."""
        self._timeout_s, self._runs, self._now = timeout_s, runs, now
        self._answer_s = ANSWER_S
        self._looked = now()
        self._silent_s: dict[int, float] = {}  # of workers with an unanswered heartbeat
        self._controls: dict[int, Control] = {}
        # Seconds that each has worked, as of its last answer, and those before it that were replaced.
        self._worked_s: defaultdict[int, float] = defaultdict(float)
        self._before_s: defaultdict[int, float] = defaultdict(float)
        self._advanced: dict[int, float] = {}  # when each last ended a piece of work, as observed
        self.stopped: set[int] = set()  # workers that cannot continue and do not answer

    def add(self, number: int, control: Control) -> None:
        self._controls[number] = control

    def advanced(self, workers: Collection[int]) -> float:
        """Return when one of these workers last made progress, by time.monotonic(), or 0."""
        return max((self._advanced.get(number, 0.0) for number in workers), default=0.0)

    def remove(self, number: int) -> None:
        self._silent_s.pop(number, None)
        self._advanced.pop(number, None)
        self.stopped.discard(number)
        self._before_s[number] += self._worked_s.pop(number, 0.0)
        if control := self._controls.pop(number, None):
            control.close()

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Let workers begin: some of them may be silent for longer."""
        self._answer_s = BEGINNING_S
        try:
            yield
        finally:
            self._answer_s = ANSWER_S

    def look(self) -> dict[int, str]:
        """Query all workers that have answered, without waiting; return why, for those that have failed."""
        result: dict[int, str] = {}
        now = self._now()
        # A front end without a core itself does not know how long the others were silent.
        passed_s, self._looked = min(now - self._looked, MOST_GAP_S), now
        for number, control in list(self._controls.items()):
            try:
                why = self._fault(number, control, now, passed_s)
            except MessageError as error:
                why = str(error)
            except ChannelError:
                self.remove(number)  # it has ended: its other link shows it
                continue
            if why:
                result[number] = why
        return result

    def worked_s(self, workers: Sequence[str]) -> dict[str, float]:
        """Return the seconds that each worker has worked, as of its last heartbeat; sends the next one."""
        self.look()  # a worker that cannot go on is noticed where it is waited for
        return {name: self._before_s[at] + self._worked_s[at] for at, name in enumerate(workers)}

    def _fault(self, number: int, control: Control, now: float, passed_s: float) -> str | None:
        if number in self._silent_s:
            if readable(control, 0):
                activity = messages.receive(control, Deadline(ANSWER_S))
                if not isinstance(activity, Activity):
                    raise unexpected(activity, control.peer)
                del self._silent_s[number]
                if activity.worked_s > self._worked_s[number]:
                    self._advanced[number] = now
                self._worked_s[number] = activity.worked_s
                limit_s = self._timeout_s
                if activity.pieces >= FIRST_PIECES:
                    limit_s = min(limit_s, max(SLOW_S, SLOWER * activity.usual_s))
                busy_s = activity.busy_s
                return f"it has worked at one thing for {busy_s:.1f} s" if busy_s > limit_s else None
            self._silent_s[number] += passed_s
            silent_s = self._silent_s[number]
            if silent_s <= self._answer_s or (silent_s <= BUSY_ANSWER_S and self._runs(number)):
                return None
            self.stopped.add(number)
            return f"it has not answered for {silent_s:.1f} s"
        messages.send(control, Order("activity"), Deadline(ANSWER_S))
        self._silent_s[number] = 0.0
        return None

    def close(self) -> None:
        for number in list(self._controls):
            self.remove(number)
