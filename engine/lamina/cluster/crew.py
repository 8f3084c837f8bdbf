"""The workers of an engine as the front end has them: started, told, heard, and ended."""

from __future__ import annotations

import contextlib
import signal
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from typing import Any

from lamina.cluster import told
from lamina.cluster.boot import Boot
from lamina.cluster.machine import Machine
from lamina.fhbn import ChannelError, Link, Listener
from lamina.fhbn.deadline import Deadline
from lamina.pipeline import EngineError

# Loading, binding and meeting: some seconds each on a busy machine.
START_S = 300.0
END_S = 5.0
# From the first sign that something is wrong to knowing what.
FAILURE_S = 1.0


class Crew:
    """Started when it is made. close() ends it; forgotten without, its workers hang up by themselves."""

    def __init__(
        self,
        machine: Machine,
        source: dict[str, Any],
        boots: Sequence[Boot],
        listener: Listener,
        timeout_s: float,
    ) -> None:
        self.names = [boot.name for boot in boots]
        self._machine, self._timeout_s = machine, timeout_s
        self._pids: list[int] = []
        self._links: list[Link] = []
        self._waiting = DefaultSelector()
        self._said: list[deque[dict[str, Any]]] = [deque() for _ in boots]
        # It has no reference to this object, and asks nobody: it may run at any moment.
        self._hang_up = weakref.finalize(self, _hang_up, self._links, self._waiting)
        try:
            self._pids += machine.start(source, boots)
            self._meet(listener, Deadline(START_S))
        except BaseException:
            self.close()
            raise

    def _meet(self, listener: Listener, deadline: Deadline) -> None:
        came: dict[str, Link] = {}
        try:
            while len(came) < len(self.names):
                with self._patience():
                    link = listener.accept(min(1.0, deadline.left_s))
                    came[link.peer] = link
                if deadline.left_s == 0:
                    raise EngineError(f"{len(self.names) - len(came)} workers did not come in {START_S:g} s")
        finally:
            self._links += [came[name] for name in self.names if name in came]
        for number, link in enumerate(self._links):
            self._waiting.register(link.control, EVENT_READ, number)
        everybody = range(len(self.names))
        addresses = {self.names[i]: self.hear(i, "address", deadline)["address"] for i in everybody}
        for number in everybody:
            self.say(number, {"peers": addresses}, deadline)
        ready = [self.hear(number, "ready", deadline) for number in everybody]
        self.network: str = ready[0]["network"]

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """Nobody comes any more if somebody has ended."""
        try:
            yield
        except ChannelError as error:
            for number, status in self._ends().items():
                why = self._machine.errors().rpartition("\n")[2] or f"it ended with {status}"
                raise EngineError(f"{self.names[number]} did not start: {why}") from error

    def say(self, number: int, message: dict[str, Any], deadline: Deadline) -> None:
        """To one of them."""
        self._require_open()
        link = self._links[number]
        try:
            told.say(link.control, message, deadline)
        except ChannelError as error:
            raise self._failure(link.peer, str(error)) from error

    def hear(self, wanted: int, what: str, deadline: Deadline) -> dict[str, Any]:
        """What a worker has to say next of this kind; an EngineError as soon as any worker cannot go on."""
        self._require_open()
        said = self._said[wanted]
        while True:
            for place, message in enumerate(said):
                if what in message:
                    del said[place]
                    return message
            ready = [key.data for key, _ in self._waiting.select(deadline.wait_s)]
            for number in ready:
                self._said[number].append(self._heard(number, deadline))
            if not ready and deadline.left_s == 0:
                raise self._failure(self.names[wanted], f"nothing came of it in {self._timeout_s:g} s")

    def _require_open(self) -> None:
        if not self._links:
            raise EngineError("the engine was closed: make a new one")

    def _heard(self, number: int, deadline: Deadline) -> dict[str, Any]:
        name = self.names[number]
        try:
            message = told.hear(self._links[number].control, deadline)
        except ChannelError as error:
            raise self._failure(name, str(error)) from error
        if "failed" in message:
            if message["lost"]:  # by somebody else's fault
                raise self._failure(name, message["failed"])
            raise EngineError(f"{name} cannot go on: {message['failed']}")
        return message

    def _failure(self, name: str, why: str) -> EngineError:
        """One worker's trouble is noticed by all others: look for the one that was first."""
        deadline, known = Deadline(FAILURE_S), {name}
        while True:
            try:
                ends = self._ends()
            except EngineError as error:  # what they all come from has gone, and they with it
                return error
            for number, status in ends.items():
                if status < 0:
                    by = signal.Signals(-status).name
                    return EngineError(f"{self.names[number]} has ended: it was killed by {by}")
            for number in [key.data for key, _ in self._waiting.select(0.05)]:
                control = self._links[number].control
                known.add(self.names[number])
                try:
                    message = told.hear(control, deadline)
                except ChannelError:
                    self._waiting.unregister(control)
                    continue
                if "failed" in message and not message["lost"]:
                    return EngineError(f"{self.names[number]} cannot go on: {message['failed']}")
            if deadline.left_s == 0:
                silent = [each for each in self.names if each not in known]
                hangs = f"; {', '.join(silent)} may hang, or timeout_s be too short" if silent else ""
                return EngineError(f"{name} cannot go on: {why}{hangs}")

    def _ends(self) -> dict[int, int]:
        """How workers have ended, those that have."""
        ends = self._machine.ends(self._pids)
        return {self._pids.index(pid): status for pid, status in ends.items()}

    def close(self) -> None:
        """End the workers. None is left when this returns."""
        for link in self._links:
            with contextlib.suppress(ChannelError):
                link.control.say({"end": True}, Deadline(END_S))
        deadline = Deadline(END_S)
        for link in self._links:
            # It hangs up when it has ended; what it said before is of no interest any more.
            with contextlib.suppress(ChannelError):
                while True:
                    link.control.hear(deadline)
        self._hang_up()
        if self._pids:
            self._machine.kill(self._pids)
            self._pids.clear()


def _hang_up(links: list[Link], waiting: BaseSelector) -> None:
    """A worker whose front end is gone ends."""
    for link in links:
        link.close()
    links.clear()
    waiting.close()
