"""Both ends of a channel over gloo: they send, receive, wait, notice the other's end, and say goodbye.

torch's public functions make one group of all processes, while a channel is a group of two among others: so
`ProcessGroupGloo` is made here. Nor is there a call that shows, without a wait that breaks the group when it
ends, whether a message has begun to arrive: that is read where gloo writes it.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import ProcessGroupGloo

from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Control, Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelError, ChannelTimeoutError, PeerLostError
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
    own_host,
    patience,
)

FRAMES, PAYLOADS, GOODBYE = 0, 1, 2  # tags
_GOODBYE_S = 1.0


class GlooEnd(GroupEnd):
    """A group of two with the state of one end."""

    engine = "gloo"

    def __init__(self, control: Control, spec: ChannelSpec, deadline: Deadline, rank: int) -> None:
        super().__init__(control, spec, rank, Framing)
        host = own_host(control, deadline)

        def make(store: Any) -> Any:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
            options._threads = 1
            options._timeout = patience(deadline.left_s)
            return ProcessGroupGloo(store, rank, 2, options)

        self._group, self._store = met(control, deadline, make)
        # Taken up by gloo at once, whatever else waits: what comes here is no part of the order of messages.
        self._goodbye = torch.zeros(1, dtype=torch.uint8)
        self._goodbye_work = self._expect(self._goodbye, GOODBYE)

    def _expect(self, tensor: Any, tag: int) -> Any:
        """Have gloo write the next message of this tag into the tensor."""
        return self._group.recv([tensor], self._other, tag)

    def _wait(self, work: Any, deadline: Deadline, late: str) -> None:
        try:
            work.wait(patience(deadline.left_s))
        except RuntimeError as error:
            raise self._lost(deadline, late) from error

    def _lost(self, deadline: Deadline, late: str) -> ChannelError:
        """Return the error for a failure of gloo. Its text is for people; the elapsed time decides."""
        if self._peer_has_closed():
            return self._end_with(ChannelClosedError, f"{self.peer} has closed the channel")
        if deadline.left_s == 0:
            self._ended = self._broken("a timeout")
            return ChannelTimeoutError(late)
        return self._end_with(PeerLostError, f"{self.peer} has ended without closing the channel")

    def _peer_has_closed(self) -> bool:
        with contextlib.suppress(RuntimeError):
            self._goodbye_work.wait(patience(0))
            return bool(self._goodbye[0])
        return False

    def close(self) -> None:
        """Say goodbye and hang up. gloo has given all that was sent to the network by then."""
        if self._group is None:
            return
        group, self._group = self._group, None
        if self._ended is None:
            with contextlib.suppress(RuntimeError):
                goodbye = torch.ones(1, dtype=torch.uint8)
                group.send([goodbye], self._other, GOODBYE).wait(patience(_GOODBYE_S))
        self._forget()
        del group

    def _forget(self) -> None:
        """Abandon what gloo has not done yet."""
        self._goodbye_work = None

    def __del__(self) -> None:
        # At interpreter exit torch may be unloaded already; the peer then sees the connection break.
        if self._group is not None and not sys.is_finalizing():
            self.close()


Bytes = NDArray[np.uint8]
_SEQNO = np.dtype("<u8")  # what a frame's header begins with
_NOT = (1 << 64) - 1  # the seqno with all its bits turned: no byte of it is left as it was
_LOOK_EVERY_S = 50e-6


class GlooReceiver(GlooEnd):
    """A receiver that keeps every free slot open for gloo to write to, in order.

    A slot is opened again when its message and all before it were released, so that nothing that is held is
    overwritten, and the sender waits as it does for slots in shared memory. A `recv` that timed out has
    broken the channel.
    """

    def __init__(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> None:
        super().__init__(control, spec, deadline, RECEIVER)
        self._mask = spec.slots - 1
        self._next = self._consumed = spec.first_seqno
        self._frames = _Open(spec.slots, self._framing.frame_bytes, FRAMES, spec.first_seqno)
        large = self._framing.room > self._framing.inline
        self._payloads = _Open(spec.slots if large else 0, self._framing.room, PAYLOADS, 0)
        for buffers in (self._frames, self._payloads):
            for _ in buffers.works:
                buffers.open_next(self)
        self._large = 0  # messages with a payload
        self._has_payload = [False] * spec.slots
        self._given_back = [False] * spec.slots
        self._giving_back = False
        # Unreleased messages, to notice a deleted one. A __del__ would also run for those that were
        # released, in the middle of the loop that uses them, and what a signal raises in there is lost.
        self._messages: list[weakref.ref[GlooMessage] | None] = [None] * spec.slots

    @property
    def next_seqno(self) -> int:
        """The number of the next message to receive."""
        return self._next

    @property
    def consumed(self) -> int:
        """The first message that was not released."""
        return self._consumed

    def recv(self, timeout_s: float | None = None) -> GlooMessage:
        """Wait for the next message. It lies in its slot until it is released."""
        self._require_open()
        if distance(self._consumed, self._next) > self._mask:
            raise ChannelError(
                f"all {self._mask + 1} slots of the channel from {self.peer} hold messages that were "
                "not released"
            )
        deadline = self._deadline(timeout_s)
        late = f"nothing came from {self.peer} in time"
        self._begin()
        frame = self._frames.taken(self, self._next, deadline, late)
        spans = self._checked(frame.data, self._next)
        slot = self._next & self._mask
        self._has_payload[slot] = spans.total > self._framing.inline
        if self._has_payload[slot]:
            body = self._payloads.taken(self, self._large, deadline, late)
            self._large += 1
        else:
            body = frame[HEADER.size :]
        message = GlooMessage(self, self._next, body, spans)
        seqno = self._next
        self._messages[slot] = weakref.ref(message, lambda _: self._give_back(seqno))
        self._next = after(self._next)
        self._finish()
        return message

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Return whether the next message has begun to arrive, now or in this time.

        gloo knows of a wait that ends with a message or with the channel, and of no question: so it is looked
        at what lies where gloo writes.
        """
        deadline = Deadline(timeout_s)
        while not self._begun:
            if deadline.left_s == 0:
                return False
            time.sleep(min(deadline.left_s, _LOOK_EVERY_S))
        return True

    @property
    def _begun(self) -> bool:
        # If no slot is released, the next one has a message that was received already.
        return distance(self._consumed, self._next) <= self._mask and self._frames.touched(self._next)

    def _give_back(self, seqno: int) -> None:
        self._messages[seqno & self._mask] = None
        self._given_back[seqno & self._mask] = True
        if self._giving_back or self._group is None:
            return
        # Another message may end while this one's slot is opened, wherever memory is collected.
        self._giving_back = True
        try:
            while self._given_back[slot := self._consumed & self._mask]:
                self._given_back[slot] = False
                if self._has_payload[slot]:
                    self._payloads.open_next(self)
                self._frames.open_next(self)
                self._consumed = after(self._consumed)
        finally:
            self._giving_back = False

    def _forget(self) -> None:
        super()._forget()
        self._frames.works.clear()
        self._payloads.works.clear()


