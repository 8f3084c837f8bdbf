"""The front end's handle of an engine's workers: start, send, receive, replace, end."""

from __future__ import annotations

import contextlib
import signal
import time
import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from typing import TypeVar

from lamina import host_memory
from lamina.cluster import messages
from lamina.cluster.heartbeat import HEARTBEAT, HeartbeatMonitor, Patience
from lamina.cluster.machine import LostError, Workplace, WorkplaceLostError, last_sentence
from lamina.cluster.messages import ModelSource, WorkerConfig
from lamina.fhbn import ChannelError, ChannelTimeoutError, Link, Listener
from lamina.fhbn.control import Deadline
from lamina.gpu import is_gpu
from lamina.pipeline import EngineError

# Binding and meeting: some seconds each on a busy machine.
START_S = 300.0
# The first word of a process that has begun.
COME_S = 30.0
END_S = 1.0
# A worker on a GPU ends its kernels' waits when it is hung up on. To kill one whose kernels wait may stall
# others that share the GPU by MPS.
GPU_END_S = 0.5
# From the first sign that something is wrong to knowing what.
FAILURE_S = 1.0
ENDED_LOOK_S = 0.01
# Period of heartbeats to silent workers.
LOOK_S = 0.1
# A worker that has connected says its name at once.
GREETING_S = 5.0


# Signals sent from outside; a worker that fails by itself gets other signals, or reports why.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)

M = TypeVar("M", bound=messages.FromWorker)
E = TypeVar("E", messages.Listening, messages.Ready)


