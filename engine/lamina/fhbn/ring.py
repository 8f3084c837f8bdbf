"""The memory that a channel's ring lies in, as its receiver makes it and its sender sees it."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from lamina import host_memory
from lamina._native import NicWriter, ShmSegment
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.errors import HandshakeError

AnyWriter = TypeVar("AnyWriter", bound=NicWriter)


class Joined(NamedTuple, Generic[AnyWriter]):
    """What an end over a NIC consists of, once its queue pair and the peer's know of each other."""

    segment: ShmSegment  # the ring, or the mirror of it where messages are put together
    writer: AnyWriter
    peer: str
    watched: tuple[int, ...]  # descriptors that tell of its end; to be copied


def new_ring(spec: ChannelSpec) -> ShmSegment:
    """A ring of this channel's shape, or HandshakeError if there is no memory for it."""
    shape = spec.message_bytes, spec.slots
    needed, free = ShmSegment.bytes_for(*shape), host_memory.free_bytes()
    if needed > free:
        raise HandshakeError(
            "channel-memory",
            f"channel {spec.name} takes {needed:,} bytes for {spec.slots} messages of "
            f"{spec.message_bytes:,}, and {free:,} bytes of memory are free: make them smaller or fewer",
        )
    return ShmSegment.create(*shape, epoch=spec.epoch, first_seqno=spec.first_seqno)


def attached(descriptor: int, spec: ChannelSpec, control: Control) -> ShmSegment:
    """The peer's ring, seen to be what was offered."""
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
    """The other end of a channel, as errors call it."""
    return f"{control.peer} (channel {spec.name})"
