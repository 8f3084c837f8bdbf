"""Several engines behind a router: requests in, tokens out, and none lost with an engine."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np

from lamina.kv import Faults
from lamina.pipeline import EngineError, Records
from lamina.serve.engine import Engine
from lamina.serve.front import NO_PREFIX, Choice, Front, Ints, Queue, prefix_blocks
from lamina.serve.instance import Instance, Routed, State
from lamina.serve.requests import Fault, Piece, Result, Step
from lamina.serve.sampling import LARGEST_PRIORITY, Prompt, RequestError, Sampling, priority
from lamina.serve.served import Served, require_harm, unknown

Value = TypeVar("Value")
# A request that ran on so many engines when they died is likely why, and is not sent to another one.
MOST_DEATHS = 2
FIRST = -LARGEST_PRIORITY


@dataclass
class _Loss:
    """An engine that is lost, until everything that ran there runs elsewhere."""

    fault: Fault
    moving: set[int]


class _Reports:
    """Instances whose iteration has ended, in the order of the ends, which their threads report."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Instance, Future[Step]]] = SimpleQueue()

    def add(self, instance: Instance, future: Future[Step]) -> None:
        self._queue.put((instance, future))

    def next(self, timeout_s: float) -> Instance | None:
        """Return the next one whose result was not yet requested; None if there is none in time."""
        with contextlib.suppress(Empty):
            while True:
                instance, future = self._queue.get(timeout=timeout_s)
                if instance.future is future:
                    return instance
        return None


