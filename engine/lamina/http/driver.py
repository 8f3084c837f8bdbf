"""The one thread that owns an engine: requests reach it by a queue, and it reports their progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lamina.http.errors import ClosedError, FullError
from lamina.serve import Engines, Piece, RequestError, Result, Sampling, Step


@dataclass(eq=False, slots=True)
class Ticket:
    """A request on its way through the driver."""

    prompt: Sequence[int]
    sampling: Sampling
    notify: Callable[[Update], None] = lambda update: None
    arrived_s: float = 0.0  # time.monotonic()
    satisfied: bool = False  # called off because all its sequences have met a stop
    made: Sequence[int] = ()  # tokens that it had before; `reported` counts them
    # Of the driver's thread alone:
    number: int = -1  # the engine's, once it has taken it in
    reported: dict[int, int] = field(default_factory=dict)  # tokens of each sample so far
    last_s: float = 0.0  # when the last of them were made


@dataclass(slots=True)
class Update:
    """The news of a request since the last update."""

    ticket: Ticket
    taken: bool = False  # the engine has it: it waits for its turn
    refused: str | None = None  # it can never be served
    pieces: Sequence[Piece] = ()
    ended: bool = False  # this is the last update
    error: str | None = None  # why it failed


class Observer(Protocol):
    """A counter of events in the driver's thread; its methods must be quick."""

    def stepped(self, step: Step) -> None: ...
    def reported(self, ticket: Ticket, tokens: int, at_s: float) -> None: ...
    def ended(self, ticket: Ticket, result: Result) -> None: ...


# How often a driver with nothing to do looks by itself.
REST_S = 5.0


