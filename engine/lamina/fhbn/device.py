"""The ends of a channel on an NVIDIA GPU: messages sent and received by kernels on a stream.

Not verified on hardware: compiled for sm_80 and sm_90, its kernels tested on the host only.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import stat
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import ClassVar, Self

import torch
from torch import Tensor

from lamina import cuda_library
from lamina._native import (
    ChannelClosedError,
    ChannelCorruptedError,
    ChannelError,
    ChannelTimeoutError,
    PeerLostError,
    ShmSegment,
)
from lamina.cuda_library import CudaError
from lamina.fhbn import shm
from lamina.fhbn.channel import MOST_PARTS
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline, seconds
from lamina.fhbn.terms import Terms

_SENDS, _RECEIVES = 0, 1
_ERRORS: dict[int, type[ChannelError]] = {
    4: ChannelTimeoutError,
    5: PeerLostError,
    6: ChannelClosedError,
    7: ChannelCorruptedError,
    8: ChannelError,
}


class _Channel(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("side", ctypes.c_int32),
        ("timeout_ns", ctypes.c_int64),
        ("peer", ctypes.c_char_p),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class _DeviceEnd:
    """What both ends have in common. What they put on a stream runs later; no call waits for it.

    Calls may be captured in a CUDA graph, and each replay sends or receives the next message. Use an end on
    one stream at a time, and ask check() before relying on what was received: from its first failure on an
    end does nothing, and what is behind it on the stream runs all the same. Keep it for as long as graphs
    that use it are replayed.
    """

    engine = "shm"
    _side: ClassVar[int]

    def __init__(
        self,
        segment: ShmSegment,
        peer: str,
        watched: Sequence[int] = (),
        *,
        timeout_s: float,
        device: torch.device | str = "cuda",
    ) -> None:
        self._end = ctypes.c_void_p()
        self._watch: _Watch | None = None
        cuda_library.call("check_device")
        if not torch.cuda.is_available():
            raise CudaError("this torch is built without CUDA, whose tensors a device's channel needs")
        self.device = torch.device(device)
        if self.device.index is None:  # the one that is current now, whatever is later
            self.device = torch.device(self.device.type, torch.cuda.current_device())
        self.peer = peer
        self.first_seqno = segment.first_seqno  # of the first message: where one that takes over begins
        self._segment = segment  # stays mapped
        timeout_ns = int(seconds(timeout_s) * 1e9)
        channel = _Channel(segment.address, segment.nbytes, self._side, timeout_ns, peer.encode())
        with torch.cuda.device(self.device):
            cuda_library.call("channel_create", channel, ctypes.byref(self._end))
        if watched:
            self._watch = _Watch(watched, self._abort_of(ctypes.c_void_p(self._end.value)))

    def _abort_of(self, end: ctypes.c_void_p) -> Callable[[], None]:
        """What the watch calls. It keeps this object no longer than the call takes, and as long."""
        this = weakref.ref(self)

        def abort() -> None:
            if (kept := this()) is not None:
                cuda_library.call("channel_abort", end)
            del kept  # which may be the last there is of it: __del__ runs here, in the watch's thread

        return abort

    def check(self) -> None:
        """Raise what the device has found wrong by now, as a ChannelError; waits for nothing."""
        status, sentence = cuda_library.ask("channel_check", self._open())
        if status:
            raise _ERRORS.get(status, CudaError)(sentence)

    def abort(self) -> None:
        """The peer has ended: end the waits for it, once all that it had published is received.

        Called when the peer's process ends, if one of `watched` tells of it, as on a link they do.
        """
        cuda_library.call("channel_abort", self._open())

    def close(self) -> None:
        """Wait for the device and tell the peer that there will be nothing more.

        What still waits on a stream is ended as by abort(); synchronise with it before to let it come to
        its end.
        """
        if self._end.value is None:
            return
        end, self._end = self._end, ctypes.c_void_p()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        try:
            cuda_library.call("channel_destroy", end)
        finally:
            if watch is not None:  # the peer sees the ring closed before it sees the connection gone
                watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _open(self) -> ctypes.c_void_p:
        if self._end.value is None:
            raise ChannelClosedError(f"the channel with {self.peer} was closed at this end")
        return self._end

    def _launch(
        self, name: str, tensors: tuple[Tensor, ...] | None, stream: torch.cuda.Stream | None
    ) -> None:
        """A call that puts work on a stream, torch's current one if none is named."""
        end = self._open()
        parts = [] if tensors is None else [buffers_of(tensors, self.device), len(tensors)]
        with torch.cuda.device(self.device):
            on = torch.cuda.current_stream() if stream is None else stream
            cuda_library.call(f"channel_{name}", end, *parts, on.cuda_stream)
            for tensor in tensors or ():
                tensor.record_stream(on)  # its memory is not given to others before


