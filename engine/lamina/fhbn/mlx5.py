"""The engine for two machines with ConnectX NICs: work requests of our own in the NIC's queues.

Not verified on hardware. The connection is made as by `verbs`; what goes into the queues, and how the NIC is
rung, is the code that `softnic` drives. libmlx5 shows where the queues and the registers are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lamina._native import ConnectxWriter, NicReceiver, NicSender, mlx5_port
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.place import Place
from lamina.fhbn.ring import Joined, new_ring
from lamina.fhbn.verbs import connected, device, why_not

NEEDS = "a ConnectX (provider mlx5), through libibverbs and libmlx5"
VERIFIED = "not on hardware"


def missing(here: Place, there: Place) -> str | None:  # noqa: ARG001 - a NIC reaches other machines, and its own
    """A ConnectX with a port that is up, and libmlx5."""
    return why_not(mlx5_port)


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> NicReceiver:
    """Receive in a ring of our own."""
    with made_ring(control, spec, deadline) as joined:
        return NicReceiver(*joined, engine="mlx5", timeout_s=spec.timeout_s, spin_s=spec.spin_s)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> NicSender:
    """Send from a mirror of the receiver's ring."""
    with made_mirror(control, spec, deadline) as joined:
        return NicSender(*joined, engine="mlx5", timeout_s=spec.timeout_s, spin_s=spec.spin_s)


@contextlib.contextmanager
def made_ring(control: Control, spec: ChannelSpec, deadline: Deadline) -> Iterator[Joined[ConnectxWriter]]:
    """Make the ring, and let the peer write to it."""
    ring = new_ring(spec)
    yield connected(ring, ConnectxWriter(device(), ring, mirror=False), control, spec, deadline)


@contextlib.contextmanager
def made_mirror(control: Control, spec: ChannelSpec, deadline: Deadline) -> Iterator[Joined[ConnectxWriter]]:
    """Make the ring's mirror, and let the peer write to the part before its slots."""
    mirror = new_ring(spec)
    yield connected(mirror, ConnectxWriter(device(), mirror, mirror=True), control, spec, deadline)
