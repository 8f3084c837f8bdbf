"""The engine for two machines with ConnectX NICs: work requests of our own in the NIC's queues.

Not verified on hardware. The connection is made as by `verbs`; what goes into the queues, and how the NIC is
rung, is the code that `softnic` drives. libmlx5 shows where the queues and the registers are.
"""

from __future__ import annotations

from lamina._native import ConnectxWriter, NicReceiver, NicSender, mlx5_port
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelError
from lamina.fhbn.place import Place
from lamina.fhbn.ring import new_ring
from lamina.fhbn.terms import Terms
from lamina.fhbn.verbs import connected, device


def missing(here: Place, there: Place) -> str | None:  # noqa: ARG001 - a NIC reaches other machines, and its own
    """A ConnectX with a port that is up, and libmlx5."""
    try:
        mlx5_port(device())
    except ChannelError as error:
        return str(error)
    return None


def receiver(control: Control, terms: Terms, deadline: Deadline) -> NicReceiver:
    """Make the ring, and let the peer write to it."""
    ring = new_ring(terms)
    writer = ConnectxWriter(device(), ring, mirror=False)
    return connected(NicReceiver, "mlx5", ring, writer, control, terms, deadline)


def sender(control: Control, terms: Terms, deadline: Deadline) -> NicSender:
    """Make the ring's mirror, and let the peer write to the part before its slots."""
    mirror = new_ring(terms)
    writer = ConnectxWriter(device(), mirror, mirror=True)
    return connected(NicSender, "mlx5", mirror, writer, control, terms, deadline)
