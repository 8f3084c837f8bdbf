"""The engine for two processes of one user on one machine: shared memory, one copy in, none out.

The receiver's memory has no name. It is handed to the sender as an open file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from lamina._native import ShmReceiver, ShmSegment, ShmSender
from lamina.fhbn import handover
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.place import Place
from lamina.fhbn.ring import attached, called, new_ring

NEEDS = "two processes of one user on one machine"
VERIFIED = "yes"


def missing(here: Place, there: Place) -> str | None:
    """Memory is shared on one machine only."""
    return handover.impossible(here, there)


class Handed(NamedTuple):
    """A ring that two processes have, and for one of them the other one's name."""

    segment: ShmSegment
    peer: str
    watched: tuple[int, ...]  # descriptors that tell of its end; to be copied


def receiver(control: Control, spec: ChannelSpec, deadline: Deadline) -> ShmReceiver:
    """Make the ring and hand it to the sender."""
    with made_ring(control, spec, deadline) as ring:
        return ShmReceiver(*ring, timeout_s=spec.timeout_s, spin_s=spec.spin_s)


def sender(control: Control, spec: ChannelSpec, deadline: Deadline) -> ShmSender:
    """Take the receiver's ring."""
    with taken_ring(control, spec, deadline) as ring:
        return ShmSender(*ring, timeout_s=spec.timeout_s, spin_s=spec.spin_s)


@contextlib.contextmanager
def made_ring(control: Control, spec: ChannelSpec, deadline: Deadline) -> Iterator[Handed]:
    """The receiver's half: make the ring and hand it over."""
    segment = new_ring(spec)
    with handover.meeting_point(control, deadline) as connection:
        handover.give(connection, b"ring", segment.descriptor, control, deadline)
        with handover.watched(connection) as watched:
            yield Handed(segment, called(control, spec), watched)


@contextlib.contextmanager
def taken_ring(control: Control, spec: ChannelSpec, deadline: Deadline) -> Iterator[Handed]:
    """The sender's half: fetch the ring, and see that it is what was offered."""
    with (
        handover.visit(control, deadline) as connection,
        handover.taken(connection, control, deadline) as (_, descriptor),
    ):
        segment = attached(descriptor, spec, control)
        with handover.watched(connection) as watched:
            yield Handed(segment, called(control, spec), watched)