class _Watch:
    """A thread that waits for the peer to end, which a kernel that waits for it cannot see."""

    def __init__(self, watched: Sequence[int], ended: Callable[[], None]) -> None:
        with ExitStack() as opened:
            self._running, stopping = (opened.enter_context(end) for end in socket.socketpair())
            waiting = select.poll()
            waiting.register(stopping, select.POLLIN)
            for descriptor in watched:
                kept = os.dup(descriptor)
                opened.callback(os.close, kept)
                # A pidfd is readable when its process has ended, and a socket hangs up.
                is_socket = stat.S_ISSOCK(os.fstat(kept).st_mode)
                waiting.register(kept, select.POLLRDHUP if is_socket else select.POLLIN)
            self._thread = threading.Thread(
                target=_watch, args=(waiting, stopping.fileno(), ended), name="lamina-fhbn-watch", daemon=True
            )
            self._thread.start()
            self._opened = opened.pop_all()

    def stop(self) -> None:
        """It calls nobody after this."""
        self._running.shutdown(socket.SHUT_WR)
        # It may be that thread in which the end is collected as garbage. It then finds that it is to stop, or
        # has called already.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close(self) -> None:
        """Let go of what was watched."""
        self._opened.close()


def _watch(waiting: select.poll, stopping: int, ended: Callable[[], None]) -> None:
    if stopping not in dict(waiting.poll()):
        ended()


class DeviceSender(_DeviceEnd):
    """The sending end, for the process whose peer has made the segment."""

    _side = _SENDS

    def send(self, *tensors: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Send up to 14 contiguous CUDA tensors as the parts of one message, when there is a free slot."""
        self._launch("send", tensors, stream)


class DeviceReceiver(_DeviceEnd):
    """The receiving end, for the process that has made the segment."""

    _side = _RECEIVES

    def recv_into(self, *tensors: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Wait for the next message, copy its parts into these tensors and give its slot back.

        There must be as many tensors as parts, none smaller than its part.
        """
        self._launch("recv", tensors, stream)

    def poll(self, stream: torch.cuda.Stream | None = None) -> None:
        """Wait for the next message, which stays in the ring until it is given back."""
        self._launch("poll", None, stream)

    def fetch_into(self, *tensors: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Copy the parts of the message that the latest poll() has found."""
        self._launch("fetch", tensors, stream)

    def give_back(self, stream: torch.cuda.Stream | None = None) -> None:
        """Let the sender write again where the oldest message lies that was not given back."""
        self._launch("give_back", None, stream)

    @property
    def message_address(self) -> int:
        """Where, in device memory, poll() describes the latest message (channel.h says how)."""
        address = ctypes.c_void_p()
        cuda_library.call("channel_describe", self._open(), ctypes.byref(address))
        return address.value or 0


def receiver(device: str, control: Control, terms: Terms, deadline: Deadline) -> DeviceReceiver:
    """Make a ring, hand it to the sender, and receive on a stream of this GPU."""
    with shm.made_ring(control, terms, deadline) as ring:
        return DeviceReceiver(*ring, timeout_s=terms.timeout_s, device=device)


def sender(device: str, control: Control, terms: Terms, deadline: Deadline) -> DeviceSender:
    """Take the receiver's ring, and send on a stream of this GPU."""
    with shm.taken_ring(control, terms, deadline) as ring:
        return DeviceSender(*ring, timeout_s=terms.timeout_s, device=device)


def buffers_of(tensors: tuple[Tensor, ...], device: torch.device) -> ctypes.Array[_Buffer]:
    """The tensors' memory, as the library is told of it; a sentence if one cannot be sent as it is."""
    if len(tensors) > MOST_PARTS:
        raise ValueError(f"a message has up to {MOST_PARTS} parts, not {len(tensors)}")
    for tensor in tensors:
        if not tensor.is_cuda:
            raise TypeError("a device's channel carries tensors in GPU memory")
        if tensor.device != device:
            raise ValueError(f"a tensor on {tensor.device} cannot go by a channel of {device}")
        if not tensor.is_contiguous():
            raise ValueError("a tensor in a message must be contiguous")
    return (_Buffer * len(tensors))(*[_Buffer(t.data_ptr(), t.nbytes) for t in tensors])
