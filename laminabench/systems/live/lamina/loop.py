"""Replay a trace on a running engine by real clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from laminabench.runs.journal import Journal
from laminabench.sim.simulate import Offered, Priority
from laminabench.systems.live.lamina.faults import Injection, due, unanswered
from laminabench.systems.live.lamina.log import Arrived, Event, ReplayLog, record
from laminabench.systems.live.recent import Recent
from laminabench.systems.live.tables import Iteration, Tables
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.live_progress import FaultEvent

if TYPE_CHECKING:
    from lamina.serve import Engines, Fleet, Step


# A key before all others, for requests that ran when a replay was interrupted.
FIRST = -(2**30)
LONGEST_SLEEP_S = 1.0


@dataclass(slots=True)
class Clock:
    """Seconds since the replay began, by the clock that the engine's times are of."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    began: float = 0.0
    slowdown: float = 1.0  # an emulated second takes so many

    def start(self, at_s: float = 0.0) -> None:
        """Start the clock at so many seconds since the replay began."""
        self.began = self.now() - at_s * self.slowdown

    def elapsed(self) -> float:
        return self.at(self.now())

    def at(self, moment: float) -> float:
        """Return seconds since the replay began."""
        return (moment - self.began) / self.slowdown

    def pause(self, seconds: float) -> None:
        self.sleep(seconds * self.slowdown)


@dataclass(slots=True)
class Order:
    """The queue's order for the engine, whose policies see a request and not its row in the trace.

    The row that is being submitted is noted here, and `policy` answers for it.
    """

    key: Callable[[int], int] | None
    row: int = 0
    first: bool = False  # it goes before all that are ordered by key

    def policy(self, *_: object) -> int:
        assert self.key is not None
        return FIRST if self.first else self.key(self.row)


def order_of(name: str, priority: Priority | None, rows: int) -> Order:
    """Return the order of a policy's name; its keys are made small enough for the engine.

    Where all keys are known beforehand their ranks say as much. A policy of the user's own is called when a
    request enters, so its numbers keep about seven digits.
    """
    if priority is None:
        return Order(None)
    if ":" in name:
        return Order(lambda row: squeezed(priority(row)))
    ranks = np.unique([priority(row) for row in range(rows)], return_inverse=True)[1].reshape(-1).tolist()
    return Order(ranks.__getitem__)


def squeezed(key: int) -> int:
    """Return a number in the same order, below the engine's 2**30: a float's bits sort as the float does."""
    bits = int(np.float32(abs(key)).view(np.int32)) >> 1
    return bits if key >= 0 else -bits


