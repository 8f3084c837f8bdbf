"""Messages as tensors: where they arrived in the host's memory, or copied from the ring by a GPU's stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from lamina.fhbn.channel import Message


class Part(NamedTuple):
    """The dtype and shape of one part of a message."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class ReceivingEnd(Protocol):
    """The receiving end of a channel on a GPU."""

    @property
    def device(self) -> torch.device:
        """The device that tensors must be on."""

    def recv_into(self, *tensors: Tensor) -> None:
        """Copy the next message, on the stream."""


class DeviceMessage:
    """The next message of an end on a GPU: only its stream waits for it."""

    def __init__(self, receiver: ReceivingEnd) -> None:
        self._receiver = receiver

    def copied(self, parts: Sequence[Part]) -> list[Tensor]:
        """Return all of its parts; its slot goes back. Whole numbers are 0 if the channel fails before it
        comes: what is behind on the stream runs all the same, and must not take what they were for an index.
        """
        place, tensors = self._receiver.device, []
        for dtype, shape in parts:
            new = torch.empty if dtype.is_floating_point else torch.zeros
            tensors.append(new(shape, dtype=dtype, device=place))
        self._receiver.recv_into(*tensors)
        return tensors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Mark its slot as released."""


def views(message: Message | DeviceMessage, *parts: Part) -> list[Tensor]:
    """Return all parts of a message: good as long as it is not released, where they are in the host's
    memory.
    """
    if isinstance(message, DeviceMessage):
        return message.copied(parts)
    return [
        torch.frombuffer(message[number], dtype=dtype).view(shape)
        for number, (dtype, shape) in enumerate(parts)
    ]


def copies(message: Message | DeviceMessage, *parts: Part) -> list[Tensor]:
    """Return copies of the tensors, to keep."""
    tensors = views(message, *parts)
    return tensors if isinstance(message, DeviceMessage) else [tensor.clone() for tensor in tensors]
