"""Test engine for channels over an emulated mlx5 NIC: a thread in this process.

The two ends write the work requests of a ConnectX and ring its doorbell; a softnic executes them. This runs
all the code that would drive the NIC, and says nothing about RDMA's speed. The NIC itself is among the tests
(tests/csrc/softnic): a checkout builds it, a wheel does not have it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from weakref import WeakValueDictionary

from lamina._native import RingMemory
from lamina.fhbn import fd_passing
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Control, Deadline, Place, field
from lamina.fhbn.errors import HandshakeError
from lamina.fhbn.rings import registered
from lamina.fhbn.shm import Joined, NicEngine, attached, called

try:
    from lamina._softnic import SoftNic, SoftWriter
except ImportError:
    SoftNic = SoftWriter = None

_REGISTERED = struct.Struct("<QQI")  # address, bytes, key
# One for all channels of a process. A fork has none: its parent's thread is not in it.
_nics: WeakValueDictionary[int, SoftNic] = WeakValueDictionary()


class SoftNicEngine(NicEngine):
    """An engine whose ends map each other's memory, so that each softnic can write there."""

    def missing(self, here: Place, there: Place) -> str | None:
        """Return why not: it takes one machine, and a build with the tests' NIC."""
        if SoftNic is None:
            return "the software NIC belongs to the tests: only a checkout builds it"
        return fd_passing.impossible(here, there)

    @contextlib.contextmanager
    def joined(
        self, control: Control, spec: ChannelSpec, deadline: Deadline, *, sends: bool, gpu: str | None = None
    ) -> Iterator[Joined]:
        """Create the ring or its mirror, and its queue pair."""
        own, writer, place = registered(spec, gpu, lambda ring: SoftWriter(nic(), ring, mirror=sends))
        meet = fd_passing.visit if sends else fd_passing.meeting_point
        with meet(control, deadline) as connection:
            # In this order: until it has been visited, the receiver takes messages for a refusal.
            if sends:
                _take(connection, writer, control, spec, deadline)
            _give(connection, own, writer, control, deadline)
            if not sends:
                _take(connection, writer, control, spec, deadline)
            with fd_passing.watched(connection) as watched:
                yield Joined(own, called(control, spec), watched, writer, place)


ENGINE = SoftNicEngine("softnic", "two processes of one user on one machine", "a test bench")


def nic() -> SoftNic:
    """Return this process's NIC, created on first use."""
    own = _nics.get(os.getpid())
    if own is None:
        own = _nics[os.getpid()] = SoftNic()
    return own


def _give(
    connection: socket.socket, own: RingMemory, writer: SoftWriter, control: Control, deadline: Deadline
) -> None:
    """Send the peer this end's memory and registration.

    The registration goes with the memory, as what the peer's NIC knows, and over the control connection, as
    between machines: what requests contain.
    """
    fd_passing.give(connection, _REGISTERED.pack(*writer.registered_as), own.descriptor, control, deadline)
    address, size, key = writer.registered_as
    control.send_message({"memory": address, "bytes": size, "rkey": key}, deadline)


def _take(
    connection: socket.socket, writer: SoftWriter, control: Control, spec: ChannelSpec, deadline: Deadline
) -> None:
    """Receive the peer's memory and connect the writer to it."""
    with fd_passing.taken(connection, control, deadline) as (registered, descriptor):
        peers = attached(descriptor, spec, control)
    message = control.receive_message(deadline)
    address, size, key = (field(message, name, int, control.peer) for name in ("memory", "bytes", "rkey"))
    try:
        known_as = _REGISTERED.unpack(registered)
        writer.connect(peers, known_as=known_as, requested=(address, size, key), peer=called(control, spec))
    except (TypeError, ValueError, struct.error) as error:
        raise HandshakeError(
            "channel-message", f"{control.peer} has registered memory that cannot be"
        ) from error
