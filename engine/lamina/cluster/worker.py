"""What all kinds of workers have in common: how they begin, meet, hear of plans, lose each other and meet
again, and end.
"""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from lamina.cluster import told
from lamina.cluster.config import Weights, WorkerConfig
from lamina.cluster.heartbeat import Heartbeat
from lamina.fhbn import ChannelError, Link, Listener, connect
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelTimeoutError, HandshakeError, PeerLostError
from lamina.operators import Attended
from lamina.pipeline import BatchDelta, Recorder

if TYPE_CHECKING:
    from lamina.convert import Conversion

# Nobody says anything while nobody wants anything.
_FOREVER_S = 1e9
MEETING_S = 60.0
# What somebody else's end looks like to those who work with him.
LOST = (PeerLostError, ChannelClosedError, ChannelTimeoutError, HandshakeError)


class EndedError(Exception):
    """The front end wants no more."""


class RegroupError(Exception):
    """The front end wants all workers to meet anew."""


class Plan(NamedTuple):
    """A batch's part of a cycle."""

    delta: BatchDelta
    iteration: int  # of the batch; of a cycle that it sits out, the one to come
    active: bool
    afresh: bool  # what was known of the batch is forgotten first
    # Model workers: of names in `partial` only the attention workers in `lacking` want the KV again.
    lacking: frozenset[int]
    partial: frozenset[int]

    @staticmethod
    def heard(message: dict[str, Any]) -> Plan:
        """As the front end has said it."""
        return Plan(
            BatchDelta.heard(message),
            message["iteration"],
            message["active"],
            message.get("afresh", False),
            frozenset(message.get("lacking", ())),
            frozenset(message.get("partial", ())),
        )


class Call(NamedTuple):
    """The front end's wish that workers meet."""

    epoch: int  # how often they have met before
    cycle: int  # the first one afterwards
    flying: frozenset[int]  # batches whose last iteration has not landed
    partition: dict[str, Any]  # how attention is dealt out from now on


class FrontEnd:
    """The front end, as a worker has it: it says what is to be done, and is told what has been."""

    def __init__(self, control: Control, recorder: Recorder) -> None:
        self._control = control
        self._recorder = recorder
        self._plans: dict[tuple[int, int], Plan] = {}
        self._orders: deque[dict[str, Any]] = deque()  # what is said to prefill workers
        self._peers: dict[str, str] | None = None
        self.call = Call(0, 0, frozenset(), {})
        self.check: Any = None  # what an attention worker answers when asked whether all is well

    def plan(self, batch: int, cycle: int) -> Plan:
        """Wait for it; others' that come first are kept."""
        while (batch, cycle) not in self._plans:
            self._hear()
        return self._plans.pop((batch, cycle))

    def has_plan(self, batch: int, cycle: int, timeout_s: float) -> bool:
        """Whether it has been said, or something is said in this time and that is it."""
        if (batch, cycle) not in self._plans:
            self.look(timeout_s)
        return (batch, cycle) in self._plans

    def hear(self, *, wait: bool) -> dict[str, Any] | None:
        """What prefill workers are asked next; without waiting None if nothing has been said."""
        if not wait:
            self.look()
        while wait and not self._orders:
            self._hear()
        return self._orders.popleft() if self._orders else None

    def peers(self) -> dict[str, str]:
        """Wait for everybody's address."""
        while self._peers is None:
            self._hear()
        peers, self._peers = self._peers, None
        return peers

    def called(self) -> None:
        """Wait until all are to meet again, whatever else is said."""
        try:
            while True:
                self._hear()
        except RegroupError:
            return

    def look(self, timeout_s: float = 0.0) -> None:
        """Hear what has been said, if anything: whoever waits for others does not want to wait in vain.

        Up to a plan: what is asked after it is asked of a worker that has begun it.
        """
        plans = len(self._plans)
        while len(self._plans) == plans and select.select([self._control], [], [], timeout_s)[0]:
            self._hear()
            timeout_s = 0.0

    def left_over(self) -> list[tuple[int, Plan]]:
        """Plans that were heard and not begun, with their batches, in the order in which they were made."""
        plans, self._plans = sorted(self._plans.items(), key=lambda item: item[0][1]), {}
        return [(batch, plan) for (batch, _), plan in plans]

    def _hear(self) -> None:
        try:
            message = told.hear(self._control, Deadline(_FOREVER_S))
        except PeerLostError as error:
            raise EndedError from error
        if "end" in message:
            raise EndedError
        if "regroup" in message:
            self._peers = None
            self._orders.clear()
            flying = frozenset(message["flying"])
            self.call = Call(message["regroup"], message["cycle"], flying, message["partition"])
            raise RegroupError
        if "peers" in message:
            self._peers = message["peers"]
        elif "report" in message:
            for part in self._recorder.messages():
                self.say(part)
        elif "check" in message:
            self.say({"checked": self.check()})
        elif "compute" in message or "forget" in message:
            self._orders.append(message)
        else:
            self._plans[message["batch"], message["cycle"]] = Plan.heard(message)

    def say(self, message: dict[str, Any]) -> None:
        """To the front end."""
        told.say(self._control, message, Deadline(MEETING_S))


