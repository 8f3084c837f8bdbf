"""The batches' turns: launched and landed one after the other, whatever becomes of the workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from lamina._native import Scheduler
from lamina.cluster import LostError, Scaled
from lamina.cluster.prefill_dispatch import PrefillRequest
from lamina.pipeline import BatchDelta
from lamina.serve.core import Core
from lamina.serve.decoder import Decoder
from lamina.serve.requests import Fault, Request, Step


class PrefillQueue:
    """Staged requests, and what of them has not been announced to workers yet.

    It is empty where model workers compute prompts. Staged requests own KV slots on the attention workers
    from the launch after their admission on.
    """

    def __init__(self, core: Core, decoder: Decoder) -> None:
        self._core, self._decoder = core, decoder
        self._waiting: dict[int, tuple[Request, set[int]]] = {}  # by number, with names whose KV is to come
        self._ready: dict[int, Request] = {}
        self._by_name: dict[int, int] = {}
        self._wanted: list[PrefillRequest] = []

    @property
    def only_waits(self) -> bool:
        """Whether requests wait for KV, and none has it and may join."""
        return bool(self._waiting) and not self._ready

    def begin(self, request: Request, pool: int) -> bool:
        """It has been given memory; whether there is KV to compute before it joins."""
        wanted = self._decoder.stage(request, pool)
        if not wanted:
            self._ready[request.number] = request
            return False
        self._wanted += wanted
        self._waiting[request.number] = request, {item.name for item in wanted}
        self._by_name |= {item.name: request.number for item in wanted}
        return True

    def announce(self, delta: BatchDelta) -> None:
        """To attention workers, with the next launch: which sequences will come, and which will not."""
        if self._core.prefill:
            delta.expected, delta.dropped = self._decoder.staged()

    def order(self, delta: BatchDelta) -> None:
        """Have prefill workers compute prompts, once attention workers expect them."""
        if prefill := self._core.prefill:
            prefill.forget(delta.dropped[:, 0].tolist())
            wanted, self._wanted = self._wanted, []
            for item in wanted:
                prefill.compute(item)

    def look(self, *, wait: bool) -> list[tuple[Request, str | None]]:
        """Requests whose KV is there, and those whose KV cannot be computed, with why; `wait` until there is
        one.
        """
        found: list[tuple[Request, str | None]] = []
        while self._waiting and self._core.prefill:
            for name, why in self._core.prefill.news(wait=wait).items():
                # Of several sequences of a request that fail one is enough.
                if (number := self._by_name.pop(name, None)) is None:
                    continue
                request, names = self._waiting[number]
                names.remove(name)
                if why is not None:
                    self.leave(request)
                elif names:
                    continue
                else:
                    del self._waiting[number]
                    self._ready[number] = request
                found.append((request, why))
            if found or not wait:
                break
        return found

    def leave(self, request: Request) -> None:
        self._ready.pop(request.number, None)
        _, names = self._waiting.pop(request.number, (request, set()))
        for name in names:
            del self._by_name[name]
        if names:
            self._wanted = [item for item in self._wanted if item.name not in names]

    def clear(self) -> list[Request]:
        """Workers have lost what was computed and expected: model workers will compute it when the requests
        join. Those of them that were not ready for it.
        """
        waiting = [request for request, _ in self._waiting.values()]
        self._decoder.unstage([*waiting, *self._ready.values()])
        self._waiting.clear()
        self._by_name.clear()
        self._wanted.clear()
        # Requests that are ready join as they would have.
        self._ready |= {request.number: request for request in waiting}
        return waiting


T = TypeVar("T")
# Requests that have ended, and what kept those that failed from being served.
Over = list[tuple[Request, str | None]]


@dataclass
class _OpenFault:
    """A fault that is not over."""

    why: str
    noticed_s: float
    workers: set[str] = field(default_factory=set)
    pools: set[int] = field(default_factory=set)


class BatchLoop:
    """Scheduler, decoder and core, and how far each batch has come with them."""

    def __init__(self, core: Core, scheduler: Scheduler, *, decode_only: bool) -> None:
        self.core, self.scheduler = core, scheduler
        self.decoder = Decoder(core.batches, decode_only=decode_only)
        self._prefill_queue = PrefillQueue(core, self.decoder)
        self.by_place: dict[int, Request] = {}  # requests that wait or run, by their row in the scheduler
        self.faults: list[Fault] = []
        self.peak_kv_tokens = 0
        # Launches and landings so far: each batch has its turn at both, one after the other.
        self._launched = self._landed = 0
        self._steps = [Step(batch=batch) for batch in range(core.batches)]
        self._iterations = [0] * core.batches
        self._unreported: list[int] = []  # preempted requests that no step has reported
        self._failed: Over = []  # before they joined
        # Since workers were lost: batches that some know nothing of, and iterations to be begun once more.
        self._stale: set[int] = set()
        self._broken_off: set[int] = set()
        self._fault: _OpenFault | None = None

    def next(self) -> tuple[Step, Over]:
        """Launch every batch whose turn has come, and land the one that was launched first."""
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
                if self._prefill_queue.only_waits and not (self._failed or self.decoder.any_flying):
                    self._note_prompts(wait=True)
            except LostError as lost:
                self._recover(lost)
                continue
            self._landed += 1
            self._unreported += self._steps[batch].preempted
            if self._failed and not self.decoder.any_flying:
                return self._reported(Step(batch=batch), [])

    def _reported(self, step: Step, over: Over) -> tuple[Step, Over]:
        """With what happened outside of iterations."""
        step.preempted[:0], self._unreported = self._unreported, []
        step.ended[:0] = [request.number for request, _ in self._failed]
        over[:0], self._failed = self._failed, []
        return step, over

    def _note_prompts(self, *, wait: bool) -> None:
        """Let those join whose KV is there; those whose prompts cannot be computed have failed."""
        for request, why in self._prefill_queue.look(wait=wait):
            if why is None:
                self.scheduler.ready(request.place)
            else:
                self._failed.append(self._fail(request, why))
                self.leave(request)

    def _fail(self, request: Request, why: str) -> tuple[Request, str]:
        self.decoder.end(request, "failed")
        return request, f"its prompt could not be computed: {why}"

    def settle(self) -> None:
        """Tell workers of sequences that have gone, where no iteration would."""
        while not all(self.decoder.settled(batch) for batch in range(self.core.batches)):
            try:
                self._launch()
                self._landed += 1
            except LostError as lost:
                self._recover(lost)

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

    def scale(self, to: Scaled, scheduler: Scheduler, places: dict[int, Request]) -> None:
        """Go on with other attention workers, and a scheduler in which all requests wait for them."""
        for request in self.by_place.values():
            if request.rows and self.decoder.runs(request):
                self._unreported.append(request.number)
                self.decoder.park(request)
        for place, request in places.items():
            request.place = place
        self.scheduler, self.by_place = scheduler, places
        self._landed = self._launched = 0
        self._stale = set(range(self.core.batches))
        self._prefill_queue.clear()
        self._prefill_queue = PrefillQueue(self.core, self.decoder)
        self.decoder.forget()
        try:
            self.core.scale(to)
        except LostError as lost:
            self._recover(lost)

    def leave(self, request: Request, done: set[int] | frozenset[int] = frozenset()) -> None:
        """Those that made all their tokens the scheduler knows of; of those that met a stop token it does
        not.
        """
        if request.place not in done:
            self.scheduler.remove(request.place)
        self._prefill_queue.leave(request)
        del self.by_place[request.place]

    def surviving(self, deed: Callable[[], T]) -> T:
        """What comes of it, once no worker is lost while it is done."""
        while True:
            try:
                return deed()
            except LostError as lost:
                self._recover(lost)

    def _launch(self, *, idle: bool = False) -> None:
        """The next batch's next iteration; if all are to be idle, only one that was broken off."""
        batch = self._launched % self.core.batches
        started = perf_counter()
        if idle and batch not in self._broken_off:
            self._launched += 1
            self.core.launch(batch, BatchDelta(), 0)
            return
        if batch in self._broken_off:
            step, delta = self._steps[batch], self.decoder.again(batch)
        else:
            step = self._steps[batch] = self._begin(batch)
            delta = self.decoder.launch(batch)
        self._launched += 1
        self._prefill_queue.announce(delta)
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
        """A batch's next iteration, with those who make room and those who join."""
        step = Step(batch=batch, started_s=time.monotonic())
        preempted, joined = self.scheduler.advance(batch)
        capacity = self.core.pool_tokens * self.core.pools
        self.peak_kv_tokens = max(self.peak_kv_tokens, capacity - self.scheduler.free_tokens)
        for place in preempted.tolist():
            request = self.by_place[place]
            step.preempted.append(request.number)
            self.decoder.park(request)
        for place in joined.tolist():
            request = self.by_place[place]
            step.joined.append(request.number)
            self._prefill_queue.leave(request)
            self.decoder.begin(request, batch, self.scheduler.pool(place))
        for place in self.scheduler.admitted.tolist():
            if not self._prefill_queue.begin(self.by_place[place], self.scheduler.pool(place)):
                self.scheduler.ready(place)
        self.decoder.size(batch, step)
        if step.size:
            step.iteration = self._iterations[batch]
            self._iterations[batch] += 1
        return step

    def _land(self, batch: int) -> tuple[Step, Over]:
        landed = self.core.land(batch)
        self._landed += 1
        started, step = perf_counter(), self._steps[batch]
        step.ended_s = landed.ended_s
        over, doomed, failed = self.decoder.land(batch, landed)
        done = set(self.scheduler.finish(batch).tolist())
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
        while True:
            try:
                replaced = self.core.regroup(lost)
                break
            except LostError as more:
                lost = more
        for request in self._prefill_queue.clear():
            self.scheduler.ready(request.place)
        fault.workers |= replaced.workers
        fault.pools |= replaced.pools
        self._resumed(fault)

    def _resumed(self, fault: _OpenFault) -> None:
        """The fault is over, if everything that was under way is under way again."""
        if any(self.decoder.flying(batch) for batch in self._broken_off):
            return
        requests, tokens = self.decoder.kept_in(fault.pools)
        workers, now = tuple(sorted(fault.workers)), time.monotonic()
        self.faults.append(Fault(workers, fault.why, fault.noticed_s, now, requests, tokens))
        self._fault = None
