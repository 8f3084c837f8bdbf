"""A worker's connection to the front end (`core.py`): plans and orders in, results out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from lamina.cluster import messages
from lamina.cluster.heartbeat import FOREVER_S, MEETING_S, Heartbeat
from lamina.cluster.messages import WorkerConfig
from lamina.fhbn.control import Control, Deadline
from lamina.fhbn.errors import PeerLostError
from lamina.fhbn.readiness import readable
from lamina.pipeline import Recorder


class EndedError(Exception):
    """The front end wants the worker to end."""


class RegroupError(Exception):
    """The front end wants all workers to meet anew."""


class FrontEndLink:
    """The worker's end of the connection; what was received stays here until the worker takes it."""

    def __init__(self, control: Control, recorder: Recorder, call: messages.Regroup) -> None:
        self._control = control
        self._recorder = recorder
        self._plans: dict[tuple[int, int], messages.Plan] = {}
        self._peers: messages.Peers | None = None
        self.kv_copy = ""  # memory that an attention worker offers: see messages.Listening
        self.call = call  # the meeting that is on, or was last
        # What an attention worker answers, and what a prefill worker does with its jobs.
        self.check: Callable[[], messages.ArenaState] = lambda: messages.ArenaState(0)
        self.take: Callable[[messages.Compute | messages.Forget], None] = lambda job: None

    def plan(self, batch: int, cycle: int) -> messages.Plan:
        """Wait for it; other plans that arrive first are queued."""
        while (batch, cycle) not in self._plans:
            self.receive()
        return self._plans.pop((batch, cycle))

    def has_plan(self, batch: int, cycle: int, timeout_s: float) -> bool:
        """Return whether it is here, or the next message comes in this time and is this plan."""
        if (batch, cycle) not in self._plans:
            self.look(timeout_s)
        return (batch, cycle) in self._plans

    def peers(self) -> messages.Peers:
        """Wait for all workers' addresses."""
        while self._peers is None:
            self.receive()
        peers, self._peers = self._peers, None
        return peers

    def called(self) -> None:
        """Wait until all are to meet again, whatever else comes."""
        with contextlib.suppress(RegroupError):
            while True:
                self.receive()

    def look(self, timeout_s: float = 0.0) -> None:
        """Take what has come, if anything: a worker that waits for others must not miss that they are lost.

        Stop at a plan: messages after it are for a worker that has started it.
        """
        plans = len(self._plans)
        while len(self._plans) == plans and readable(self._control, timeout_s):
            self.receive()
            timeout_s = 0.0

    def left_over(self) -> list[messages.Plan]:
        """Return the plans that have come and were not begun, in order."""
        plans, self._plans = sorted(self._plans.values(), key=lambda plan: plan.cycle), {}
        return plans

    def receive(self) -> None:
        try:
            message = messages.receive(self._control, Deadline(FOREVER_S))
        except PeerLostError as error:
            raise EndedError from error
        match message:
            case messages.Plan(batch, cycle):
                self._plans[batch, cycle] = message
            case messages.Compute() | messages.Forget():
                self.take(message)
            case messages.Peers():
                self._peers = message
            case messages.Regroup():
                self._peers = None
                self.call = message
                raise RegroupError
            case messages.Order("records"):
                for part in self._recorder.messages():
                    self.send(part)
            case messages.Order("forget"):
                self._recorder.forget()
            case messages.Order("arena"):
                self.send(self.check())
            case messages.Order("end"):
                raise EndedError
            case _:
                raise messages.unexpected(message, "the front end")

    def send(self, message: messages.FromWorker) -> None:
        try:
            messages.send(self._control, message, Deadline(MEETING_S))
        except PeerLostError as error:
            raise EndedError from error


class Context(NamedTuple):
    """The context shared by workers of all roles."""

    config: WorkerConfig
    front: FrontEndLink
    recorder: Recorder
    heartbeat: Heartbeat