class WorkerPool:
    """The workers of an engine. close() ends them; without it they hang up by themselves."""

    def __init__(
        self,
        machine: Workplace,
        source: ModelSource,
        configs: Sequence[WorkerConfig],
        listener: Listener,
        timeout_s: float,
    ) -> None:
        self.names = [config.name for config in configs]
        self._machine, self._source, self._timeout_s = machine, source, timeout_s
        self._configs, self._listener = list(configs), listener
        self._pids: dict[int, int] = {}
        self._links: dict[int, Link] = {}
        self.monitor = HeartbeatMonitor(timeout_s, partial(_runs, machine, self._pids))
        self._looked_s = 0.0  # time of the last heartbeats
        self._killed_for_memory = host_memory.killed()
        self._waiting = DefaultSelector()
        self._received: list[deque[messages.FromWorker]] = [deque() for _ in configs]
        self._epoch = 0
        self._replaced: set[int] = set()
        # It has no reference to this object, and does not wait: it may run at any moment.
        self._hang_up = weakref.finalize(self, _hang_up, self._links, self.monitor, self._waiting, listener)
        try:
            self._gather(range(len(configs)))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The workers' processes, in the order of their names."""
        return [self._pids[number] for number in range(len(self.names))]

    def regroup(self, lost: Collection[int], cycle: int, flying: Collection[int]) -> None:
        """Replace these workers, and let all meet again. Raises LostError if more are lost meanwhile."""
        self._epoch += 1
        self._dismiss(lost)
        # All have the same partition.
        message = messages.Regroup(self._epoch, cycle, frozenset(flying), self._configs[0].partition)
        silent = set()
        for number in self._links:
            try:
                messages.send(self._links[number].control, message, Deadline(self._timeout_s))
            except ChannelError:
                silent.add(number)
        self._dismiss(silent)
        missing = [number for number in range(len(self.names)) if number not in self._links]
        self._dismiss(missing)  # also those that had begun and had not come yet
        for number in missing:
            self._configs[number] = replace(self._configs[number], epoch=self._epoch, cycle=cycle)
        self._gather(missing)

    def become(self, configs: Sequence[WorkerConfig]) -> None:
        """Replace attention workers from the next meeting on; model workers continue."""
        stay = {number for number, config in enumerate(configs) if config.kind == "model"}
        self._dismiss(set(range(len(self.names))) - stay)
        self._configs, self.names = list(configs), [config.name for config in configs]
        self._received = [deque() for _ in configs]
        self._replaced = set(range(len(configs))) - (stay & self._links.keys())

    def replaced(self) -> list[int]:
        """Return the workers replaced since the last call."""
        result, self._replaced = sorted(self._replaced), set()
        return result

    def _dismiss(self, numbers: Collection[int]) -> None:
        """End these workers, and the others in their processes."""
        ending = {self._configs[number].process for number in numbers}
        numbers = [number for number, config in enumerate(self._configs) if config.process in ending]
        self._replaced |= set(numbers)
        for number in numbers:
            self.monitor.remove(number)
            self._received[number].clear()
            if link := self._links.pop(number, None):
                self._forget(link)
                link.close()
        self._kill(numbers)

    def _kill(self, numbers: Collection[int]) -> None:
        """End these workers' processes; those with a GPU may end by themselves, if they can."""
        own = {number: self._pids.pop(number) for number in numbers if number in self._pids}
        pids, deadline = sorted(set(own.values())), Deadline(GPU_END_S)
        if any(is_gpu(self._configs[number].device) for number in own):
            with contextlib.suppress(EngineError):  # the machine is lost, and they with it
                while len(self._machine.ends(pids)) < len(pids) and deadline.left_s:
                    time.sleep(ENDED_LOOK_S)
        if pids:
            self._machine.kill(pids)

    def _forget(self, link: Link) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it has hung up, and is not waited for any more
            self._waiting.unregister(link.control)

    def _gather(self, new: Sequence[int]) -> None:
        """Start those that are new; then let all exchange their addresses, and meet."""
        if new:
            try:
                pids = self._machine.start(self._source, [self._configs[number] for number in new])
                self._pids.update(zip(new, pids, strict=True))
                self._accept(new, Deadline(COME_S))
            except WorkplaceLostError as error:
                raise LostError(range(len(self.names)), "machine-lost", str(error), outside=True) from error
        with self.monitor.beginning():
            self._meet(Deadline(START_S))

    def _meet(self, deadline: Deadline) -> None:
        numbers = range(len(self.names))
        peers = messages.Peers({})
        for number in numbers:
            there, name = self._receive_now(number, messages.Listening, deadline), self.names[number]
            peers.addresses[name] = there.address
            if there.kv_copy:
                peers.kv_copies[name] = there.kv_copy
            self._received[number].clear()  # of earlier meetings
        for number in numbers:
            self.send(number, peers, deadline)
        ready = [self._receive_now(number, messages.Ready, deadline) for number in numbers]
        self.networks = {name: why for one in ready for name, why in one.networks.items()}
        # By worker: tokens of each sequence that its copy of KV has.
        self.kv_copied = [
            dict(zip(one.kv_names.tolist(), one.kv_tokens.tolist(), strict=False)) for one in ready
        ]

    def _receive_now(self, number: int, kind: type[E], deadline: Deadline) -> E:
        """Return a message of this meeting; those of an earlier one, which failed, are left out."""
        while True:
            message = self.receive(number, kind, deadline)
            if message.epoch == self._epoch:
                return message

    def _accept(self, new: Sequence[int], deadline: Deadline) -> None:
        expected = {self.names[number]: number for number in new}
        expected |= {name + HEARTBEAT: number for name, number in list(expected.items())}
        while expected:
            try:
                if not self._listener.visited(min(LOOK_S, deadline.left_s)):
                    raise ChannelTimeoutError("no worker has connected")
                link = self._listener.accept(min(GREETING_S, deadline.left_s))
            except ChannelError as error:  # one that is waited for may have ended
                for number, status in self._ends().items():
                    if number in new:
                        why = last_sentence(self._machine.errors()) or f"it ended with {status}"
                        name = self.names[number]
                        raise LostError(
                            {number}, "worker-start-failed", f"{name} did not start: {why}"
                        ) from error
            else:
                if link.peer not in expected:  # a worker's that was dismissed before it connected
                    link.close()
                elif link.peer.endswith(HEARTBEAT):
                    self.monitor.add(expected.pop(link.peer), link.control)
                else:
                    number = expected.pop(link.peer)
                    self._links[number] = link
                    self._waiting.register(link.control, EVENT_READ, number)
            if deadline.left_s == 0:
                late = f"{', '.join(expected)} did not come in {COME_S:g} s"
                raise LostError(set(expected.values()), "worker-start-late", late)

    def patience(self, workers: Collection[int]) -> Patience:
        """Return how long to wait for these workers: as long as they make progress."""
        return Patience(self._timeout_s, lambda: self.monitor.advanced(workers))

    def send(self, number: int, message: messages.AnyMessage, deadline: Deadline) -> None:
        self._require_open()
        if number not in self._links:
            raise LostError({number}, "worker-ended", f"{self.names[number]} has ended")
        try:
            messages.send(self._links[number].control, message, deadline, self._look)
        except ChannelError as error:
            raise self._failure(number, str(error)) from error
        except LostError as error:  # half a message may be out: this one is to be replaced too
            raise LostError(
                error.workers | {number}, error.code, str(error), outside=error.outside
            ) from error

    def receive(self, number: int, kind: type[M], deadline: Deadline) -> M:
        """Return a worker's next message of this kind; a LostError as soon as any worker cannot go on."""
        self._require_open()
        received = self._received[number]
        while True:
            for place, message in enumerate(received):
                if isinstance(message, kind):
                    del received[place]
                    return message
            self.wait(number, deadline)

    def wait(self, awaited: int, deadline: Deadline) -> None:
        """Take in messages, or look why none come; if none came by the deadline, worker `awaited` is lost."""
        came = self._take_in(min(LOOK_S, deadline.wait_s), deadline)
        # Also where others are never silent for so long.
        if not came or time.monotonic() - self._looked_s > LOOK_S:
            self._look()
        if not came and deadline.left_s == 0:
            raise self._failure(awaited, f"nothing came of it in {self._timeout_s:g} s")

    def received(self, kind: type[M]) -> list[tuple[int, M]]:
        """Return all messages of this kind that have come, with their workers; it does not wait."""
        self._require_open()
        while self._take_in(0.0, Deadline(self._timeout_s)):  # half a message is no long prompt's fault
            pass
        result: list[tuple[int, M]] = []
        for number, received in enumerate(self._received):
            result += [(number, message) for message in received if isinstance(message, kind)]
            self._received[number] = deque(message for message in received if not isinstance(message, kind))
        return result

    def _take_in(self, wait_s: float, deadline: Deadline) -> bool:
        ready = [key.data for key, _ in self._waiting.select(wait_s)]
        for number in ready:
            self._received[number].append(self._receive(number, deadline))
        return bool(ready)

    def _look(self) -> None:
        """Raise LostError if a worker hangs."""
        self._looked_s = time.monotonic()
        if hanging := self._hanging():
            raise hanging

    def _hanging(self, lost: Collection[int] = ()) -> LostError | None:
        """Return the workers that hang, without those already lost."""
        if not (result := self.monitor.look()):
            return None
        number, why = next(iter(result.items()))
        outside = number in self.monitor.stopped
        return LostError(
            {*lost, *result}, "worker-hangs", f"{self.names[number]} hangs: {why}", outside=outside
        )

    def _require_open(self) -> None:
        if not self._hang_up.alive:
            raise EngineError("engine-closed", "the engine was closed: make a new one")

    def _receive(self, number: int, deadline: Deadline) -> messages.FromWorker:
        name = self.names[number]
        try:
            message = messages.receive(self._links[number].control, deadline)
        except ChannelError as error:
            raise self._failure(number, str(error)) from error
        except messages.MessageError as error:  # a worker that sends nonsense is replaced
            raise LostError({number}, "worker-message-invalid", str(error)) from error
        if not isinstance(message, messages.FromWorker):
            raise LostError({number}, "worker-message-invalid", str(messages.unexpected(message, name)))
        if isinstance(message, messages.Lost) and message.epoch == self._epoch:  # another worker is at fault
            raise self._failure(number, message.why, complains=True)
        if isinstance(message, messages.Failed):
            raise LostError({number}, "worker-failed", f"{name} cannot go on: {message.why}")
        return message

    def _failure(self, number: int, why: str, *, complains: bool = False) -> LostError:
        """Return the worker that failed first: all others notice it."""
        lost = set() if complains else {number}
        sentence = f"{self.names[number]} cannot go on: {why}"
        deadline = Deadline(FAILURE_S)
        while True:
            try:
                ends = self._ends()
            except EngineError as error:  # the fork server is lost, and all workers with it
                return LostError(range(len(self.names)), "machine-lost", str(error), outside=True)
            if ends:
                number, status = next(iter(ends.items()))
                how = f"it was killed by {signal.Signals(-status).name}" if status < 0 else f"with {status}"
                killed, self._killed_for_memory = self._killed_for_memory, host_memory.killed()
                outside = status in _FROM_OUTSIDE and killed == self._killed_for_memory
                why = f"{self.names[number]} has ended: {how}"
                return LostError(lost | set(ends), "worker-ended", why, outside=outside)
            for other in [key.data for key, _ in self._waiting.select(0.01)]:
                link = self._links[other]
                try:
                    message = messages.receive(link.control, deadline)
                except (ChannelError, messages.MessageError):
                    self._forget(link)
                    lost.add(other)
                    continue
                if isinstance(message, messages.Failed):
                    cause = f"{self.names[other]} cannot go on: {message.why}"
                    return LostError(lost | {other}, "worker-failed", cause)
            if hanging := self._hanging(lost):
                return hanging
            if deadline.left_s == 0:
                return LostError(lost, "worker-failed", sentence, outside=complains)

    def _ends(self) -> dict[int, int]:
        ends = self._machine.ends(sorted(set(self._pids.values())))
        return {number: ends[pid] for number, pid in self._pids.items() if pid in ends}

    def inject_fault(self, number: int, how: str) -> None:
        self._require_open()
        self._machine.inject_fault(self._pids[number], how)

    def close(self) -> None:
        """End the workers. None is left when this returns."""
        for link in self._links.values():
            with contextlib.suppress(ChannelError):
                messages.send(link.control, messages.Order("end"), Deadline(END_S))
        deadline = Deadline(END_S)
        for link in self._links.values():
            # It hangs up when it has ended; messages before that are dropped.
            with contextlib.suppress(ChannelError):
                while True:
                    link.control.receive(deadline)
        self._hang_up()
        self._kill(list(self._pids))


def _runs(machine: Workplace, pids: Mapping[int, int], number: int) -> bool:
    return number in pids and machine.runs(pids[number])


def _hang_up(
    links: dict[int, Link], monitor: HeartbeatMonitor, waiting: BaseSelector, listener: Listener
) -> None:
    """End a worker when its front end is lost."""
    for link in links.values():
        link.close()
    links.clear()
    monitor.close()
    waiting.close()
    listener.close()
