"""How the ends of a channel on a GPU are opened, over each engine that has such."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from lamina._native import ConnectxWriter, SoftWriter
from lamina.fhbn import mlx5, shm, softnic
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.device import DeviceReceiver, DeviceSender
from lamina.fhbn.ring import Joined

AnyEnd = TypeVar("AnyEnd", DeviceSender, DeviceReceiver)
# Over a NIC the two ends have memory of their own; shared memory is one for both.
_Made = Callable[
    [Control, ChannelSpec, Deadline], AbstractContextManager[Joined[SoftWriter] | Joined[ConnectxWriter]]
]
_RINGS: dict[str, _Made] = {"mlx5": mlx5.made_ring, "softnic": softnic.made_ring}
_MIRRORS: dict[str, _Made] = {"mlx5": mlx5.made_mirror, "softnic": softnic.made_mirror}


def receiver(
    engine: str, device: str, control: Control, spec: ChannelSpec, deadline: Deadline
) -> DeviceReceiver:
    """Make a ring, let the sender or its NIC write there, and receive on a stream of this GPU."""
    if engine in _RINGS:
        with _RINGS[engine](control, spec, deadline) as joined:
            return _over_a_nic(DeviceReceiver, joined, engine, device, spec)
    with shm.made_ring(control, spec, deadline) as ring:
        return DeviceReceiver(*ring, timeout_s=spec.timeout_s, device=device)


def sender(engine: str, device: str, control: Control, spec: ChannelSpec, deadline: Deadline) -> DeviceSender:
    """Take the receiver's ring, or make a mirror of it for the NIC, and send on a stream of this GPU."""
    if engine in _MIRRORS:
        with _MIRRORS[engine](control, spec, deadline) as joined:
            return _over_a_nic(DeviceSender, joined, engine, device, spec)
    with shm.taken_ring(control, spec, deadline) as ring:
        return DeviceSender(*ring, timeout_s=spec.timeout_s, device=device)


def _over_a_nic(
    kind: type[AnyEnd],
    joined: Joined[SoftWriter] | Joined[ConnectxWriter],
    engine: str,
    device: str,
    spec: ChannelSpec,
) -> AnyEnd:
    return kind(
        joined.segment,
        joined.peer,
        joined.watched,
        timeout_s=spec.timeout_s,
        device=device,
        engine=engine,
        writer=joined.writer,
    )