class _Open:
    """Buffers that gloo writes to in turn; number n is buffer n modulo their count, a power of two."""

    def __init__(self, count: int, size: int, tag: int, first: int) -> None:
        self._tag = tag
        self._mask = count - 1
        # Not touched before something is written there: large slots that are never used cost nothing.
        self._tensors = [torch.empty(size, dtype=torch.uint8) for _ in range(count)]
        self._arrays: list[Bytes] = [tensor.numpy() for tensor in self._tensors]
        self._seqnos = [array[: _SEQNO.itemsize].view(_SEQNO) for array in self._arrays]
        self.works: list[Any] = [None] * count
        self._last = first

    def open_next(self, end: GlooReceiver) -> None:
        at = self._last & self._mask
        # The group was lost: recv() raises when it reaches this buffer.
        self.works[at] = None
        self._untouched(at)
        with contextlib.suppress(RuntimeError):
            self.works[at] = end._expect(self._tensors[at], self._tag)
        self._last = after(self._last)

    def _untouched(self, at: int) -> None:
        """Put what no message begins with where one will begin."""
        if self._tag == FRAMES:
            self._seqnos[at][:] = self._last ^ _NOT

    def touched(self, number: int) -> bool:
        """Return whether something of frame `number` has been written."""
        return int(self._seqnos[number & self._mask][0]) != number ^ _NOT

    def taken(self, end: GlooReceiver, number: int, deadline: Deadline, late: str) -> Bytes:
        at = number & self._mask
        work = self.works[at]
        if work is None:
            raise end._lost(deadline, late)
        end._wait(work, deadline, late)
        return self._arrays[at]


class _Part(np.ndarray[Any, Any]):
    """The owner of a part's memoryview; it keeps the message alive."""

    message: GlooMessage


class GlooMessage(RetainedMessage):
    """A received message: memoryviews of its parts, where they arrived."""

    __slots__ = ("_body", "_spans")

    def __init__(self, receiver: GlooReceiver, seqno: int, body: Bytes, spans: Spans) -> None:
        super().__init__(receiver._give_back, seqno)
        self._body = body
        self._spans = spans.parts

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> memoryview:
        if not -len(self._spans) <= index < len(self._spans):
            raise IndexError("a message has no such part")
        start, end = self._spans[index]
        part = self._body[start:end].view(_Part)
        part.message = self
        return part.data


class GlooSender(GlooEnd):
    """A sender of a small message at once, a large one as a header and a body.

    gloo sends nothing before the other side has posted a buffer, so that the receiver's free slots are
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
        """The number of the next message to send."""
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
        # Of a group that was lost meanwhile: the wait reports that, also for the work.
        try:
            return self._group.send([tensor], self._other, tag)
        except RuntimeError as error:
            return _Failed(error)

    def _body(self, buffers: Sequence[object], parts: Sequence[memoryview], spans: Spans) -> Any:
        """Return one tensor of all parts: the part itself where there is one, else a copy of them."""
        if len(parts) == 1 and not parts[0].readonly:
            single = buffers[0]
            return flat_bytes(single) if isinstance(single, torch.Tensor) else _tensor_over(parts[0])
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
    """Return the bytes of a contiguous array or tensor, where they are."""
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
