"""The engine for two machines with RDMA devices: libibverbs, posted to by the host.

The sender's NIC writes messages into the receiver's memory, and the receiver's NIC what was consumed into the
sender's. What one has to know of the other goes over the connection over which they have met; after that it
only tells whether the other process is still there. Nothing is encrypted, and a NIC's keys are easily
guessed: use a network that is yours.

LAMINA_RDMA_DEVICE names the device, or the device and its port as in mlx5_0:1; without it, it is the first
whose port is up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from lamina._native import ConnectxWriter, NicReceiver, NicSender, ShmSegment, VerbsWriter, verbs_port
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control, WireMessage, field
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelError, HandshakeError
from lamina.fhbn.place import Place
from lamina.fhbn.ring import Joined, called, new_ring

NEEDS = "an RDMA device with an active port, through libibverbs"
VERIFIED = "on soft-RoCE, not on a NIC"

_VARIABLE = "LAMINA_RDMA_DEVICE"
_ADDRESS = {
    "lid": int,
    "gid": bytes,
    "queue_pair": int,
    "first_psn": int,
    "mtu": int,
    "memory": int,
    "rkey": int,
}

OnDevice = TypeVar("OnDevice", VerbsWriter, ConnectxWriter)


def missing(here: Place, there: Place) -> str | None:  # noqa: ARG001 - a NIC reaches other machines, and its own
    """A device with a port that is up; whether it reaches the peer is seen when the first message is sent."""
    return why_not(verbs_port)


def why_not(port: Callable[[str], str]) -> str | None:
    """What `port` says against the device that was asked for."""
    try:
        port(device())
    except ChannelError as error:
        asked = f" ({_VARIABLE} is {device()!r})" if device() else ""
        return f"{error}{asked}"
    return None


def device() -> str:
    """The device and port that were asked for; nothing if any will do."""
    return os.environ.get(_VARIABLE, "")


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> NicReceiver:
    """Make the ring, and let the peer write to it."""
    ring = new_ring(spec)
    joined = connected(ring, VerbsWriter(device(), ring, mirror=False), control, spec, deadline)
    return NicReceiver(*joined, engine="verbs", timeout_s=spec.timeout_s, spin_s=spec.spin_s)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> NicSender:
    """Make the ring's mirror, and let the peer write to the part before its slots."""
    mirror = new_ring(spec)
    joined = connected(mirror, VerbsWriter(device(), mirror, mirror=True), control, spec, deadline)
    return NicSender(*joined, engine="verbs", timeout_s=spec.timeout_s, spin_s=spec.spin_s)


def connected(
    segment: ShmSegment, writer: OnDevice, control: Control, spec: ChannelSpec, deadline: Deadline
) -> Joined[OnDevice]:
    """Have this queue pair and the peer's know of each other."""
    control.say(writer.address, deadline)
    message = control.hear(deadline)
    address: WireMessage = {name: field(message, name, of, control.peer) for name, of in _ADDRESS.items()}
    peer = called(control, spec)
    try:
        writer.connect(**address, peer=peer)
    except (TypeError, ValueError) as error:
        raise HandshakeError(
            "channel-message", f"{control.peer} has sent an address that cannot be"
        ) from error
    # Kept open by the end, beyond the link: by it alone the peer's end can be noticed from afar.
    control.notice_silence()
    return Joined(segment, writer, peer, (control.fileno(),))
