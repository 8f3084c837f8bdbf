"""Offering a trace to a running engine by real clocks: who comes when, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from laminabench.errors import UserError
from laminabench.runs.faults import Fault, Strike
from laminabench.runs.journal import Journal
from laminabench.sim.simulate import Offered
from laminabench.systems.live.lamina.faults import PlannedFault, due
from laminabench.systems.live.lamina.log import Arrived, Event, ReplayLog, record
from laminabench.systems.live.lamina.order import Order
from laminabench.systems.live.lamina.prompts import Prompts
from laminabench.systems.live.tables import Iteration, Tables
from laminabench.traces.table import Trace

if TYPE_CHECKING:
    from lamina.serve import Engine, Step


class EngineLike(Protocol):
    """What of an engine a replay uses."""

    @property
    def faults(self) -> Sequence[Any]: ...

    @property
    def peak_kv_tokens(self) -> int: ...

    def step(self) -> Step: ...

    def result(self, number: int) -> Any: ...

    def strike(self, name: str, how: str = "kill") -> None: ...


@dataclass(slots=True)
class Clock:
    """Seconds since the replay began, by the clock that the engine's times are of."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    began: float = 0.0

    def start(self, at_s: float = 0.0) -> None:
        """Now it is so many seconds since the replay began."""
        self.began = self.now() - at_s

    def elapsed(self) -> float:
        return self.now() - self.began


