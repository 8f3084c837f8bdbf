"""The engine: requests in, tokens out, one iteration of a batch at a time."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lamina._native import LiveScheduler
from lamina.cluster import ClusterCore, Layout, Workplace
from lamina.kv import Faults
from lamina.pipeline import CoreOptions, EngineError, Records, Schedule
from lamina.pipeline.options import ModelFacts, require_count
from lamina.serve.batch_loop import BatchLoop
from lamina.serve.decoder import SEEDS
from lamina.serve.local_core import Core, LocalCore
from lamina.serve.requests import Fault, Piece, Progress, Request, Result, Step
from lamina.serve.sampling import (
    ADMISSIONS,
    Checked,
    Policy,
    Prompt,
    RequestError,
    Sampling,
    checked,
    policy_of,
    priority,
)
from lamina.serve.served import Served, require_harm, unknown

WARM_UP_TOKENS = 3
FIRST_KEY = -(2**63)  # before all others
NUMBERS = 2**32  # request numbers that come before a priority's next value


class Engine(Served):
    """An engine that decodes with continuous batching, with attention separate from the model.

    `model` is a folder with a Hugging Face model, a config.json (with load_format="dummy") or a model object.
    With a `layout` model workers and attention workers are processes of their own, and several batches are
    under way at once; close() ends them, as `with` does. A `machine` serves several engines, one after the
    other or side by side. The other arguments are those of `CoreOptions`. One thread at a time may use an
    engine.
    """

    def __init__(
        self,
        model: Any,
        *,
        layout: Layout | None = None,
        machine: Workplace | None = None,
        max_sequences: int = 256,
        admission: str = "reserve",
        policy: str | Policy = "fifo",
        **core: Any,
    ) -> None:
        self.policy = policy_of(policy)
        require_count("max_sequences", max_sequences)
        if admission not in ADMISSIONS:
            raise EngineError(
                "engine-admission-unknown", f"admission '{admission}': known are {', '.join(ADMISSIONS)}"
            )
        options = CoreOptions(**core)
        self.max_sequences, self.decode_only = max_sequences, options.decode_only
        self._core: Core
        if layout is None:
            self._core = LocalCore(model, options, max_sequences=max_sequences)
        else:
            self._core = ClusterCore(model, options, layout, machine, max_sequences=max_sequences)
        self.core: Any = self._core  # a LocalCore, or a ClusterCore where there is a layout
        self.facts: ModelFacts = self._core.facts
        self.schedule: Schedule = self._core.schedule
        self._checked = functools.partial(
            checked, self.facts, decode_only=options.decode_only, max_sequences=max_sequences
        )
        self._admission, self._min_batch = admission, layout.min_batch if layout else 1
        scheduler = self._scheduler_of(self._core.pools, self._core.pool_tokens)
        self._loop = BatchLoop(
            self._core, scheduler, decode_only=options.decode_only, prompt_tokens=options.prompt_tokens
        )
        self._decoder = self._loop.decoder
        self.faults: list[Fault] = self._loop.faults  # workers that were lost and replaced, so far
        self.warm_up_iterations = 0  # which are in no record
        self._requests: dict[int, Request] = {}
        self._results: dict[int, Result] = {}
        self._numbers = 0
        self._drained: deque[Step] = deque()  # that have not been returned
        self._broken = False
        self._failure: Exception | None = None  # why nothing more comes of it, if that is known

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV memory holds, all of it."""
        return self._core.pool_tokens * self._core.pools

    @property
    def pool_tokens(self) -> int:
        """The most KV tokens that one request may have."""
        return self._core.pool_tokens

    @property
    def used_kv_tokens(self) -> int:
        """The KV tokens promised to requests."""
        return self.kv_tokens - self._loop.scheduler.free_tokens

    @property
    def waiting(self) -> int:
        """Requests that have not begun, or had to make room."""
        return self._loop.scheduler.waiting

    def records(self) -> Records | None:
        """Return the workers' timelines; None in one process, where steps have the times.

        For when nothing waits or runs: workers in the middle of something do not answer.
        """
        if not self.idle:
            raise EngineError("engine-busy", "records are collected when nothing is under way: run() first")
        return self._loop.surviving(self._core.records)

    def paging(self) -> dict[str, Faults]:
        """Return the pages that each attention worker has moved, and read in place, since it began; nothing
        without `overcommit`. For when nothing waits or runs.
        """
        return self._loop.surviving(self._core.paging)

    @property
    def peak_kv_tokens(self) -> int:
        return self._loop.peak_kv_tokens

    @property
    def workers(self) -> list[str]:
        """The names of a layout's workers; empty in one process."""
        return self._core.workers

    @property
    def advanced_s(self) -> float:
        """Return when prompts or iterations last went on, by time.monotonic(), or 0 if unknown."""
        return self._core.advanced_s

    def worked_s(self) -> dict[str, float]:
        """Return each worker's seconds of computation, without waiting, as of the previous call.

        It does not wait.
        """
        return self._core.worked_s()

    def inject_fault(self, worker: str, how: str = "kill") -> None:
        """Inject a fault into a worker: "kill" or "stop" it."""
        require_harm(worker, how, self.workers)
        self._core.inject_fault(worker, how)

    def inject_faults(self, how: str = "kill") -> None:
        """Inject a fault into all workers and replace none, as if their machine were lost."""
        if not self.workers:
            raise EngineError("engine-worker-unknown", "an engine in one process has no workers")
        self._core.beyond_recovery = True
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                self.inject_fault(worker, how)

    def scale(self, *, attention_workers: int) -> None:
        """Continue with another number of attention workers, each with as much memory as one had before.

        What is under way ends first. Then every running request is preempted once, and begins again where
        most memory is free: its KV is computed again from its prompt and tokens. No token is lost.
        """
        if self._broken:
            raise EngineError(
                "engine-closed", "the engine was closed, or an iteration broken off: make a new engine"
            )
        to = self._core.scaled(attention_workers)
        self._broken = True
        with torch.inference_mode():
            for step, over in self._loop.drain():
                self._drained.append(step)
                for request, error in over:
                    self._forget(request, error)
            scheduler = self._scheduler_of(to.pools, to.pool_tokens)
            try:
                rows = self._waiting_in(scheduler)
            except EngineError:
                self._broken = False
                raise
            self._loop.scale(to, scheduler, rows)
        self._broken = False

    def _scheduler_of(self, pools: int, tokens: int) -> LiveScheduler:
        return LiveScheduler(
            tokens,
            self.max_sequences,
            batches=self._core.batches,
            pools=pools,
            admission=self._admission,
            staged=True,
            min_batch=self._min_batch,
        )

    def _waiting_in(self, scheduler: LiveScheduler) -> dict[int, Request]:
        """Return all requests, by the row that they get there: running ones first, in the order of
        arrival.
        """
        result: dict[int, Request] = {}
        for number, request in sorted(self._requests.items()):
            made = self._decoder.made(request)
            key = FIRST_KEY + number if self._decoder.runs(request) else request.key
            row = scheduler.add(
                len(request.prompt) + request.sampling.width * made,
                request.sampling.max_tokens - made,
                width=request.sampling.width,
                key=key,
            )
            if row is None:
                raise EngineError(
                    "engine-scale-request-too-large",
                    f"request {number} would not fit any more: keep more workers",
                )
            result[row] = request
        return result

    def close(self) -> None:
        """End the workers, if there are any. What runs is lost."""
        self._broken = True
        self._core.close()

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self._requests or self._decoder.any_flying or self._drained)

    # Requests come and go.

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        made: Sequence[int] = (),
        priority: int | None = None,
    ) -> int:
        """Queue a request and return its number; a RequestError if it can never be served.

        `prompt` is token ids, or for a decode-only engine how many there are meant to be: such requests start
        with made-up KV, their tokens mean nothing, and no end token ends them. `made` are tokens that it has
        made already, in an engine that is no more: it goes on after them. A `priority` stands for what the
        engine's policy would say.
        """
        return self._enqueue(self.servable(prompt, sampling or Sampling(), made), priority)

    def servable(self, prompt: Prompt, sampling: Sampling, made: Sequence[int] = ()) -> Checked:
        """Return the request, checked; a RequestError if it can never be served. Any thread may ask."""
        valid = self._checked(prompt, sampling, made)
        tokens = len(valid[0])
        if tokens + sampling.width * sampling.max_tokens > self.pool_tokens:
            raise RequestError(
                "request-exceeds-kv",
                f"a prompt of {tokens:,} tokens and {sampling.width} x {sampling.max_tokens:,} to make "
                f"do not fit in the KV memory of {self.pool_tokens:,} tokens, even alone",
            )
        if not self.decode_only and (why := self._core.refusal(tokens)):
            raise RequestError("request-exceeds-memory", why)
        return valid

    def _enqueue(self, valid: Checked, given: int | None = None) -> int:
        tokens, sampling, stops, made = valid
        number = self._numbers
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % SEEDS
        first = priority(self.policy, sampling, len(tokens)) if given is None else given
        key = first * NUMBERS + number % NUMBERS
        # The last thing that may fail: what the scheduler has taken in must have an owner.
        begun, to_make = len(tokens) + len(made), sampling.max_tokens - len(made)
        row = self._loop.scheduler.add(begun, to_make, width=sampling.width, key=key)
        assert row is not None, "it has been checked"
        request = Request(number, tokens, sampling, stops, seed, row, key, made)
        self._numbers += 1
        self._requests[number] = self._loop.by_scheduler_row[row] = request
        return number

    def cancel(self, number: int) -> None:
        """Take a request out; what it has made is its result. One that has ended stays as it ended."""
        request = self._requests.get(number)
        if request is not None:
            self._decoder.end(request, "cancelled")
            # Its memory is free when the iteration it is in has landed.
            if not self._decoder.doomed(request):
                self._loop.leave(request)
            self._forget(request)
            if self.idle and not self._broken:
                self._broken = True
                self._loop.settle()
                self._broken = False
        elif number not in self._results:
            raise unknown(number)

    # Time passes.

    def step(self) -> Step:
        """Run one iteration of one batch, the next in turn; others run meanwhile. Does nothing when idle.

        Prompts of requests that join a batch are computed first.
        """
        if self._broken:
            raise self._failure or EngineError(
                "engine-closed", "the engine was closed, or an iteration broken off: make a new engine"
            )
        if self._drained:
            return self._drained.popleft()
        if self.idle:
            return Step()
        self._broken = True
        with torch.inference_mode():
            step, over = self._loop.next()
            for request, error in over:
                self._forget(request, error)
            if self.idle:
                try:
                    self._loop.settle()
                except Exception as error:  # report the generated tokens first
                    self._failure = error
                    return step
        self._broken = False
        return step

    def warm_up(self, sequences: int, prompt_tokens: int = 1) -> None:
        """Decode a few tokens and discard them: the first iterations load code and data.

        One request with a prompt of so many tokens, if it can be served, and then so many requests together.
        For when nothing waits or runs.
        """
        if not self.idle:
            raise EngineError("engine-busy", "the engine has requests already: warm it up before the first")
        sampling = Sampling(max_tokens=WARM_UP_TOKENS, ignore_eos=True)
        for count, tokens in ((1, prompt_tokens), (min(sequences, self.max_sequences), 1)):
            prompt: Prompt = tokens if self.decode_only else [0] * tokens
            try:
                numbers = [self.submit(prompt, sampling, priority=0) for _ in range(count)]
            except RequestError:  # too long a prompt, or too small a memory: all of them or none
                continue
            while not self.idle:
                self.warm_up_iterations += self.step().size > 0
            for number in numbers:
                self.result(number)
        with torch.inference_mode():
            self._loop.surviving(self._loop.forget)

    def progress(self, number: int) -> Progress:
        """Return an unfinished request's progress, so that it can go on elsewhere; works on a failed engine
        too.
        """
        if (request := self._requests.get(number)) is None:
            raise unknown(number)
        made = next((piece.tokens for piece in self._decoder.pieces(request, {}) if not piece.sample), ())
        return Progress(
            made or request.made, request.staged or self._decoder.runs(request), request.preemptions
        )

    def _pieces(self, number: int, delivered: Mapping[int, int]) -> list[Piece]:
        if request := self._requests.get(number):
            return self._decoder.pieces(request, delivered)
        result = self._results.get(number)  # removed by an earlier call
        return result.pieces(delivered) if result else []

    def _forget(self, request: Request, error: str | None = None) -> None:
        del self._requests[request.number]
        completions = tuple(done for _, done in sorted(request.ended.items()))
        self._results[request.number] = Result(
            request.number, completions, len(request.prompt), request.preemptions, error
        )

    def check_integrity(self) -> None:
        """Recount scheduler and arenas; raise RuntimeError naming the first error."""
        self._loop.scheduler.check_integrity()
        self._loop.surviving(self._core.check_integrity)
