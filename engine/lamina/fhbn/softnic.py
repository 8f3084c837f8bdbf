"""A test bench for channels over an mlx5 NIC, on one machine and without one: the NIC is a thread.

The two ends make the work requests that a ConnectX reads, and ring for them as for one; a softnic does what
they say. It goes through all of the code that would drive the NIC, and says nothing about how fast RDMA is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from weakref import WeakValueDictionary

from lamina._native import NicReceiver, NicSender, ShmSegment, SoftNic, SoftWriter
from lamina.fhbn import handover
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control, field
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import HandshakeError
from lamina.fhbn.place import Place
from lamina.fhbn.ring import Joined, attached, called, new_ring

NEEDS = "two processes of one user on one machine"
VERIFIED = "a test bench"

_REGISTERED = struct.Struct("<QQI")  # address, bytes, key
# One for all channels of a process, while there are any. A fork has none: its parent's thread is not in it.
_nics: WeakValueDictionary[int, SoftNic] = WeakValueDictionary()


def missing(here: Place, there: Place) -> str | None:
    """A softnic writes to memory that both processes have."""
    return handover.impossible(here, there)


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> NicReceiver:
    """Receive in a ring of our own."""
    with made_ring(control, spec, deadline) as joined:
        return NicReceiver(*joined, engine="softnic", timeout_s=spec.timeout_s, spin_s=spec.spin_s)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> NicSender:
    """Send from a mirror of the receiver's ring."""
    with made_mirror(control, spec, deadline) as joined:
        return NicSender(*joined, engine="softnic", timeout_s=spec.timeout_s, spin_s=spec.spin_s)


@contextlib.contextmanager
def made_ring(control: Control, spec: ChannelSpec, deadline: Deadline) -> Iterator[Joined[SoftWriter]]:
    """The receiver's half: make the ring and its queue pair."""
    ring = new_ring(spec)
    writer = SoftWriter(nic(), ring, mirror=False)
    with handover.meeting_point(control, deadline) as connection:
        _give(connection, ring, writer, control, deadline)
        _take(connection, writer, control, spec, deadline)
        with handover.watched(connection) as watched:
            yield Joined(ring, writer, called(control, spec), watched)


@contextlib.contextmanager
def made_mirror(control: Control, spec: ChannelSpec, deadline: Deadline) -> Iterator[Joined[SoftWriter]]:
    """The sender's half: make the ring's mirror and its queue pair."""
    mirror = new_ring(spec)
    writer = SoftWriter(nic(), mirror, mirror=True)
    with handover.visit(control, deadline) as connection:
        # In this order: until it has been visited, the receiver hears words as a refusal.
        _take(connection, writer, control, spec, deadline)
        _give(connection, mirror, writer, control, deadline)
        with handover.watched(connection) as watched:
            yield Joined(mirror, writer, called(control, spec), watched)


def nic() -> SoftNic:
    """This process's."""
    own = _nics.get(os.getpid())
    if own is None:
        own = _nics[os.getpid()] = SoftNic()
    return own


def _give(
    connection: socket.socket, own: ShmSegment, writer: SoftWriter, control: Control, deadline: Deadline
) -> None:
    """Let the peer have our memory, and know what it is registered as.

    That goes with the memory, as what the peer's NIC would know; and over the connection, as a peer across a
    network would say it: what the requests contain.
    """
    handover.give(connection, _REGISTERED.pack(*writer.registered_as), own.descriptor, control, deadline)
    address, size, key = writer.registered_as
    control.say({"memory": address, "bytes": size, "rkey": key}, deadline)


def _take(
    connection: socket.socket, writer: SoftWriter, control: Control, spec: ChannelSpec, deadline: Deadline
) -> None:
    """Have the peer's memory, and write to it from now on."""
    with handover.taken(connection, control, deadline) as (registered, descriptor):
        peers = attached(descriptor, spec, control)
    message = control.hear(deadline)
    address, size, key = (field(message, name, int, control.peer) for name in ("memory", "bytes", "rkey"))
    try:
        known_as = _REGISTERED.unpack(registered)
        writer.connect(peers, known_as=known_as, told=(address, size, key), peer=called(control, spec))
    except (TypeError, ValueError, struct.error) as error:
        raise HandshakeError(
            "channel-message", f"{control.peer} has registered memory that cannot be"
        ) from error
