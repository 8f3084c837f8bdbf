"""The loop of all batches: schedule, launch, land, and recover from lost workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import numpy as np

from lamina._native import LiveScheduler
from lamina.cluster import LostError, Replaced, Scaled
from lamina.pipeline import BatchDelta
from lamina.serve.decoder import Decoder
from lamina.serve.local_core import Core
from lamina.serve.prefill_queue import PrefillQueue
from lamina.serve.prompt_queue import PromptQueue, Taken
from lamina.serve.requests import Fault, Request, Step

T = TypeVar("T")
# A request fails after so many setbacks: one each time that a worker is lost while its prompt is computed, a
# quarter if the worker was killed from outside.
MOST_SETBACKS = 2.0
FROM_OUTSIDE = 0.25
# Requests that have ended, and the error of those that failed.
Over = list[tuple[Request, str | None]]


@dataclass
class _OpenFault:
    """A fault that is not over."""

    why: str
    noticed_s: float
    workers: set[str] = field(default_factory=set)
    pools: set[int] = field(default_factory=set)


class BatchLoop:
    """The batches' turns: each iteration is scheduled, launched with the core, and landed.

    The scheduler says which requests run, the decoder keeps their sequences, and the core computes tokens.
    """

    def __init__(
        self, core: Core, scheduler: LiveScheduler, *, decode_only: bool, prompt_tokens: int
    ) -> None:
        self.core, self.scheduler = core, scheduler
        self.decoder = Decoder(core.batches, decode_only=decode_only)
        self._prefill_queue = PrefillQueue(core, self.decoder)
        self._prompt_tokens = prompt_tokens
        self._prompts = self._prompt_queue()
        self._taken = Taken()  # of prompts, with the iteration that begins
        self.by_scheduler_row: dict[int, Request] = {}  # requests that wait or run
        self.faults: list[Fault] = []
        self.peak_kv_tokens = 0
        # Launches and landings so far: each batch has its turn at both, one after the other.
        self._launched = self._landed = 0
        self._steps = [Step(batch=batch) for batch in range(core.batches)]
        self._joined: list[list[Request]] = [[] for _ in range(core.batches)]  # with the last iteration
        self._iterations = [0] * core.batches
        self._unreported: list[int] = []  # preempted requests that no step has reported
        self._failed: Over = []  # before they joined
        # Since workers were lost: batches that some know nothing of, and iterations to be begun once more.
        self._stale: set[int] = set()
        self._broken_off: set[int] = set()
        self._fault: _OpenFault | None = None

    def _prompt_queue(self) -> PromptQueue:
        return PromptQueue(self.decoder, self.core.batches, self._prompt_tokens, self.core.refusal)

    def next(self) -> tuple[Step, Over]:
        """Launch every batch whose turn it is, and land the one that was launched first."""
        batches = self.core.batches
        while True:
            batch = self._landed % batches
            try:
                self._note_prompts(wait=False)
                # At most every batch once: none can be launched before it has landed.
                while self._launched < self._landed + batches:
                    self._launch()
                if self.decoder.flying(batch):
                    return self._reported(*self._land(batch))
                if self._prefill_queue.only_waits and not (
                    self._failed or self.decoder.any_flying or self._prompts
                ):
                    self._note_prompts(wait=True)
            except LostError as lost:
                self._recover(lost)
                continue
            self._landed += 1
            self._unreported += self._steps[batch].preempted
            if self._failed and not self.decoder.any_flying:
                return self._reported(Step(batch=batch), [])

    def _reported(self, step: Step, over: Over) -> tuple[Step, Over]:
        """Add to a step what happened outside of iterations."""
        step.preempted[:0], self._unreported = self._unreported, []
        step.ended[:0] = [request.number for request, _ in self._failed]
        over[:0], self._failed = self._failed, []
        return step, over

    def _note_prompts(self, *, wait: bool) -> None:
        """Let requests join whose KV is there; fail those whose prompts cannot be computed."""
        for request, why in self._prefill_queue.look(wait=wait):
            if why is None:
                self.scheduler.ready(request.scheduler_row)
            else:
                self._give_up(request, why)

    def _give_up(self, request: Request, why: str) -> None:
        """Fail a request that has not joined."""
        self._failed.append(self._fail(request, why))
        self.leave(request)

    def _fail(self, request: Request, why: str) -> tuple[Request, str]:
        self.decoder.end(request, "failed")
        return request, f"its prompt could not be computed: {why}"

    def settle(self) -> None:
        """Send workers the sequences that have left, where no iteration would."""
        while not all(self.decoder.settled(batch) for batch in range(self.core.batches)):
            try:
                self._launch()
                self._landed += 1
            except LostError as lost:
                self._recover(lost)

    def forget(self) -> None:
        """Count as if nothing had been, where nothing waits or runs: batch 0 goes first, with iteration 0."""
        while self._launched % self.core.batches:
            self._launch(idle=True)
            self._landed += 1
        self.core.forget()
        self._iterations = [0] * self.core.batches
        self.peak_kv_tokens = 0

    def drain(self) -> list[tuple[Step, Over]]:
        """Land what is under way, and begin nothing new."""
        result = []
        while self.decoder.any_flying:
            batch = self._landed % self.core.batches
            try:
                # Every batch has its turn, or workers wait for it.
                while self._launched < self._landed + self.core.batches:
                    self._launch(idle=True)
                if self.decoder.flying(batch):
                    result.append(self._land(batch))
                else:
                    self._landed += 1
            except LostError as lost:
                self._recover(lost)
        return result

    def scale(self, to: Scaled, scheduler: LiveScheduler, rows: dict[int, Request]) -> None:
        """Continue with other attention workers, and a scheduler in which all requests wait for them."""
        for request in self.by_scheduler_row.values():
            if request.rows and self.decoder.runs(request):
                self._unreported.append(request.number)
                self.decoder.park(request)
        for row, request in rows.items():
            request.scheduler_row = row
        self.scheduler, self.by_scheduler_row = scheduler, rows
        self._landed = self._launched = 0
        self._stale = set(range(self.core.batches))
        self._prefill_queue.clear()
        self._prompts.clear()
        self._prefill_queue, self._prompts = PrefillQueue(self.core, self.decoder), self._prompt_queue()
        self.decoder.forget()
        try:
            self.core.scale(to)
        except LostError as lost:
            self._recover(lost)

    def leave(self, request: Request, done: set[int] | frozenset[int] = frozenset()) -> None:
        """Remove a request; the scheduler has removed those that made all their tokens (`done`) itself."""
        if request.scheduler_row not in done:
            self.scheduler.remove(request.scheduler_row)
        self._prefill_queue.leave(request)
        self._prompts.leave(request)
        del self.by_scheduler_row[request.scheduler_row]

    def surviving(self, deed: Callable[[], T]) -> T:
        """Return the result of a call, which is repeated until no worker is lost during it."""
        while True:
            try:
                return deed()
            except LostError as lost:
                self._recover(lost)

    def _launch(self, *, idle: bool = False) -> None:
        """Launch the next batch's next iteration; if all are to be idle, only one that was broken off."""
        batch = self._launched % self.core.batches
        started = perf_counter()
        if idle and batch not in self._broken_off:
            self._launched += 1
            self.core.launch(batch, BatchDelta(), 0)
            return
        if batch in self._broken_off:
            step, delta = self._steps[batch], self.decoder.again(batch)
            self._taken = Taken()
        else:
            step = self._steps[batch] = self._begin(batch)
            delta = self.decoder.launch(batch, computes=bool(self._taken.parts))
            delta.parts = self._taken.parts
        self._launched += 1
        self._prefill_queue.announce(delta)
        if self._taken.expected:
            more = np.array(self._taken.expected, np.int64)
            delta.expected = np.concatenate([delta.expected, more])
        if batch in self._stale:
            self.core.launch(batch, delta, step.size, self.decoder.snapshot(batch))
        else:
            self.core.launch(batch, delta, step.size)
        self._prefill_queue.order(delta)
        self._stale.discard(batch)
        self._broken_off.discard(batch)
        if self._fault:
            self._resumed(self._fault)
        step.host_s += perf_counter() - started

    def _begin(self, batch: int) -> Step:
        """Return a batch's next iteration, with preempted and joining requests."""
        step = Step(batch=batch, started_s=time.monotonic())
        self._joined[batch].clear()
        preempted, _ = self.scheduler.advance(batch)
        capacity = self.core.pool_tokens * self.core.pools
        self.peak_kv_tokens = max(self.peak_kv_tokens, capacity - self.scheduler.free_tokens)
        for row in preempted.tolist():
            request = self.by_scheduler_row[row]
            step.preempted.append(request.number)
            self.decoder.park(request)
        for row in self.scheduler.admitted.tolist():
            self._admit(self.by_scheduler_row[row])
        self._taken = self._prompts.take(batch, self.core.place_of_next(batch))
        for request in self._taken.joining:
            self.scheduler.ready(request.scheduler_row)
        for request, why in self._taken.refused:
            self._give_up(request, why)
        for row in self.scheduler.join(batch).tolist():
            request = self.by_scheduler_row[row]
            step.joined.append(request.number)
            self._joined[batch].append(request)
            self._prefill_queue.leave(request)
            self.decoder.begin(request, batch, self.scheduler.pool(row))
        step.prompt_tokens = self._taken.tokens
        self.decoder.size(batch, step)
        if step.size:
            step.iteration = self._iterations[batch]
            self._iterations[batch] += 1
        return step

    def _admit(self, request: Request) -> None:
        """Queue the prompt of a request that was promised memory."""
        row = request.scheduler_row
        pool = self.scheduler.pool(row)
        if self.core.prefill is None or request.setbacks:
            self._prompts.add(request, self.scheduler.batch(row), pool)
        elif why := self.core.refusal(self.decoder.prompt_tokens(request)):
            self._give_up(request, why)
        elif not self._prefill_queue.begin(request, pool):
            self.scheduler.ready(row)

    def _land(self, batch: int) -> tuple[Step, Over]:
        landed = self.core.land(batch)
        self._landed += 1
        started, step = perf_counter(), self._steps[batch]
        step.ended_s = landed.ended_s
        over, doomed, failed = self.decoder.land(batch, landed)
        for request, why in self._prompts.landed(batch, landed.failed):
            self._give_up(request, why)
        for request in self._joined[batch]:
            request.setbacks = 0.0
        done = set(self.scheduler.finish(batch).tolist()) if step.size else set()
        ended: Over = []
        ended += [self._fail(request, why) for request, why in failed]
        ended += [(request, None) for request in over]
        for request in doomed:
            self.leave(request, done)
        for request, _ in ended:
            self.leave(request, done)
            step.ended.append(request.number)
        vars(step).update(vars(landed.spent))
        # Prompts of this process were computed while it was launched.
        step.host_s += perf_counter() - started - step.prefill_s
        return step, ended

    def _recover(self, lost: LostError) -> None:
        """Replace lost workers; what was under way is launched once more, as the batches' turns come."""
        fault = self._fault or _OpenFault(str(lost), time.monotonic())
        # The order of batches begins anew, for workers too.
        batches = self.core.batches
        self._broken_off |= {launched % batches for launched in range(self._landed, self._launched)}
        self._landed = self._launched = 0
        self._stale = set(range(batches))
        self._fault = fault
        suspects = [*self._prompts.broken_off(), *self._prefill_queue.computed_by(lost.workers)]
        replaced = self._regrouped(lost)
        self._send_back()
        for request in suspects:
            self._suspect(request, lost)
        fault.workers |= replaced.workers
        fault.pools |= replaced.pools
        self._resumed(fault)

    def _regrouped(self, lost: LostError) -> Replaced:
        while True:
            try:
                return self.core.regroup(lost)
            except LostError as more:
                lost = more

    def _send_back(self) -> None:
        """Queue for prefill again those that joined in an aborted iteration or were being prefilled."""
        again, ready = self._prefill_queue.clear()
        self._prompts.clear()
        for batch in list(self._broken_off):
            step = self._steps[batch]
            if self.decoder.flying(batch):
                back, already_ended = self.decoder.unjoin(batch)
                ready += back
                for request in already_ended:
                    self.leave(request)
                numbers = {request.number for request in back}
                step.joined = [number for number in step.joined if number not in numbers]
                step.prompt_tokens, numbered = 0, step.size > 0
                self.decoder.size(batch, step)
                self._joined[batch].clear()
                if numbered and not step.size:  # the next one has its number, as workers count
                    self._iterations[batch] = step.iteration
            # The batch is empty now, or was a no-op iteration whose step may have been returned already.
            if not self.decoder.flying(batch):
                self._broken_off.discard(batch)
                if not step.ended_s:
                    self._unreported += step.preempted
                    step.preempted = []
        for request in ready:
            self.scheduler.unjoin(request.scheduler_row)
        for request in [*again, *ready]:
            row = request.scheduler_row
            self._prompts.add(request, self.scheduler.batch(row), self.scheduler.pool(row))

    def _suspect(self, request: Request, lost: LostError) -> None:
        """Count a loss of workers against a request whose prompt was being computed."""
        if self.by_scheduler_row.get(request.scheduler_row) is not request:
            return  # it has been cancelled
        request.setbacks += FROM_OUTSIDE if lost.outside else 1.0
        if request.setbacks >= MOST_SETBACKS:
            self._give_up(
                request, f"workers were lost each time that it was tried, the last time because {lost}"
            )

    def _resumed(self, fault: _OpenFault) -> None:
        """End the fault, if everything that was under way is under way again."""
        if any(self.decoder.flying(batch) for batch in self._broken_off):
            return
        requests, tokens = self.decoder.stored_in(fault.pools, self.core.read_back())
        workers, now = tuple(sorted(fault.workers)), time.monotonic()
        self.faults.append(Fault(workers, fault.why, fault.noticed_s, now, requests, tokens))
        self._fault = None