class Driver:
    """Steps the engine while there are requests, and sleeps while there are none.

    `deliver` is called by the driver's thread, once a step, with all that is new. Requests are taken in and
    called off between steps. When the engine fails for good all requests fail, and `failed` is called.
    """

    def __init__(
        self,
        engine: Engines,
        deliver: Callable[[list[Update]], None],
        *,
        most_waiting: int = 1024,
        observer: Observer | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.most_waiting = most_waiting
        self.closed: str | None = None  # why no request is taken in any more
        self.error: str | None = None  # why the engine is no more
        self._deliver, self._observer, self._failed = deliver, observer, failed
        self._wake = threading.Condition()
        self._arrived: list[Ticket] = []
        self._called_off: list[Ticket] = []
        self._calls: list[Callable[[], None]] = []
        self._waiting = 0  # requests that have not begun, wherever they are
        self._resting, self._turned_s = True, time.monotonic()
        # Of the driver's thread alone:
        self._live: dict[int, Ticket] = {}
        self._not_begun: set[int] = set()
        self._batch_of: dict[int, int] = {}
        self._batches: dict[int, dict[int, Ticket]] = {}
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    # For other threads.

    def start(self) -> None:
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that have not begun."""
        return self._waiting

    @property
    def running(self) -> int:
        return len(self._batch_of)

    @property
    def silent_s(self) -> float:
        """The time since an iteration ended or its prompts went on, while there is something to do."""
        if self._resting and not (self._arrived or self._called_off):
            return 0.0
        return max(0.0, time.monotonic() - max(self._turned_s, self.engine.advanced_s))

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue them, all or none; a FullError if too many wait, a ClosedError at the
        end.
        """
        with self._wake:
            if self.closed:
                raise ClosedError(self.closed)
            if self._waiting + len(tickets) > self.most_waiting:
                raise FullError(
                    f"{self._waiting:,} requests wait, and no more than {self.most_waiting:,} may: try later"
                )
            self._waiting += len(tickets)
            self._arrived += tickets
            self._wake.notify()

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Take them out, wherever they are, without further updates; one that has ended is left alone."""
        with self._wake:
            self._called_off += tickets
            self._wake.notify()

    def schedule_call(self, call: Callable[[], None]) -> None:
        """Have something done between two steps, by the thread that owns the engine. It must not raise."""
        with self._wake:
            self._calls.append(call)
            self._wake.notify()

    def stop(self, why: str) -> None:
        """Take no more requests in, and end those under way with an error that says why."""
        with self._wake:
            self.closed = self.closed or why
            self._wake.notify()

    def join(self, timeout_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # The driver's thread.

    def _run(self) -> None:
        try:
            while not self.closed:
                self._turn()
            live = list(self._live.values())
            for ticket in live:
                self._call_off(ticket)
            self._fail_all(self.closed, live)
            while not self.engine.idle:
                self.engine.step()
        except Exception as error:
            self.error = f"the engine has failed: {error}"
            with self._wake:
                self.closed = self.error
            self._fail_all(self.error)
            self._failed()

    def _turn(self) -> None:
        """Handle what has been queued, and run one step."""
        with self._wake:
            while not (self._arrived or self._called_off or self._calls or self.closed):
                if not self.engine.idle:
                    break
                self._resting, self._turned_s = True, time.monotonic()
                self._wake.wait(REST_S)
            self._resting, self._turned_s = False, time.monotonic()
            arrived, self._arrived = self._arrived, []
            called_off, self._called_off = self._called_off, []
            calls, self._calls = self._calls, []
        updates: list[Update] = []
        try:
            self._take_in(arrived, set(called_off), updates)
            for ticket in called_off:
                self._call_off(ticket)
            for call in calls:
                call()
            if not self.engine.idle:
                self._step(updates)
        finally:
            if updates:
                self._deliver(updates)

    def _take_in(self, arrived: list[Ticket], called_off: set[Ticket], updates: list[Update]) -> None:
        for ticket in arrived:
            if ticket in called_off:
                self._begun(1)
                continue
            try:
                number = self.engine.submit(ticket.prompt, ticket.sampling, made=ticket.made)
            except RequestError as error:
                self._begun(1)
                updates.append(Update(ticket, refused=str(error), ended=True))
                continue
            ticket.number = number
            self._live[number] = ticket
            self._not_begun.add(number)
            updates.append(Update(ticket, taken=True))

    def _call_off(self, ticket: Ticket) -> None:
        if ticket.number in self._live:
            self.engine.cancel(ticket.number)
            self._forget(ticket, self.engine.result(ticket.number))

    def _step(self, updates: list[Update]) -> None:
        step = self.engine.step()
        for number in (*step.preempted, *step.moved):
            self._leave(number)
        for number in step.joined:
            # One may have been called off meanwhile.
            if ticket := self._live.get(number):
                self._batch_of[number] = step.batch
                self._batches.setdefault(step.batch, {})[number] = ticket
                self._has_begun(number)
        if self._observer:
            self._observer.stepped(step)
        for number in step.ended:
            self._end(self._live[number], step, updates)
        for number, ticket in self._batches.get(step.batch, {}).items():
            if pieces := self.engine.pieces(number, ticket.reported):
                updates.append(self._report(ticket, pieces, step))

    def _report(self, ticket: Ticket, pieces: list[Piece], step: Step) -> Update:
        for piece in pieces:
            ticket.reported[piece.sample] = ticket.reported.get(piece.sample, 0) + len(piece.tokens)
        if self._observer:
            self._observer.reported(ticket, sum(len(piece.tokens) for piece in pieces), step.ended_s)
        ticket.last_s = step.ended_s
        return Update(ticket, pieces=pieces)

    def _end(self, ticket: Ticket, step: Step, updates: list[Update]) -> None:
        result = self.engine.result(ticket.number)
        last = Update(ticket) if result.error else self._report(ticket, result.pieces(ticket.reported), step)
        last.ended, last.error = True, result.error
        updates.append(last)
        self._forget(ticket, result)

    def _forget(self, ticket: Ticket, result: Result) -> None:
        del self._live[ticket.number]
        self._leave(ticket.number)
        self._has_begun(ticket.number)
        if self._observer:
            self._observer.ended(ticket, result)

    def _leave(self, number: int) -> None:
        if (batch := self._batch_of.pop(number, None)) is not None:
            del self._batches[batch][number]

    def _has_begun(self, number: int) -> None:
        if number in self._not_begun:
            self._not_begun.discard(number)
            self._begun(1)

    def _begun(self, requests: int) -> None:
        with self._wake:
            self._waiting -= requests

    def _fail_all(self, why: str, live: Sequence[Ticket] = ()) -> None:
        with self._wake:
            arrived, self._arrived = self._arrived, []
            self._waiting = 0
        tickets = [*live, *self._live.values(), *arrived]
        self._live.clear()
        self._deliver([Update(ticket, ended=True, error=why) for ticket in tickets])