class Role(Protocol):
    """What a worker does."""

    @property
    def network(self) -> str:
        """What moves its messages."""

    def meet(self, listener: Listener, addresses: dict[str, str]) -> None:
        """Open the channels to others."""

    def part(self) -> None:
        """Close them: whoever waits at their other ends hears of it."""

    def regroup(self) -> None:
        """Be ready to begin again at the call's cycle, after some have been lost."""

    def work(self) -> None:
        """Turn by turn, until the front end wants no more."""


def run(config: WorkerConfig, model: Conversion | Attended, weights: Weights) -> int:
    """A worker's life; the status it ends with. An attention worker is given no more than it attends to."""
    os.sched_setaffinity(0, {config.core})
    torch.set_num_threads(1)
    with connect(config.address, name=config.name, secret=config.secret, timeout_s=MEETING_S) as link:
        try:
            with torch.inference_mode():
                _work(config, model, weights, link)
        except EndedError:
            return 0
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            _tell(link, error)
            return 1
    return 0


def _work(config: WorkerConfig, model: Conversion | Attended, weights: Weights, link: Link) -> None:
    recorder = Recorder()
    front = FrontEnd(link.control, recorder)
    front.call = Call(config.epoch, config.cycle, frozenset(), config.partition)
    with Heartbeat(config) as heartbeat:
        role = _role(config, model, weights, front, recorder, heartbeat)
        while True:
            try:
                _meet(config, front, role)
                role.work()
            except RegroupError:
                role.part()
            except LOST as error:
                role.part()  # before anything else: others may wait for this worker
                front.say({"lost": _sentence(error), "epoch": front.call.epoch})
                front.called()
            role.regroup()


def _role(
    config: WorkerConfig,
    model: Conversion | Attended,
    weights: Weights,
    front: FrontEnd,
    recorder: Recorder,
    heartbeat: Heartbeat,
) -> Role:
    if config.kind == "attention":
        from lamina.cluster.attention_worker import AttentionRole

        return AttentionRole(config, Attended(model.attentions, model.dtype), front, recorder, heartbeat)
    # These bring transformers too.
    from lamina.cluster.model_worker import ModelRole
    from lamina.cluster.prefill_worker import PrefillRole

    assert not isinstance(model, Attended)
    if config.kind == "model":
        return ModelRole(config, model, weights, front, recorder, heartbeat)
    return PrefillRole(config, model, weights, front, heartbeat)


def _meet(config: WorkerConfig, front: FrontEnd, role: Role) -> None:
    with Listener(config.name, config.secret, host=config.host) as listener:
        epoch = front.call.epoch
        front.say({"address": listener.address, "epoch": epoch})
        role.meet(listener, front.peers())
    front.say({"ready": True, "epoch": epoch, "network": role.network})


def _tell(link: Link, error: BaseException) -> None:
    """The front end, if it still hears: why this worker cannot go on."""
    try:
        link.control.say({"failed": _sentence(error)}, Deadline(1.0))
    except ChannelError:
        return


def _sentence(error: BaseException) -> str:
    why = str(error).strip().split("\n", 1)[0]
    return why if isinstance(error, ChannelError | ValueError) and why else f"{type(error).__name__}: {why}"
