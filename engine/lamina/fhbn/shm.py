"""The engine for two processes of one user on one machine: shared memory, one copy in, none out.

The receiver's memory has no name. It is handed to the sender as an open file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lamina._native import ShmReceiver, ShmSender
from lamina.fhbn import handover
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.place import Place
from lamina.fhbn.ring import Joined, attached, called, new_ring

NEEDS = "two processes of one user on one machine"
VERIFIED = "yes"


def missing(here: Place, there: Place) -> str | None:
    """Memory is shared on one machine only."""
    return handover.impossible(here, there)


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> ShmReceiver:
    """Make the ring and hand it to the sender."""
    with joined(control, spec, deadline, sends=False) as (segment, peer, watched, _):
        return ShmReceiver(segment, peer, watched, timeout_s=spec.timeout_s, spin_s=spec.spin_s)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> ShmSender:
    """Take the receiver's ring."""
    with joined(control, spec, deadline, sends=True) as (segment, peer, watched, _):
        return ShmSender(segment, peer, watched, timeout_s=spec.timeout_s, spin_s=spec.spin_s)


@contextlib.contextmanager
def joined(control: Control, spec: ChannelSpec, deadline: Deadline, *, sends: bool) -> Iterator[Joined]:
    """Hand the ring over, or fetch it and see that it is what was offered."""
    with contextlib.ExitStack() as met:
        if sends:
            connection = met.enter_context(handover.visit(control, deadline))
            _, descriptor = met.enter_context(handover.taken(connection, control, deadline))
            segment = attached(descriptor, spec, control)
        else:
            segment = new_ring(spec)
            connection = met.enter_context(handover.meeting_point(control, deadline))
            handover.give(connection, b"ring", segment.descriptor, control, deadline)
        watched = met.enter_context(handover.watched(connection))
        yield Joined(segment, called(control, spec), watched)
