"""The front end as a worker has it: what it wants done comes in, what has been done goes out."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lamina.cluster import framing, messages
from lamina.cluster.config import WorkerConfig
from lamina.cluster.heartbeat import Heartbeat
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import PeerLostError
from lamina.pipeline import Recorder

# While there are no requests the front end is silent.
_FOREVER_S = 1e9
MEETING_S = 60.0


class EndedError(Exception):
    """The front end wants the worker to end."""


class RegroupError(Exception):
    """The front end wants all workers to meet anew."""


class FrontEnd:
    """Keeps what has been received until the worker asks for it."""

    def __init__(self, control: Control, recorder: Recorder, call: messages.Regroup) -> None:
        self._control = control
        self._recorder = recorder
        self._plans: dict[tuple[int, int], messages.Plan] = {}
        self._jobs: deque[messages.Compute | messages.Forget] = deque()  # of prefill workers
        self._peers: dict[str, str] | None = None
        self.call = call  # the meeting that is on, or was last
        # An attention worker's own.
        self.check: Callable[[], messages.ArenaState] = lambda: messages.ArenaState(0)

    def plan(self, batch: int, cycle: int) -> messages.Plan:
        """Wait for it; other plans that come first are kept."""
        while (batch, cycle) not in self._plans:
            self._receive()
        return self._plans.pop((batch, cycle))

    def has_plan(self, batch: int, cycle: int, timeout_s: float) -> bool:
        """Whether it is here, or the next message comes in this time and is this plan."""
        if (batch, cycle) not in self._plans:
            self.look(timeout_s)
        return (batch, cycle) in self._plans

    def job(self, *, wait: bool) -> messages.Compute | messages.Forget | None:
        """What a prefill worker is asked next; without waiting None if there is nothing."""
        if not wait:
            self.look()
        while wait and not self._jobs:
            self._receive()
        return self._jobs.popleft() if self._jobs else None

    def peers(self) -> dict[str, str]:
        """Wait for all workers' addresses."""
        while self._peers is None:
            self._receive()
        peers, self._peers = self._peers, None
        return peers

    def called(self) -> None:
        """Wait until all are to meet again, whatever else comes."""
        try:
            while True:
                self._receive()
        except RegroupError:
            return

    def look(self, timeout_s: float = 0.0) -> None:
        """Take what has come, if anything: a worker that waits for others must not miss that they are lost.

        Up to a plan: what is asked after it is asked of a worker that has begun it.
        """
        plans = len(self._plans)
        while len(self._plans) == plans and select.select([self._control], [], [], timeout_s)[0]:
            self._receive()
            timeout_s = 0.0

    def left_over(self) -> list[messages.Plan]:
        """Plans that have come and were not begun, in the order in which they were made."""
        plans, self._plans = sorted(self._plans.values(), key=lambda plan: plan.cycle), {}
        return plans

    def _receive(self) -> None:
        try:
            message = framing.receive(self._control, Deadline(_FOREVER_S))
        except PeerLostError as error:
            raise EndedError from error
        match message:
            case messages.Plan(batch, cycle):
                self._plans[batch, cycle] = message
            case messages.Compute() | messages.Forget():
                self._jobs.append(message)
            case messages.Peers(addresses):
                self._peers = addresses
            case messages.Regroup():
                self._peers = None
                self._jobs.clear()
                self.call = message
                raise RegroupError
            case messages.SendRecords():
                for part in self._recorder.messages():
                    self.send(part)
            case messages.CheckArena():
                self.send(self.check())
            case messages.End():
                raise EndedError
            case _:
                raise messages.unexpected(message, "the front end")

    def send(self, message: messages.FromWorker) -> None:
        """To the front end."""
        framing.send(self._control, message, Deadline(MEETING_S))


class Context(NamedTuple):
    """What a worker of any role has."""

    config: WorkerConfig
    front: FrontEnd
    recorder: Recorder
    heartbeat: Heartbeat
