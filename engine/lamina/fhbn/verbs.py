"""The engines for two machines with RDMA devices: libibverbs, posted to by the host, or by us on a ConnectX.

The sender's NIC writes messages into the receiver's memory, and the receiver's NIC what was consumed into the
sender's. Each end sends its address over the control connection, which later only shows whether the other
process still runs. Nothing is encrypted, and a NIC's keys are easily guessed: use a private network.

LAMINA_RDMA_DEVICE names the device, or the device and its port as in mlx5_0:1; with several, one behind the
other with commas, a worker takes that of its GPU's number. Without it, it is the nearest to the GPU, one that
is on the network over which the two have met, or the first whose port is up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lamina._native import ConnectxWriter, VerbsWriter, mlx5_port, verbs_port
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Control, Deadline, Place, WireMessage, field
from lamina.fhbn.errors import ChannelError, HandshakeError
from lamina.fhbn.nic.bus import nearest, ports_on_the_way
from lamina.fhbn.rings import registered
from lamina.fhbn.shm import Joined, NicEngine, called

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


def device() -> str:
    """Return the requested device and port; nothing if any is acceptable."""
    return os.environ.get(_VARIABLE, "")


def choose(number: int, gpu: str | None) -> None:
    """Choose a device for this process and its GPU's number and bus address."""
    named = device().split(",")
    if len(named) > 1:
        os.environ[_VARIABLE] = named[number % len(named)]
    elif not device() and gpu is not None and (near := nearest(gpu)):
        os.environ[_VARIABLE] = near


def off_the_way(here: Place, there: Place, own_host: str) -> str | None:
    """Return why it is unknown whether a device here reaches that place, in words that follow "because"."""
    if here.machine == there.machine:
        return "the two are on one machine"
    if device() or ports_on_the_way(own_host):
        return None
    return f"no RDMA device has the address {own_host} by which the two have met: {_VARIABLE} names another"


class Quality(NamedTuple):
    """The quality of service of a lossless network."""

    service_level: int
    traffic_class: int


def quality() -> Quality:
    """Read the quality of service from the environment; raise a HandshakeError if it is invalid."""
    return Quality(_number("LAMINA_RDMA_SERVICE_LEVEL", 15), _number("LAMINA_RDMA_TRAFFIC_CLASS", 255))


def _number(variable: str, most: int) -> int:
    value = os.environ.get(variable, "0")
    if not value.isdecimal() or int(value) > most:
        raise HandshakeError("channel-quality", f"{variable} is {value!r}: give 0 to {most}")
    return int(value)


class VerbsEngine(NicEngine):
    """libibverbs makes the connection; `writer` posts to it."""

    def __init__(
        self,
        name: str,
        needs: str,
        verified: str,
        writer: Callable[..., VerbsWriter | ConnectxWriter],
        port: Callable[[str], str],
    ) -> None:
        super().__init__(name, needs, verified)
        self._writer = writer
        self._port = port  # the one that would be used; ChannelError if there is none

    def missing(self, here: Place, there: Place) -> str | None:  # noqa: ARG002 - a NIC reaches other machines, and its own
        """Return why no port is usable, or None.

        Whether the port reaches the peer is known after the first message.
        """
        try:
            quality()
            self._port(device())
        except ChannelError as error:
            setting = f" ({_VARIABLE} is {device()!r})" if device() else ""
            return f"{error}{setting}"
        return None

    @contextlib.contextmanager
    def joined(
        self, control: Control, spec: ChannelSpec, deadline: Deadline, *, sends: bool, gpu: str | None = None
    ) -> Iterator[Joined]:
        """Make the ring, or the mirror of which the peer may write to the part before its slots."""
        nic = device() or "".join(ports_on_the_way(control.own_host)[:1])
        own, writer, place = registered(spec, gpu, lambda ring: self._writer(nic, ring, mirror=sends))
        control.send_message(writer.address, deadline)
        message = control.receive_message(deadline)
        address: WireMessage = {name: field(message, name, of, control.peer) for name, of in _ADDRESS.items()}
        peer = called(control, spec)
        try:
            level, kind = quality()
            writer.connect(**address, peer=peer, service_level=level, traffic_class=kind)
        except (TypeError, ValueError) as error:
            raise HandshakeError(
                "channel-message", f"{control.peer} has sent an address that cannot be"
            ) from error
        # Kept open beyond the link: only it shows from another machine that the peer has ended.
        control.notice_silence()
        yield Joined(own, peer, (control.fileno(),), writer, place)


VERBS = VerbsEngine(
    "verbs",
    "an RDMA device with an active port, through libibverbs",
    "on soft-RoCE, not on a NIC",
    VerbsWriter,
    verbs_port,
)
# Work requests of our own in a ConnectX's queues, by the code that `softnic` drives; libmlx5 shows where the
# queues and the registers are.
MLX5 = VerbsEngine(
    "mlx5",
    "a ConnectX (provider mlx5), through libibverbs and libmlx5",
    "not on hardware",
    ConnectxWriter,
    mlx5_port,
)
