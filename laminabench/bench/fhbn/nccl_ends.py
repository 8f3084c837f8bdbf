"""The two ends of a channel over NCCL, and its messages. Not verified on hardware."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch

from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Control, Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelError, ChannelTimeoutError
from lamina.fhbn.torch_distributed import (
    HEADER,
    RECEIVER,
    SENDER,
    Framing,
    GroupEnd,
    RetainedMessage,
    Spans,
    after,
    distance,
    flat_bytes,
    met,
    patience,
)

# Frames have a fixed size, as both sides of NCCL must know it beforehand.
_MOST_INLINE = 4096
_CLOSING_S = 1.0


class _NcclEnd(GroupEnd):
    engine = "nccl"

    def __init__(self, control: Control, spec: ChannelSpec, deadline: Deadline, rank: int) -> None:
        super().__init__(control, spec, rank, partial(Framing, most_inline=_MOST_INLINE))
        self._next = spec.first_seqno
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._host = torch.zeros(HEADER.size, dtype=torch.uint8).pin_memory()
        self._header: memoryview = self._host.numpy().data

        def make(store: Any) -> Any:
            kind: Any = torch.distributed.ProcessGroupNCCL
            options = kind.Options()
            options._timeout = patience(deadline.left_s)
            group = kind(store, rank, 2, options)
            # NCCL connects at the first transfer, which must be now, while the other side takes part.
            first = torch.zeros(1, dtype=torch.uint8, device=self._device)
            move = group.send if rank == SENDER else group.recv
            move([first], self._other, 0).wait(patience(deadline.left_s))
            return group

        self._group, self._store = met(control, deadline, make)

    @property
    def next_seqno(self) -> int:
        return self._next

    def _done(self, work: Any, deadline: Deadline) -> None:
        try:
            work.wait(patience(deadline.left_s))
        except RuntimeError as error:
            self._ended = self._broken("a failure")
            raise ChannelTimeoutError(f"{self.peer} did not take part in a transfer in time") from error

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(RuntimeError):
                group.abort()


class NcclSender(_NcclEnd):
    """A sender of a small message at once, a large one as a header and a body, both from device memory."""

    def __init__(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> None:
        super().__init__(control, spec, deadline, SENDER)
        self._first = spec.first_seqno
        self._frame = torch.zeros(self._framing.frame_bytes, dtype=torch.uint8, device=self._device)

    @property
    def consumed(self) -> int:
        """The first sequence number: NCCL does not report which messages were released."""
        return self._first

    def send(self, *buffers: object, timeout_s: float | None = None) -> None:
        """Send CUDA tensors as the parts of one message, and wait until NCCL has sent them."""
        self._require_open()
        deadline = self._deadline(timeout_s)
        parts = [_device_bytes(buffer) for buffer in buffers]
        sizes = [part.numel() for part in parts]
        spans = self._framing.spans(sizes)
        self._begin()
        self._framing.write(self._header, self._next, sizes)
        self._frame[: HEADER.size].copy_(self._host)
        if spans.total <= self._framing.inline:
            _gather(self._frame[HEADER.size :], parts, spans)
            self._move(self._frame, deadline)
        else:
            body = torch.empty(spans.total, dtype=torch.uint8, device=self._device)
            _gather(body, parts, spans)
            self._move(self._frame, deadline)
            self._move(body, deadline)
        self._next = after(self._next)
        self._finish()

    def _move(self, tensor: Any, deadline: Deadline) -> None:
        self._done(self._group.send([tensor], self._other, 0), deadline)

    def close(self) -> None:
        """Send the end of the channel to the receiver, if it listens."""
        if self._group is not None and self._ended is None:
            self._framing.write_end(self._header, self._next)
            self._frame[: HEADER.size].copy_(self._host)
            with contextlib.suppress(ChannelError):
                self._move(self._frame, Deadline(_CLOSING_S))
        super().close()


class NcclReceiver(_NcclEnd):
    """A receiver of each message into a slot of device memory."""

    def __init__(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> None:
        super().__init__(control, spec, deadline, RECEIVER)
        self._consumed = spec.first_seqno
        self._slots = spec.slots
        self._given_back = [False] * spec.slots
        room = max(self._framing.room, self._framing.frame_bytes)
        self._memory = torch.empty((spec.slots, room), dtype=torch.uint8, device=self._device)

    @property
    def consumed(self) -> int:
        return self._consumed

    def recv(self, timeout_s: float | None = None) -> NcclMessage:
        """Wait for the next message; its parts are there for every stream."""
        self._require_open()
        if distance(self._consumed, self._next) >= self._slots:
            raise ChannelError(
                f"all {self._slots} slots of the channel from {self.peer} hold messages that were "
                "not released"
            )
        deadline = self._deadline(timeout_s)
        slot = self._memory[self._next % self._slots]
        frame = slot[: self._framing.frame_bytes]
        self._begin()
        self._done(self._group.recv([frame], self._other, 0), deadline)
        self._host.copy_(frame[: HEADER.size])
        if self._framing.is_end(self._header, self._next):
            raise self._end_with(ChannelClosedError, f"{self.peer} has closed the channel")
        spans = self._checked(self._header, self._next)
        body = frame[HEADER.size :]
        if spans.total > self._framing.inline:
            body = slot[: spans.total]
            self._done(self._group.recv([body], self._other, 0), deadline)
        message = NcclMessage(self, self._next, [body[start:end] for start, end in spans.parts])
        self._next = after(self._next)
        self._finish()
        return message

    def ready(self, timeout_s: float = 0.0) -> bool:  # noqa: ARG002 - it has no answer
        """Raise a ChannelError: NCCL cannot report whether a message has arrived without waiting for it."""
        raise ChannelError(f"whether {self.peer} has sent something, NCCL does not tell: call recv()")

    def give_back(self, seqno: int) -> None:
        self._given_back[seqno % self._slots] = True
        while self._given_back[slot := self._consumed % self._slots]:
            self._given_back[slot] = False
            self._consumed = after(self._consumed)


class NcclMessage(RetainedMessage):
    """A received message: CUDA tensors of bytes, where they arrived. It occupies its slot until release()."""

    __slots__ = ("_parts",)

    def __init__(self, receiver: NcclReceiver, seqno: int, parts: list[Any]) -> None:
        super().__init__(receiver.give_back, seqno)
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Any:
        return self._parts[index]


def _device_bytes(buffer: Any) -> Any:
    if not isinstance(buffer, torch.Tensor) or not buffer.is_cuda:
        raise TypeError("a message over NCCL is made of contiguous CUDA tensors")
    return flat_bytes(buffer)


def _gather(into: Any, parts: list[Any], spans: Spans) -> None:
    for part, (start, end) in zip(parts, spans.parts, strict=True):
        into[start:end].copy_(part)