@dataclass(slots=True)
class Replay:
    """A trace on its way through an engine. `run` is the whole of it, or what is left of it."""

    engine: EngineLike
    trace: Trace
    offered: Offered
    submit: Callable[[int, list[int]], int]  # a row, and tokens it has made before, to a request's number
    refusal: type[Exception]  # what `submit` raises for a request that can never be served
    order: Order
    clock: Clock
    log: ReplayLog
    progress: Callable[[int, int], None] = lambda done, tokens: None
    planned: Sequence[PlannedFault] = ()
    # The tokens of a request beyond so many; None where they mean nothing.
    made_since: Callable[[int, int], Sequence[int]] | None = None
    journal: Journal | None = None
    _rows: dict[int, int] = field(init=False, default_factory=dict)  # of requests in the system, by number
    _numbers: dict[int, int] = field(init=False, default_factory=dict)  # and the other way round
    _arrivals: list[float] = field(init=False, default_factory=list)
    _faults: int = field(init=False, default=0)  # of this engine that the log knows

    def __post_init__(self) -> None:
        self._arrivals = self.trace.arrival_s.tolist() if self.offered.mode == "open" else []

    @classmethod
    def on(
        cls,
        engine: Engine,
        offered: Offered,
        order: Order,
        log: ReplayLog,
        *,
        prompts: Prompts | None = None,
        **more: Any,
    ) -> Replay:
        """On a lamina.Engine: requests make as many tokens as the trace says, from prompts or made-up KV."""
        from lamina.serve import RequestError, Sampling

        lengths, output = log.trace.prompt_tokens, log.trace.output_tokens

        def submit(row: int, made: list[int]) -> int:
            prompt = int(lengths[row]) if prompts is None else prompts.of(row)
            asked = Sampling(max_tokens=int(output[row]), ignore_eos=True)
            number: int = engine.submit(prompt, asked, made=made) if made else engine.submit(prompt, asked)
            return number

        def made_since(number: int, since: int) -> Sequence[int]:
            tokens: Sequence[int] = engine.made(number, since)
            return tokens

        return cls(
            engine,
            log.trace,
            offered,
            submit,
            RequestError,
            order,
            Clock(),
            log,
            made_since=None if prompts is None else made_since,
            **more,
        )

    def run(self) -> Tables:
        """Until every request has been served or refused."""
        log = self.log
        self.clock.start(log.at_s)
        self._go_on()
        self._offer()
        while self._rows or log.next < len(self.trace):
            self._inject()
            if self._rows:
                self._step()
            else:
                self._sleep()
            self._offer()
        return log.tables

    def _record(self, event: Event) -> None:
        record(event, self.log, self.journal)

    def _flush(self) -> None:
        if self.journal:
            self.journal.flush()

    def _go_on(self) -> None:
        """Where a replay was interrupted: submit again who had not ended, with what they had made."""
        waiting = self.log.to_go_on_with()
        first = set(self.log.cut_off())
        for row in waiting:
            self.order.first = row in first
            number = self._submit(row)
            self._rows[number], self._numbers[row] = row, number
        self.order.first = False

    def _offer(self) -> None:
        """Submit everybody whose time has come."""
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
        try:
            number = self._submit(row)
        except self.refusal as error:
            self._record(Arrived(row, arrived, str(error)))
            return
        self._rows[number], self._numbers[row] = row, number
        self._record(Arrived(row, arrived))

    def _submit(self, row: int) -> int:
        self.order.row = row
        return self.submit(row, self.log.made(row))

    def _inject(self) -> None:
        """Kill and stop whom it is time for."""
        if not self.planned:
            return
        for fault in due(self.planned, self.log, self.clock.elapsed()):
            self.engine.strike(fault.worker, fault.how)
            self._record(Strike(fault.number, fault.worker, fault.how, self.clock.elapsed()))
        self._flush()

    def _sleep(self) -> None:
        """Only an open replay has nobody in the system and somebody to come."""
        elapsed_s = self.clock.elapsed()
        planned = [fault.at_s for fault in self.planned if fault.at_s is not None and fault.at_s > elapsed_s]
        self.clock.sleep(max(0.0, min([self._arrivals[self.log.next], *planned]) - elapsed_s))

    def _step(self) -> None:
        step = self.engine.step()
        self.note_faults()
        # A result is kept until it is asked for.
        results = {number: self.engine.result(number) for number in step.ended}
        self._record(self._iteration(step, results))
        self._flush()
        for number in step.ended:
            del self._numbers[self._rows.pop(number)]
        self.progress(self.log.tables.finished, self.log.tables.tokens)

    def note_faults(self) -> None:
        """Those that nobody has told of."""
        for fault in self.engine.faults[self._faults :]:
            self._record(self._fault(fault))
            self._faults += 1

    def _fault(self, fault: Any) -> Fault:
        began = self.clock.began
        times = (fault.noticed_s - began, fault.resumed_s - began)
        return Fault(list(fault.workers), str(fault.why), *times, int(fault.requests), int(fault.kv_tokens))

    def _iteration(self, step: Step, results: dict[int, Any]) -> Iteration:
        rows, began = self._rows, self.clock.began
        token_rows, tokens = self._tokens(step, results)
        return Iteration(
            step.batch,
            step.iteration + self.log.before.get(step.batch, 0) if step.size else 0,
            step.size,
            step.kv_tokens,
            step.started_s - began,
            step.ended_s - began,
            [rows[number] for number in step.joined],
            [rows[number] for number in step.preempted],
            [rows[number] for number in step.ended],
            # Workers elsewhere tell their times at the end; 0 is what this side saw of them.
            step.model_s or float("nan"),
            step.attention_s or float("nan"),
            step.host_s,
            int(self.engine.peak_kv_tokens),
            token_rows,
            tokens,
        )

    def _tokens(self, step: Step, results: dict[int, Any]) -> tuple[list[int], list[int]]:
        """What the batch has made since it was last asked."""
        if self.made_since is None:
            return [], []
        running = self.log.tables.running
        mine = [row for row, stint in running.items() if stint.batch == step.batch]
        of_row, tokens = [], []
        for row in dict.fromkeys([*mine, *(self._rows[number] for number in step.joined)]):
            number, had = self._numbers[row], len(self.log.tokens.get(row, ()))
            new = self._made(number, had, results)
            of_row += [row] * len(new)
            tokens += [int(token) for token in new]
        return of_row, tokens

    def _made(self, number: int, had: int, results: dict[int, Any]) -> Sequence[int]:
        result = results.get(number)
        if result is None:
            assert self.made_since is not None
            return self.made_since(number, had)
        if result.error:
            raise UserError(
                "engine-request-failed",
                f"the engine could not serve request {self._rows[number]}: {result.error}",
            )
        made: Sequence[int] = result.completions[0].tokens[had:]
        return made
