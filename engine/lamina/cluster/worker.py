"""What model workers and attention workers have in common: how they begin, hear of plans, and end."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, NamedTuple

import torch

from lamina.cluster import told
from lamina.cluster.boot import Boot, Weights
from lamina.convert import Conversion
from lamina.fhbn import ChannelError, ChannelTimeoutError, Link, Listener, PeerLostError, connect
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.pipeline import Change, Recorder

# Nobody says anything while nobody wants anything.
_FOREVER_S = 1e9
MEETING_S = 60.0


class EndedError(Exception):
    """The front end wants no more."""


class Plan(NamedTuple):
    """A batch's part of a cycle."""

    change: Change
    iteration: int  # of the batch; of a cycle that it sits out, the one to come
    active: bool


class Front:
    """The front end, as a worker has it: it says what is to be done, and is told what has been."""

    def __init__(self, control: Control, recorder: Recorder) -> None:
        self._control = control
        self._recorder = recorder
        self._plans: dict[tuple[int, int], Plan] = {}
        self._iterations: dict[int, int] = {}
        self.check: Any = None  # what an attention worker answers when asked whether all is well

    def plan(self, batch: int, cycle: int) -> Plan:
        """Wait for it; others' that come first are kept."""
        while (batch, cycle) not in self._plans:
            self._hear()
        return self._plans.pop((batch, cycle))

    def _hear(self) -> None:
        try:
            message = told.hear(self._control, Deadline(_FOREVER_S))
        except PeerLostError as error:
            raise EndedError from error
        if "end" in message:
            raise EndedError
        if "report" in message:
            for part in self._recorder.messages():
                self.say(part)
        elif "check" in message:
            self.say({"checked": self.check()})
        else:
            batch, active = message["batch"], message["active"]
            iteration = self._iterations.get(batch, 0)
            self._plans[batch, message["cycle"]] = Plan(Change.heard(message), iteration, active)
            self._iterations[batch] = iteration + active

    def say(self, message: dict[str, Any]) -> None:
        """To the front end."""
        told.say(self._control, message, Deadline(MEETING_S))


def run(boot: Boot, conversion: Conversion, weights: Weights) -> int:
    """A worker's life; the status it ends with."""
    os.sched_setaffinity(0, {boot.core})
    torch.set_num_threads(1)
    with connect(boot.address, name=boot.name, secret=boot.secret, timeout_s=MEETING_S) as link:
        try:
            with torch.inference_mode():
                _work(boot, conversion, weights, link)
        except EndedError:
            return 0
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            _tell(link, error)
            return 1
    return 0


def _work(boot: Boot, conversion: Conversion, weights: Weights, link: Link) -> None:
    from lamina.cluster.attention_worker import AttentionRole  # noqa: PLC0415 - they import this module
    from lamina.cluster.model_worker import ModelRole  # noqa: PLC0415

    recorder = Recorder()
    front = Front(link.control, recorder)
    role: ModelRole | AttentionRole
    if boot.kind == "model":
        role = ModelRole(boot, conversion, weights, front, recorder)
    else:
        role = AttentionRole(boot, conversion, front, recorder)
    with Listener(boot.name, boot.secret) as listener:
        front.say({"address": listener.address})
        addresses: dict[str, str] = link.control.hear(Deadline(MEETING_S))["peers"]
        role.meet(listener, addresses)
    front.say({"ready": True, "network": role.network})
    role.work()


def _tell(link: Link, error: BaseException) -> None:
    """The front end, if it still hears: why this worker cannot go on."""
    why = str(error).strip().split("\n", 1)[0]
    sentence = (
        why if isinstance(error, ChannelError | ValueError) and why else f"{type(error).__name__}: {why}"
    )
    # Whoever lost somebody is not whose fault it is.
    lost = isinstance(error, PeerLostError | ChannelTimeoutError)
    try:
        link.control.say({"failed": sentence, "lost": lost}, Deadline(1.0))
    except ChannelError:
        return
