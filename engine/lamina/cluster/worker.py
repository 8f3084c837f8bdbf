"""The life of a worker of any role: begin, meet the others, work, meet again after losses, end."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

import torch

from lamina import gpu
from lamina.cluster import messages
from lamina.cluster.front_end_link import Context, EndedError, FrontEndLink, RegroupError
from lamina.cluster.heartbeat import FOREVER_S, MEETING_S, Heartbeat
from lamina.cluster.meeting import Meeting
from lamina.cluster.messages import Failed, Listening, Lost, Ready, Regroup, Weights, WorkerConfig
from lamina.cluster.recorders import DeviceRecorder, StreamRecorder
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
# After which a thread that launches lets others of its process launch, should it not stop by itself.
SWITCH_S = 0.1e-3
# What the loss of another worker looks like to those that work with it.
LOST = (PeerLostError, ChannelClosedError, ChannelTimeoutError, HandshakeError)


def run(
    configs: Sequence[WorkerConfig], attended: Attended, conversion: Conversion | None, weights: Weights
) -> int:
    """Return the life of a process: of one worker, or of several on one GPU, each a thread that has a stream
    of its own. The status it ends with. An attention worker needs no conversion and no weights.
    """
    together = Together()
    lives = [partial(_live, config, attended, conversion, weights, together) for config in configs]
    if len(lives) == 1:
        return lives[0]()
    if any(gpu.is_gpu(config.device) for config in configs):
        gpu.load_all_kernels()
    sys.setswitchinterval(SWITCH_S)
    statuses: SimpleQueue[int] = SimpleQueue()
    for life in lives:
        Thread(target=_watch, args=(life, statuses), daemon=True).start()
    # One that fails ends all of them.
    return next((status for status in (statuses.get(timeout=FOREVER_S) for _ in lives) if status), 0)


def _watch(life: Callable[[], int], statuses: SimpleQueue[int]) -> None:
    status = 1
    try:
        status = life()
    finally:
        statuses.put(status)


class Together:
    """The workers of one process, with the meeting that each was at last."""

    def __init__(self) -> None:
        self._met: dict[str, tuple[Role, int]] = {}

    def meets(self, name: str, role: Role, epoch: int) -> None:
        self._met[name] = role, epoch

    def part(self, name: str) -> None:
        """Hang up one worker, which waits for the GPU: nothing of the others may wait there for it."""
        own, epoch = self._met[name]
        for role, met in list(self._met.values()):
            if role is not own and met <= epoch:
                role.abort()
        own.part()


def _live(
    config: WorkerConfig,
    attended: Attended,
    conversion: Conversion | None,
    weights: Weights,
    together: Together,
) -> int:
    os.sched_setaffinity(0, {config.core})  # a thread's
    if config.kind == "prefill" and config.shares_cores:
        os.nice(AFTER_DECODING)
    torch.set_num_threads(1)
    gpu.take(config.device)
    if gpu.is_gpu(config.device):
        verbs.choose(*gpu.on_the_bus(config.device))
    with (
        gpu.own_stream(gpu.tensors_on(config.device)),
        connect(config.address, name=config.name, secret=config.secret, timeout_s=MEETING_S) as link,
    ):
        try:
            with torch.inference_mode():
                _work(config, attended, conversion, weights, together, link)
        except EndedError:
            return 0
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            with contextlib.suppress(ChannelError):  # the front end may be lost too
                messages.send(link.control, Failed(_sentence(error)), Deadline(1.0))
            return 1
    return 0


def _work(
    config: WorkerConfig,
    attended: Attended,
    conversion: Conversion | None,
    weights: Weights,
    together: Together,
    link: Link,
) -> None:
    recorder = _recorder(config, attended)
    first = Regroup(config.epoch, config.cycle, frozenset(), config.partition)
    front = FrontEndLink(link.control, recorder, first)
    with Heartbeat(config) as heartbeat:
        role = _role(Context(config, front, recorder, heartbeat), attended, conversion, weights)
        heartbeat.hung_up = role.abort  # else a kernel of it may wait until the process is killed
        while True:
            together.meets(config.name, role, front.call.epoch)
            try:
                _meet(config, front, role)
                role.work()
            except RegroupError:
                together.part(config.name)
            except LOST as error:
                together.part(config.name)  # before anything else: others may wait for this worker
                front.send(Lost(_sentence(error), front.call.epoch))
                front.called()
            heartbeat.stop()
            role.regroup()


def _recorder(config: WorkerConfig, attended: Attended) -> Recorder:
    """Return the recorder of the device or of the host, which does the work."""
    if attended.emulated:
        return DeviceRecorder(attended.emulated)
    place = gpu.tensors_on(config.device)
    return StreamRecorder(place) if place.type == "cuda" else Recorder()


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


def _meet(config: WorkerConfig, front: FrontEndLink, role: Role) -> None:
    with Listener(config.name, config.secret, host=config.host) as listener:
        epoch = front.call.epoch
        front.send(Listening(listener.address, epoch, front.kv_copy))
        with contextlib.closing(Meeting(config, front, listener, front.peers())) as meeting:
            role.meet(meeting)
    front.send(Ready(epoch, meeting.networks, *meeting.kv_copied))


def _sentence(error: BaseException) -> str:
    why = str(error).strip().split("\n", 1)[0]
    return why if isinstance(error, ChannelError | ValueError) and why else f"{type(error).__name__}: {why}"