class Fleet(Served):
    """Several engines with the same model, used like one: by one thread at a time, a step after the other.

    Each engine has a thread that steps it, so that all make progress at once; a step of the fleet is the next
    one that an engine has made. `engines` are engines, or functions that make them. A `router` is one of
    ROUTERS or a function (see Choice). With `queue` "each" a request waits at its engine; with "global" in
    front, until an engine has room for all that it may need. The first engine's policy orders
    requests in both places. The fleet closes its engines.

    An engine that cannot go on is lost and no request with it: they go on elsewhere, after the tokens that
    they have made. Beam searches, several samples and log-probabilities begin again, and make the same ones.
    """

    def __init__(
        self,
        engines: Sequence[Engine | Callable[[], Engine]],
        *,
        router: str | Choice = "round-robin",
        queue: Queue = "each",
        step_timeout_s: float = 3600.0,
    ) -> None:
        if not engines:
            raise EngineError("fleet-empty", "a fleet has at least one engine")
        self._front, self._timeout_s = Front(router, queue), step_timeout_s
        self.instances: list[Instance] = []
        self.faults: list[Fault] = []  # engines and workers that were lost, so far
        self._reports = _Reports()
        self._requests: dict[int, Routed] = {}
        self._results: dict[int, Result] = {}
        self._numbers = 0
        self._steps: deque[Step] = deque()  # that have not been returned
        self._losses: list[_Loss] = []
        self._closed = False
        with contextlib.ExitStack() as made:
            for each in engines:
                engine = each if isinstance(each, Engine) else made.enter_context(each())
                self._append(engine)
            made.pop_all()
        first = self.instances[0].engine
        self.facts, self.decode_only, self._policy = first.facts, first.decode_only, first.policy
        self.schedule = first.schedule
        self.batches = max(each.engine.schedule.batches for each in self.instances)  # numbers of each
        self._front.serve(self.instances, ())

    def _append(self, engine: Engine) -> None:
        if self.instances and _kind(engine) != _kind(self.instances[0].engine):
            raise EngineError(
                "fleet-models-differ", "engines of a fleet have the same model, dtype and decode_only"
            )
        self.instances.append(Instance(len(self.instances), engine, self._reports.add, self._timeout_s))

    # What there is.

    @property
    def here(self) -> list[Instance]:
        """Instances that are not lost."""
        return [each for each in self.instances if each.why is None]

    @property
    def states(self) -> list[State]:
        return [each.state for each in self.instances]

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV memory of all engines holds."""
        return sum(each.engine.kv_tokens for each in self.here)

    @property
    def pool_tokens(self) -> int:
        """The most KV tokens that one request may have on every engine."""
        return min((each.engine.pool_tokens for each in self.here), default=0)

    @property
    def used_kv_tokens(self) -> int:
        """The KV tokens promised to requests."""
        return sum(each.engine.used_kv_tokens for each in self.here)

    @property
    def peak_kv_tokens(self) -> int:
        """The engines' peaks added up."""
        return sum(each.engine.peak_kv_tokens for each in self.instances)

    @property
    def waiting(self) -> int:
        """Requests that have not begun, or had to make room."""
        return len(self._front) + sum(each.engine.waiting + len(each.coming) for each in self.here)

    @property
    def workers(self) -> list[str]:
        """The targets of fault injection: `instance 1`, and its workers, as `1/model 0`."""
        names = []
        for each in self.here:
            names += [f"instance {each.number}", *(f"{each.number}/{name}" for name in each.engine.workers)]
        return names

    @property
    def advanced_s(self) -> float:
        """Return when an engine last made progress; see Engine.advanced_s."""
        return max((each.engine.advanced_s for each in self.here), default=0.0)

    def worked_s(self) -> dict[str, float]:
        """Return the seconds that each worker has computed, as of the previous call; does not wait."""
        return dict(item for each in self.here for item in each.worked_s().items())

    def records(self) -> list[Records | None]:
        """Return each instance's timelines; None for one that is lost or has none."""
        if not self.idle:
            raise EngineError("engine-busy", "records are collected when nothing is under way: run() first")
        return [self._call(each, each.engine.records) for each in self.instances]

    def paging(self) -> dict[str, Faults]:
        """Return the paging costs of the engines that are not lost."""
        by_engine = {each.number: self._call(each, each.engine.paging) or {} for each in self.here}
        return {f"{at}/{worker}": faults for at, own in by_engine.items() for worker, faults in own.items()}

    def check_integrity(self) -> None:
        """Recount every engine; raise RuntimeError naming the first error."""
        for each in self.here:
            self._settle(each)
            self._call(each, each.engine.check_integrity)

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self._requests or self._steps or any(each.busy for each in self.instances))

    # Engines come and go.

    def add(self, engine: Engine) -> int:
        """Add an engine, which gets requests from now on, and return its number.

        What was known of prefixes is forgotten.
        """
        if engine.schedule.batches > self.batches:
            raise EngineError(
                "fleet-too-many-batches",
                f"{engine.schedule.batches} batches are more than the {self.batches} of the others",
            )
        self._append(engine)
        self._front.serve(self.instances, self._requests.values())
        return len(self.instances) - 1

    def drain(self, number: int, *, finish: bool = False) -> None:
        """Drain an instance: it gets no more requests; its own go on elsewhere, or `finish` there."""
        instance = self._instance(number)
        if not finish and not any(each.open for each in self.instances if each is not instance):
            raise EngineError(
                "fleet-last-instance",
                f"no other instance takes the requests of instance {number}: finish, or add an engine",
            )
        self._front.open(instance, to_requests=False)
        if finish:
            return
        self._settle(instance)
        step, moved = Step(batch=number * self.batches), self._taken_back(instance)
        engine = instance.engine
        try:
            for local, request in instance.requests.items():
                self._carry(request, engine, local, step)
                moved.append(request)
                engine.cancel(local)
                engine.result(local)
        except EngineError as error:
            self._append_step(step)
            self._lose(instance, error, moved)
            return
        instance.requests.clear()
        self._append_step(step)
        self._elsewhere(moved)

    def reopen(self, number: int) -> None:
        """Give requests again to an engine that was drained."""
        self._front.open(self._instance(number), to_requests=True)

    def inject_fault(self, worker: str, how: str = "kill") -> None:
        """Inject a fault into a worker (`1/model 0`) or all workers of an engine (`instance 1`)."""
        require_harm(worker, how, self.workers)
        number, slash, name = worker.removeprefix("instance ").partition("/")
        instance = self.instances[int(number)]
        self._settle(instance)
        if instance.why is None and slash:
            instance.engine.inject_fault(name, how)
        elif instance.why is None:
            instance.struck = True
            instance.engine.inject_faults(how)

    def close(self) -> None:
        """End all engines. What runs is lost."""
        self._closed = True
        for each in self.instances:
            each.close()

    # Requests come and go.

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        made: Sequence[int] = (),
        prefix: Sequence[int] | Ints | None = None,
    ) -> int:
        """Queue a request and return its number, as Engine.submit does.

        `prefix` are ids of the prompt's leading blocks, where they are known; else they are made of its
        tokens, for a router that asks for them.
        """
        options = sampling or Sampling()
        options = options if options.seed is not None else replace(options, seed=secrets.randbits(64))
        tokens = self._servable(prompt, options, made)
        first = priority(self._policy, options, len(tokens))
        if prefix is None:
            use_prefix = self._front.uses_prefixes and not self.decode_only
            prefix = prefix_blocks(tokens) if use_prefix else NO_PREFIX
        request = Routed(
            self._numbers,
            prompt if self.decode_only else tokens,
            options,
            (len(tokens), options.width * options.max_tokens),
            np.asarray(prefix, np.int64),
            first,
            tuple(made),
        )
        self._numbers += 1
        self._requests[request.number] = request
        try:
            self._front.push(request)
            self._dispatch()
        except BaseException:  # a router of the user's own
            self._end(request, request.result("failed"))
            del self._results[request.number]
            raise
        return request.number

    def _servable(self, prompt: Prompt, sampling: Sampling, made: Sequence[int]) -> Ints:
        refused: RequestError | None = None
        for each in self.instances:
            if each.open:
                try:
                    return each.engine.servable(prompt, sampling, made)[0]
                except RequestError as error:
                    refused = refused or error
        raise refused or self._no_instance()

    def cancel(self, number: int) -> None:
        """Take a request out; what it has made is its result. One that has ended stays as it ended."""
        request = self._requests.get(number)
        if request is not None and request.local is not None:
            self._settle(self._there(request))
        if (request := self._requests.get(number)) is None:
            if number not in self._results:
                raise unknown(number)
        elif request.local is None:
            self._end(request, request.result("cancelled"))
        else:
            self._cancel_there(request, self._there(request), request.local)
        for step in self._steps:
            for listed in (step.joined, step.preempted, step.moved, step.ended):
                listed[:] = [other for other in listed if other != number]

    def _cancel_there(self, request: Routed, instance: Instance, local: int) -> None:
        lost: EngineError | None = None
        try:
            instance.engine.cancel(local)
        except EngineError as error:  # it has been taken out before
            lost = error
        result = instance.engine.result(local)
        self._end(request, result if result.completions else request.result("cancelled"))
        if lost:
            self._lose(instance, lost)

    # Time passes.

    def step(self) -> Step:
        """Return the next iteration that an engine has made. Does nothing when idle.

        Batches are numbered over all instances: batch j of instance i is i * `batches` + j. Where an engine
        was lost or drained a step of size 0 lists the requests that `moved`.
        """
        if self._closed:
            raise EngineError("fleet-closed", "the fleet was closed: make a new one")
        while not self._steps:
            self._dispatch()
            for each in self.here:
                self._send_on(each)
            if self._steps:
                break
            stepped = [each for each in self.here if each.future]
            if not stepped:
                if any(each.coming for each in self.here):  # that another one was to have
                    continue
                if self._requests:
                    raise self._no_instance()
                return Step()
            if instance := self._reports.next(min(each.left_s for each in stepped)):
                self._take(instance)
            else:
                for late in [each for each in stepped if not each.left_s]:
                    self._take(late)
        return self._steps.popleft()

    def _rests(self, number: int) -> bool:
        request = self._requests[number]
        return request.local is None or self._there(request).future is None

    def _pieces(self, number: int, delivered: Mapping[int, int]) -> list[Piece]:
        """Wait for an iteration that is under way there."""
        if (request := self._requests.get(number)) and request.local is not None:
            self._settle(self._there(request))
        if request := self._requests.get(number):
            ready: list[Piece] = []
            if request.local is not None:
                engine = self._there(request).engine
                ready = engine.pieces(request.local, delivered)
            since = delivered.get(0, 0)
            # One that waits has nothing there.
            if not ready and len(request.made) > since:
                ready = [Piece(0, request.made[since:])]
            return ready
        if number in self._results:
            return self._results[number].pieces(delivered)
        raise unknown(number)

    # The instance of each request.

    def _there(self, request: Routed) -> Instance:
        assert request.instance is not None
        return self.instances[request.instance]

    def _dispatch(self) -> None:
        """Send queued requests to engines that have room."""
        for request in self._front.send_on():
            self._fail(request, "no engine that is left has room for it")

    def _send_on(self, instance: Instance) -> None:
        """Let an idle engine accept new requests and run its next iteration, if there is one."""
        if instance.future:
            return
        coming, instance.coming = instance.coming, []
        for place, request in enumerate(coming):
            try:
                request.local = instance.engine.submit(
                    request.prompt, request.sampling, made=request.made, priority=request.priority
                )
            except EngineError as error:
                self._lose(instance, error, coming[place:])
                return
            except RequestError as error:
                self._fail(request, str(error))
            else:
                instance.requests[request.local] = request
        if not instance.engine.idle:
            instance.go()

    def _settle(self, instance: Instance) -> None:
        """Wait for the running iteration there; the next step reports it."""
        if instance.future:
            self._take(instance)

    def _take(self, instance: Instance) -> None:
        """Take in the result of an instance's iteration."""
        try:
            step = instance.ended()
        except Exception as error:  # whatever it is, this engine does not go on
            self._lose(instance, error)
            return
        self.faults += instance.faults()
        own = instance.requests
        step.batch += instance.number * self.batches
        for request in (own[local] for local in step.preempted if local in own):
            request.runs = False
        for request in (own[local] for local in step.joined if local in own):
            request.runs = True
        ended = [(own[local], local) for local in step.ended if local in own]
        step.joined = [own[local].number for local in step.joined if local in own]
        step.preempted = [own[local].number for local in step.preempted if local in own]
        step.ended = [request.number for request, _ in ended]
        for request, local in ended:
            self._end(request, instance.engine.result(local))
        self._settled({*step.joined, *step.ended})
        self._steps.append(step)

    def _lose(self, instance: Instance, error: Exception, more: Sequence[Routed] = ()) -> None:
        """Drop an engine that has failed; its requests, and `more`, continue on other engines."""
        noticed_s, number, why = time.monotonic(), instance.number, f"instance {instance.number}: {error}"
        self.faults += instance.faults()
        self._front.open(instance, to_requests=False)
        step = Step(batch=number * self.batches, started_s=noticed_s, ended_s=noticed_s)
        moved = self._taken_back(instance) + [self._front.left(request) for request in more]
        again, failed, running = 0, [], set()
        for local, request in instance.requests.items():
            if request in moved:
                continue
            ran = self._carry(request, instance.engine, local, step)
            request.deaths += ran and not instance.struck
            if request.deaths >= MOST_DEATHS:
                failed.append(request)
                continue
            if ran:
                again += request.demand[0] + len(request.made)
                running.add(request.number)
            moved.append(request)
        instance.lose(why)
        for request in failed:
            step.moved = [other for other in step.moved if other != request.number]
            step.ended.append(request.number)
            sentence = f"{MOST_DEATHS} engines have died while it ran, the last one {why}"
            self._end(request, request.result("failed", sentence))
        fault = Fault((f"instance {number}",), why, noticed_s, noticed_s, len(running), again)
        self._losses.append(_Loss(fault, running))
        self._settled(set())
        self._append_step(step)
        self._elsewhere(moved)

    def _taken_back(self, instance: Instance) -> list[Routed]:
        """Take back and return the requests that the engine does not have yet."""
        coming, instance.coming = instance.coming, []
        return [self._front.left(request) for request in coming]

    def _carry(self, request: Routed, engine: Engine, local: int, step: Step) -> bool:
        """Take a request away from an engine, with its tokens; whether it was running."""
        progress = engine.progress(local)
        request.made = progress.made if request.resumable else ()
        request.preemptions += progress.preemptions
        if request.runs:
            step.moved.append(request.number)
            request.runs = False
        if progress.runs:
            request.priority = FIRST
        self._front.left(request)
        return progress.runs

    def _elsewhere(self, moved: Sequence[Routed]) -> None:
        for request in moved:
            self._front.push(request)
        self._dispatch()

    def _end(self, request: Routed, result: Result) -> None:
        number = request.number
        del self._requests[number]
        preemptions = result.preemptions + request.preemptions
        self._results[number] = replace(result, request=number, preemptions=preemptions)
        if request.instance is not None:
            instance = self.instances[request.instance]
            if request.local is None:
                instance.coming.remove(request)
            else:
                instance.requests.pop(request.local)
            self._front.left(request)
        else:
            self._front.drop(request)
        self._settled({number})

    def _fail(self, request: Routed, why: str) -> None:
        """Fail a request that no engine has."""
        self._front.left(request)
        self._end(request, request.result("failed", why))
        self._append_step(Step(ended=[request.number]))

    def _append_step(self, step: Step) -> None:
        if step.moved or step.ended:
            self._steps.append(step)

    def _settled(self, numbers: set[int]) -> None:
        """End losses whose requests all run again or have ended."""
        for loss in self._losses:
            loss.moving -= numbers
            if not loss.moving:
                self.faults.append(replace(loss.fault, resumed_s=time.monotonic()))
        self._losses = [loss for loss in self._losses if loss.moving]

    def _instance(self, number: int) -> Instance:
        if not 0 <= number < len(self.instances) or self.instances[number].why is not None:
            there = ", ".join(str(each.number) for each in self.here) or "none"
            raise EngineError("fleet-instance-unknown", f"there is no instance {number}: there are {there}")
        return self.instances[number]

    def _call(self, instance: Instance, call: Callable[[], Value]) -> Value | None:
        """Return the engine's answer; None if it is lost."""
        if instance.why is None:
            try:
                return call()
            except EngineError as error:
                self._lose(instance, error)
        return None

    def _no_instance(self) -> EngineError:
        lost = [each.why for each in self.instances if each.why is not None]
        last = f", the last one {lost[-1]}" if lost else ""
        return EngineError(
            "fleet-lost", f"no engine takes requests: {len(lost)} of {len(self.instances)} are lost{last}"
        )


def _kind(engine: Engine) -> tuple[object, ...]:
    """Return the settings that make engines give the same tokens."""
    return engine.facts, engine.decode_only
