"""The sending end of a channel over gloo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.frame import HEADER, Spans, after, distance
from lamina.fhbn.gloo_end import FRAMES, PAYLOADS, GlooEnd
from lamina.fhbn.torch_distributed import SENDER, flat_bytes


class GlooSender(GlooEnd):
    """Sends a small message at once, a large one as a header and a body.

    gloo sends nothing before the other side has said where to put it, so that the receiver's free slots are
    this end's credits without another word. A `send` that timed out has broken the channel.
    """

    def __init__(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> None:
        super().__init__(control, spec, deadline, SENDER)
        self._slots = spec.slots
        self._first = self._next = spec.first_seqno
        self._frame = torch.zeros(self._framing.frame_bytes, dtype=torch.uint8)
        self._frame_bytes = self._frame.numpy().data
        self._staging: torch.Tensor | None = None

    @property
    def next_seqno(self) -> int:
        """Of the next message to send."""
        return self._next

    @property
    def consumed(self) -> int:
        """All before it are released; more may be. The receiver says nothing but where the next may be put.

        A message that was taken while all slots had been used has got the slot of one that was released, and
        slots are given back in order.
        """
        if distance(self._first, self._next) <= self._slots:
            return self._first
        return (self._next - self._slots) % (1 << 64)

    def send(self, *buffers: object, timeout_s: float | None = None) -> None:
        """Send them as the parts of one message; waits while the receiver has no free slot."""
        self._require_open()
        deadline = self._deadline(timeout_s)
        parts = [_bytes_of(buffer) for buffer in buffers]
        sizes = [len(part) for part in parts]
        spans = self._framing.spans(sizes)
        self._framing.write(self._frame_bytes, self._next, sizes)
        if spans.total <= self._framing.inline:
            _gather(self._frame_bytes[HEADER.size :], parts, spans)
            tensors = [(self._frame[: HEADER.size + spans.total], FRAMES)]
        else:
            body = self._body(buffers, parts, spans)
            tensors = [(self._frame[: HEADER.size], FRAMES), (body, PAYLOADS)]
        late = f"{self.peer} has not given back any of the channel's {self._slots} slots in time"
        self._begin()
        for work in [self._posted(*tensor) for tensor in tensors]:
            self._wait(work, deadline, late)
        self._next = after(self._next)
        self._finish()

    def _posted(self, tensor: Any, tag: int) -> Any:
        # Of a group that was lost meanwhile: its fate is the wait's to tell, and that of the work is too.
        try:
            return self._group.send([tensor], self._other, tag)
        except RuntimeError as error:
            return _Failed(error)

    def _body(self, buffers: Sequence[object], parts: Sequence[memoryview], spans: Spans) -> Any:
        """One tensor of all parts: the part itself where there is one, else a copy of them."""
        if len(parts) == 1 and not parts[0].readonly:
            whole = buffers[0]
            return flat_bytes(whole) if isinstance(whole, torch.Tensor) else _tensor_over(parts[0])
        if self._staging is None:
            self._staging = torch.zeros(self._framing.room, dtype=torch.uint8)
        _gather(self._staging.numpy().data, parts, spans)
        return self._staging[: spans.total]


class _Failed:
    """A send that gloo refused to begin."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, _: object) -> None:
        raise self._error


def _bytes_of(buffer: Any) -> memoryview:
    """The bytes of a contiguous array or tensor, where they are."""
    if isinstance(buffer, torch.Tensor):
        if not buffer.is_cpu:
            raise TypeError("a tensor to send must be in host memory")
        return cast(memoryview, flat_bytes(buffer).numpy().data)
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(
            "a message is made of contiguous arrays and tensors in host memory, and of bytes"
        ) from None
    if not view.c_contiguous:
        raise ValueError("an array to send must be contiguous")
    if view.format == "B" and view.ndim == 1:
        return view
    # memoryview casts few formats; numpy takes all of them for bytes.
    return np.frombuffer(view, np.uint8).data if view.nbytes else memoryview(b"")


def _tensor_over(part: memoryview) -> torch.Tensor:
    return torch.frombuffer(part, dtype=torch.uint8)


def _gather(into: memoryview, parts: Sequence[memoryview], spans: Spans) -> None:
    for part, (start, end) in zip(parts, spans.parts, strict=True):
        into[start:end] = part