@dataclass(slots=True)
class Replay:
    """A replay of a trace, or of the rest of one, on an engine."""

    engine: Engines
    offered: Offered
    order: Order
    log: ReplayLog
    prompts: Callable[[int], list[int]] | None = None  # of a row; None where KV is made up, and so are tokens
    prefix: Callable[[int], Any] | None = None  # ids of a prompt's leading blocks, for a router
    recent: Recent = field(default_factory=Recent)
    planned: Sequence[Injection] = ()
    journal: Journal | None = None
    clock: Clock = field(default_factory=lambda: Clock())  # noqa: PLW0108 - the class as it is then
    _rows: dict[int, int] = field(init=False, default_factory=dict)  # of requests in the system, by number
    _numbers: dict[int, int] = field(init=False, default_factory=dict)  # and the other way round
    _arrivals: list[float] = field(init=False, default_factory=list)
    _faults: int = field(init=False, default=0)  # of this engine that the log knows
    _kv_tokens: dict[int, int] = field(init=False, default_factory=dict)  # that each batch last read

    def __post_init__(self) -> None:
        self._arrivals = self.trace.arrival_s.tolist() if self.offered.mode == "open" else []

    @property
    def trace(self) -> Trace:
        return self.log.trace

    def run(self) -> Tables:
        """Run until every request has been served or refused."""
        log = self.log
        self.clock.start(log.at_s)
        for past in sorted([*log.strikes, *log.faults], key=lambda fault: fault.at_s):
            self.recent.on_event(past)
        self._resume()
        self._submit_arrived()
        self._report()
        while self._rows or log.next < len(self.trace):
            self._inject_faults()
            if self._rows:
                self._step()
            else:
                self._sleep()
            self._submit_arrived()
            if self.recent.due(self.clock.elapsed()):
                self._report()
        self._report()
        return log.tables

    def _record(self, event: Event) -> None:
        record(event, self.log, self.journal)

    def _flush(self) -> None:
        if self.journal:
            self.journal.flush()

    def _resume(self) -> None:
        """Resubmit requests that had not ended before an interruption, with the tokens they had."""
        waiting = self.log.to_resume_with()
        first = set(self.log.cut_off())
        for row in waiting:
            self.order.first = row in first
            self._submit(row)
        self.order.first = False

    def _submit_arrived(self) -> None:
        """Submit all requests that have arrived."""
        mode, most, log = self.offered.mode, self.offered.concurrency, self.log
        while log.next < len(self.trace):
            arrived = 0.0
            if mode == "open":
                arrived = self._arrivals[log.next]
                if arrived > self.clock.elapsed():
                    break
            elif mode == "closed":
                if len(self._rows) >= most:
                    break
                arrived = self.clock.elapsed()
            self._arrive(log.next, arrived)
        self._flush()

    def _arrive(self, row: int, arrived: float) -> None:
        from lamina.serve import RequestError

        try:
            self._submit(row)
        except RequestError as error:
            self._record(Arrived(row, arrived, str(error)))
        else:
            self._record(Arrived(row, arrived))

    def _submit(self, row: int) -> None:
        """Submit a request that makes as many tokens as the trace says."""
        from lamina.serve import Sampling

        self.order.row, made = row, self.log.made(row)
        prompt = int(self.trace.prompt_tokens[row]) if self.prompts is None else self.prompts(row)
        sampling = Sampling(max_tokens=int(self.trace.output_tokens[row]), ignore_eos=True)
        if self.prefix:
            fleet = cast("Fleet", self.engine)
            number = fleet.submit(prompt, sampling, made=made, prefix=self.prefix(row))
        else:
            number = self.engine.submit(prompt, sampling, made=made)
        self._rows[number], self._numbers[row] = row, number

    def _inject_faults(self) -> None:
        """Inject the faults that are due."""
        if not self.planned:
            return
        for fault in due(self.planned, self.log, self.clock.elapsed()):
            self.engine.inject_fault(fault.worker, fault.how)
            self._record_fault(
                FaultEvent(
                    at_s=self.clock.elapsed(),
                    workers=(fault.worker,),
                    why=f"--chaos: {fault.how}",
                    struck=fault.how,
                    number=fault.number,
                )
            )
        self._flush()

    def _sleep(self) -> None:
        """Wait for the next arrival of an open replay, and report meanwhile."""
        elapsed_s = self.clock.elapsed()
        planned = [fault.at_s for fault in self.planned if fault.at_s is not None and fault.at_s > elapsed_s]
        until_s = min([self._arrivals[self.log.next], elapsed_s + LONGEST_SLEEP_S, *planned])
        self.clock.pause(max(0.0, until_s - elapsed_s))

    def _step(self) -> None:
        step = self.engine.step()
        self.note_faults()
        # A result is stored until it is fetched.
        results = {number: self.engine.result(number) for number in step.ended}
        for number, result in results.items():
            if result.error:
                raise UserError(
                    "engine-request-failed",
                    f"the engine could not serve request {self._rows[number]}: {result.error}",
                )
        ran = self._iteration(step, results)
        self._record(ran)
        self._flush()
        for number in step.ended:
            del self._numbers[self._rows.pop(number)]
        if ran.size:
            self._kv_tokens[ran.batch] = ran.kv_tokens
            self.recent.iteration(ran.batch, ran.end_s, ran.size, len(ran.joined))

    def _report(self) -> None:
        """Report how far the replay is."""
        log, tables = self.log, self.log.tables
        batches = {stint.batch for stint in tables.running.values()}
        self.recent.moment(
            self.clock.elapsed(),
            finished=tables.finished,
            failed=log.refused,
            tokens=tables.tokens,
            batch=len(tables.running),
            waiting=tables.waiting,
            kv_tokens=sum(self._kv_tokens[batch] for batch in batches),
            workers_lost=len(unanswered(log)),
        )

    def _record_fault(self, event: FaultEvent) -> None:
        """Record a fault event and report it."""
        self._record(event)
        self.recent.on_event(event)

    def note_faults(self) -> None:
        """Record the faults of the engine that are new."""
        for fault in self.engine.faults[self._faults :]:
            self._record_fault(self._fault(fault))
            self._faults += 1

    def _fault(self, fault: Any) -> FaultEvent:
        return FaultEvent(
            at_s=self.clock.at(fault.noticed_s),
            workers=tuple(fault.workers),
            why=str(fault.why),
            resumed_s=self.clock.at(fault.resumed_s),
            requests=int(fault.requests),
            kv_tokens=int(fault.kv_tokens),
        )

    def _iteration(self, step: Step, results: dict[int, Any]) -> Iteration:
        rows, at = self._rows, self.clock.at
        token_rows, tokens = self._tokens(step, results)
        return Iteration(
            step.batch,
            step.iteration + self.log.before.get(step.batch, 0) if step.size else 0,
            step.size,
            step.kv_tokens,
            at(step.started_s),
            at(step.ended_s),
            [rows[number] for number in step.joined],
            [rows[number] for number in step.preempted],
            [rows[number] for number in step.ended],
            # Workers elsewhere report their times at the end; 0 is what this side saw of them.
            step.model_s or float("nan"),
            step.attention_s or float("nan"),
            step.host_s / self.clock.slowdown,
            int(self.engine.peak_kv_tokens),
            token_rows,
            tokens,
            [rows[number] for number in step.moved],
        )

    def _tokens(self, step: Step, results: dict[int, Any]) -> tuple[list[int], list[int]]:
        """Return the tokens that the batch has made since its last iteration, with their rows."""
        if self.prompts is None or not step.size:
            return [], []
        running = self.log.tables.running
        same_batch = [row for row, stint in running.items() if stint.batch == step.batch]
        of_row, tokens = [], []
        for row in dict.fromkeys([*same_batch, *(self._rows[number] for number in step.joined)]):
            number, had = self._numbers[row], len(self.log.tokens.get(row, ()))
            new = self._made(number, had, results)
            of_row += [row] * len(new)
            tokens += [int(token) for token in new]
        return of_row, tokens

    def _made(self, number: int, had: int, results: dict[int, Any]) -> Sequence[int]:
        result = results.get(number)
        if result is None:
            since: Sequence[int] = self.engine.made(number, had)
            return since
        made: Sequence[int] = result.completions[0].tokens[had:]
        return made
