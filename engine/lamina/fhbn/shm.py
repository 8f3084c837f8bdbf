"""The engine for two processes of one user on one machine: shared memory, one copy in, none out.

The receiver's memory has no name. It is handed to the sender as an open file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from lamina._native import NicReceiver, NicSender, ShmReceiver, ShmSegment, ShmSender
from lamina.fhbn import fd_passing, rings
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Control, Deadline, Place
from lamina.fhbn.errors import HandshakeError

AnyEnd = TypeVar("AnyEnd", NicReceiver, NicSender)


class Joined(NamedTuple):
    """The resources of an end, once it and the peer's are connected."""

    segment: Any  # the RingMemory, or a mirror of it where messages are put together
    peer: str
    watched: tuple[int, ...]  # descriptors that show its end; to be copied
    writer: Any = None  # what posts to the NIC, where there is one
    place: rings.Place = rings.ON_THE_HOST


class NicEngine:
    """An engine (see `engines.Engine`) whose rings a NIC writes to."""

    def __init__(self, name: str, needs: str, verified: str) -> None:
        self.name = name
        self.NEEDS = needs
        self.VERIFIED = verified

    def missing(self, here: Place, there: Place) -> str | None:
        """Return why this process cannot use it with that place, in words that follow "because"; None if it
        can.
        """
        raise NotImplementedError

    def joined(
        self, control: Control, spec: ChannelSpec, deadline: Deadline, *, sends: bool, gpu: str | None = None
    ) -> AbstractContextManager[Joined]:
        """Yield an end's resources once the peer has its own; the watched descriptors stay open meanwhile.

        `gpu`: what it is on, if that is one.
        """
        raise NotImplementedError

    def receiver(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> NicReceiver:
        """Receive in a ring of our own, which the peer's NIC writes to."""
        return self._end(NicReceiver, control, spec, deadline)

    def sender(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> NicSender:
        """Send from a mirror of the receiver's ring."""
        return self._end(NicSender, control, spec, deadline)

    def _end(self, kind: type[AnyEnd], control: Control, spec: ChannelSpec, deadline: Deadline) -> AnyEnd:
        with self.joined(control, spec, deadline, sends=kind is NicSender) as made:
            return kind(
                made.segment, made.writer, made.peer, made.watched,
                engine=self.name, timeout_s=spec.timeout_s, spin_s=spec.spin_s,
            )  # fmt: skip


def attached(descriptor: int, spec: ChannelSpec, control: Control) -> ShmSegment:
    """Return the peer's ring, verified against its offer."""
    try:
        segment = ShmSegment.attach(descriptor)
    except ValueError as error:
        raise HandshakeError("channel-ring", f"{control.peer}: {error}") from error
    shape = (segment.message_bytes, segment.slots, segment.epoch, segment.first_seqno)
    if shape != (spec.message_bytes, spec.slots, spec.epoch, spec.first_seqno):
        raise HandshakeError(
            "channel-ring", f"{control.peer} has handed over another ring than it had offered"
        )
    return segment


def called(control: Control, spec: ChannelSpec) -> str:
    """Return the other end of a channel, as errors call it."""
    return f"{control.peer} (channel {spec.name})"


NEEDS = "two processes of one user on one machine"
VERIFIED = "yes"


def missing(here: Place, there: Place) -> str | None:
    """Refuse another machine: memory is shared on one only."""
    return fd_passing.impossible(here, there)


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> ShmReceiver:
    """Make the ring and hand it to the sender."""
    with joined(control, spec, deadline, sends=False) as (segment, peer, watched, *_):
        return ShmReceiver(segment, peer, watched, timeout_s=spec.timeout_s, spin_s=spec.spin_s)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> ShmSender:
    """Take the receiver's ring."""
    with joined(control, spec, deadline, sends=True) as (segment, peer, watched, *_):
        return ShmSender(segment, peer, watched, timeout_s=spec.timeout_s, spin_s=spec.spin_s)


@contextlib.contextmanager
def joined(
    control: Control, spec: ChannelSpec, deadline: Deadline, *, sends: bool, gpu: str | None = None
) -> Iterator[Joined]:
    """Hand the ring over, or fetch it and see that it is what was offered.

    It lies in the host's memory, whatever the ends are on: either may be on the host, and not all GPUs reach
    each other.
    """
    del gpu
    with contextlib.ExitStack() as met:
        if sends:
            connection = met.enter_context(fd_passing.visit(control, deadline))
            _, descriptor = met.enter_context(fd_passing.taken(connection, control, deadline))
            segment = attached(descriptor, spec, control)
        else:
            segment = rings.new_ring(spec)
            connection = met.enter_context(fd_passing.meeting_point(control, deadline))
            fd_passing.give(connection, b"ring", segment.descriptor, control, deadline)
        watched = met.enter_context(fd_passing.watched(connection))
        yield Joined(segment, called(control, spec), watched)
