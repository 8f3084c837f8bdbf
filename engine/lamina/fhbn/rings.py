"""Placement of a NIC channel's ring or mirror: in the host's memory, or in a GPU's.

An end on a GPU has it there if its NIC reaches that, by a dmabuf of it or by the module nvidia-peermem, so
that kernels look for messages in memory of their own. LAMINA_FHBN_RING=host keeps it from that, and with
"device" a channel whose ring cannot be there is refused. What the other end has is its own business. Not
verified on hardware.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from lamina import host_memory
from lamina._native import DeviceRing, RingMemory, ShmSegment
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.errors import ChannelError, HandshakeError

VARIABLE = "LAMINA_FHBN_RING"
HOST = "host memory"
WAYS = ("dmabuf", "nvidia-peermem")


class Place(NamedTuple):
    """The way in which an end's NIC reaches its ring: one of WAYS, or HOST."""

    name: str = HOST
    because: str = ""  # why it is not a GPU's memory, of an end on a GPU


ON_THE_HOST = Place()


class Registered(NamedTuple):
    """A ring, and what its NIC writes by."""

    memory: RingMemory
    writer: Any
    place: Place


class _Shape(ctypes.Structure):
    _fields_ = (
        ("message_bytes", ctypes.c_uint64),
        ("first_seqno", ctypes.c_uint64),
        ("slots", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
    )


def new_ring(spec: ChannelSpec) -> ShmSegment:
    """Return a ring of this channel's shape, or HandshakeError if there is no memory for it."""
    shape = spec.message_bytes, spec.slots
    needed, free = ShmSegment.bytes_for(*shape), host_memory.free_bytes()
    if needed > free:
        raise HandshakeError(
            "channel-memory",
            f"channel {spec.name} takes {needed:,} bytes for {spec.slots} messages of "
            f"{spec.message_bytes:,}, and {free:,} bytes of memory are free: make them smaller or fewer",
        )
    return ShmSegment.create(*shape, epoch=spec.epoch, first_seqno=spec.first_seqno)


def registered(spec: ChannelSpec, gpu: str | None, register: Callable[[RingMemory], Any]) -> Registered:
    """Return a ring of this channel's shape that the NIC knows: of an end on a GPU, on that if it can be."""
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", "host", "device"):
        raise HandshakeError("channel-ring-asked", f"{VARIABLE} is {setting!r}: give host or device")
    why = f"{VARIABLE} is host" if setting else ""
    if gpu is not None and setting != "host":
        refused = {}
        for way in WAYS:
            try:
                memory = _on_device(spec, gpu, by_file=way == "dmabuf")
                return Registered(memory, register(memory), Place(way))
            except _refusals() as error:
                refused[str(error)] = way
        why = "; ".join(refused)
        if setting:
            raise HandshakeError("channel-ring-on-host", f"{VARIABLE} is device, and {why}")
    ring = new_ring(spec)
    return Registered(ring, register(ring), Place(HOST, why))


def _refusals() -> tuple[type[Exception], ...]:
    from lamina.cuda_library import CudaError

    return ChannelError, CudaError


def _on_device(spec: ChannelSpec, place: str, *, by_file: bool) -> DeviceRing:
    from lamina import cuda_library, gpu

    gpu.require()
    made = ctypes.create_string_buffer(DeviceRing.made_bytes)
    shape = _Shape(spec.message_bytes, spec.first_seqno, spec.slots, spec.epoch)
    with gpu.current(gpu.tensors_on(place)):
        cuda_library.call("ring_create", shape, by_file, made)
    return DeviceRing(
        made.raw,
        message_bytes=shape.message_bytes,
        slots=shape.slots,
        epoch=shape.epoch,
        first_seqno=shape.first_seqno,
    )
