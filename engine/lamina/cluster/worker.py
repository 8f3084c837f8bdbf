"""What workers of all roles do: begin, meet the others, work, lose some of them and meet again, and end."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, TypeAlias

import torch

from lamina import gpu
from lamina.cluster import messages
from lamina.cluster.front_end import Context, EndedError, FrontEnd, RegroupError
from lamina.cluster.heartbeat import MEETING_S, Heartbeat
from lamina.cluster.meeting import Meeting
from lamina.cluster.messages import Failed, Listening, Lost, Ready, Regroup, Weights, WorkerConfig
from lamina.cluster.stream_recorder import StreamRecorder
from lamina.fhbn import ChannelError, Link, Listener, connect, verbs
from lamina.fhbn.control import Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelTimeoutError, HandshakeError, PeerLostError
from lamina.operators import Attended
from lamina.pipeline import Recorder

if TYPE_CHECKING:
    from lamina.cluster.attention_worker import AttentionRole
    from lamina.cluster.model_worker import ModelRole
    from lamina.cluster.prefill_worker import PrefillRole
    from lamina.convert import Conversion

Role: TypeAlias = "AttentionRole | ModelRole | PrefillRole"
# A prefill worker on a core of others leaves it to them when they decode; it gets a tenth if they never wait.
AFTER_DECODING = 10
# What the loss of another worker looks like to those that work with it.
LOST = (PeerLostError, ChannelClosedError, ChannelTimeoutError, HandshakeError)


def run(config: WorkerConfig, attended: Attended, conversion: Conversion | None, weights: Weights) -> int:
    """A worker's life; the status it ends with. An attention worker needs no conversion and no weights."""
    os.sched_setaffinity(0, {config.core})
    if config.kind == "prefill" and config.shares_cores:
        os.nice(AFTER_DECODING)
    torch.set_num_threads(1)
    gpu.take(config.device)
    if gpu.is_gpu(config.device):
        verbs.choose(*gpu.on_the_bus(config.device))
    with connect(config.address, name=config.name, secret=config.secret, timeout_s=MEETING_S) as link:
        try:
            with torch.inference_mode():
                _work(config, attended, conversion, weights, link)
        except EndedError:
            return 0
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            with contextlib.suppress(ChannelError):  # the front end may have gone too
                messages.send(link.control, Failed(_sentence(error)), Deadline(1.0))
            return 1
    return 0


def _work(
    config: WorkerConfig, attended: Attended, conversion: Conversion | None, weights: Weights, link: Link
) -> None:
    place = gpu.tensors_on(config.device)
    recorder = StreamRecorder(place) if place.type == "cuda" else Recorder()
    first = Regroup(config.epoch, config.cycle, frozenset(), config.partition)
    front = FrontEnd(link.control, recorder, first)
    with Heartbeat(config) as heartbeat:
        role = _role(Context(config, front, recorder, heartbeat), attended, conversion, weights)
        while True:
            try:
                _meet(config, front, role)
                role.work()
            except RegroupError:
                role.part()
            except LOST as error:
                role.part()  # before anything else: others may wait for this worker
                front.send(Lost(_sentence(error), front.call.epoch))
                front.called()
            heartbeat.stop()
            role.regroup()


def _role(context: Context, attended: Attended, conversion: Conversion | None, weights: Weights) -> Role:
    if context.config.kind == "attention":
        from lamina.cluster.attention_worker import AttentionRole

        return AttentionRole(context, attended)
    # These bring transformers too.
    from lamina.cluster.model_worker import ModelRole
    from lamina.cluster.prefill_worker import PrefillRole

    assert conversion is not None
    role = ModelRole if context.config.kind == "model" else PrefillRole
    return role(context, attended, conversion, weights)


def _meet(config: WorkerConfig, front: FrontEnd, role: Role) -> None:
    with Listener(config.name, config.secret, host=config.host) as listener:
        epoch = front.call.epoch
        front.send(Listening(listener.address, epoch))
        with contextlib.closing(Meeting(config, front, listener, front.peers())) as meeting:
            role.meet(meeting)
    front.send(Ready(epoch, meeting.networks))


def _sentence(error: BaseException) -> str:
    why = str(error).strip().split("\n", 1)[0]
    return why if isinstance(error, ChannelError | ValueError) and why else f"{type(error).__name__}: {why}"
