"""The ends of a channel on an NVIDIA GPU: messages sent and received by kernels on a stream.

Run on an H200 over shared memory and softnic: docs/gpu.md says what. Over mlx5 not verified on hardware.
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
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lamina import cuda_library, gpu
from lamina._native import (
    ChannelClosedError,
    ChannelCorruptedError,
    ChannelError,
    ChannelTimeoutError,
    NicError,
    PeerLostError,
    RingMemory,
)
from lamina.cuda_library import CudaError
from lamina.fhbn.channel import MOST_PARTS
from lamina.fhbn.control import seconds
from lamina.fhbn.rings import ON_THE_HOST, Place
from lamina.fhbn.tensors import DeviceMessage

# A thread that was signalled to stop has stopped, or is in a call that ends soon.
STOP_S = 5.0
LOOK_MS = 60_000


class Watch:
    """A thread that waits for the peer to end, and then calls."""

    def __init__(self, watched: Sequence[int], ended: Callable[[], None]) -> None:
        with ExitStack() as opened:
            self._running, stopping = (opened.enter_context(end) for end in socket.socketpair())
            waiting = select.poll()
            waiting.register(stopping, select.POLLIN)
            for descriptor in watched:
                copied = os.dup(descriptor)
                opened.callback(os.close, copied)
                # A pidfd is readable when its process has ended, and a socket hangs up.
                is_socket = stat.S_ISSOCK(os.fstat(copied).st_mode)
                waiting.register(copied, select.POLLRDHUP if is_socket else select.POLLIN)
            self._thread = threading.Thread(
                target=_wait, args=(waiting, stopping.fileno(), ended), name="lamina-fhbn-watch", daemon=True
            )
            self._thread.start()
            self._opened = opened.pop_all()

    def stop(self) -> None:
        """Stop the watch; no call is made afterwards."""
        self._running.shutdown(socket.SHUT_WR)
        # It may be that thread in which the end is collected as garbage. It then finds that it is to stop, or
        # has called already.
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)

    def close(self) -> None:
        """Release what was watched."""
        self._opened.close()


def _wait(waiting: select.poll, stopping: int, ended: Callable[[], None]) -> None:
    events: list[tuple[int, int]] = []
    while not events:
        events = waiting.poll(LOOK_MS)
    if stopping not in dict(events):
        ended()


# Not verified on hardware: a GPU has posted to a softnic, and to no ConnectX.
LATE, LOST, CLOSED, NIC_FAILED = 4, 5, 6, 9  # of lamina_cuda_status


class NicEnd:
    """The poster of one end's kernels to the NIC, until close() gives the queue back to the host."""

    def __init__(self, queue: Any, timeout_ns: int, peer: str, *, sends: bool) -> None:
        """Lend the queue, a LentQueue, to the current device."""
        self._queue = queue
        self._sends = sends
        self._peer = peer
        self._end = ctypes.c_void_p()
        cuda_library.call("nic_create", queue.for_device(timeout_ns), ctypes.byref(self._end))

    def attach_to(self, channel: ctypes.c_void_p) -> None:
        """Let the end's kernels post by themselves from now on."""
        cuda_library.call("channel_attach", channel, self._end)

    def poll(self, stream: gpu.Stream) -> None:
        """Wait on the stream until the NIC has done all that was posted."""
        cuda_library.call("nic_poll", self._end, stream.cuda_stream)

    def failure(self) -> tuple[int, str]:
        """Return the NIC's failure as the device has recorded it, or its cause; 0 if none matters."""
        status, sentence = cuda_library.call_status("nic_check", self._end)
        if not status:
            return 0, ""
        if status != CLOSED:
            if not self._queue.peer_has_ended:
                return status, sentence
            status, sentence = LOST, f"{self._peer} has ended and takes no more messages"
        # Its queue pair is lost. A sender needs no more credits then, and what it sent before is in the ring.
        return (status, sentence) if self._sends else (0, "")

    def abort(self) -> None:
        """End waits for the NIC."""
        cuda_library.call("nic_abort", self._end)

    def close(self) -> None:
        """Wait for the device, and have the host notify the peer of the end, if the NIC still works.

        The channel's end is to be aborted before, or else its waits are waited for.
        """
        end, self._end = self._end, ctypes.c_void_p()
        left = ctypes.create_string_buffer(self._queue.left_bytes)
        cuda_library.call("nic_destroy", end, left)
        self._queue.close(left.raw)


_SENDS, _RECEIVES = 0, 1
_ERRORS: dict[int, type[ChannelError]] = {
    LATE: ChannelTimeoutError,
    LOST: PeerLostError,
    CLOSED: ChannelClosedError,
    7: ChannelCorruptedError,
    8: ChannelError,
    NIC_FAILED: NicError,
}


class _Channel(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("side", ctypes.c_int32),
        ("on_device", ctypes.c_int32),
        ("timeout_ns", ctypes.c_int64),
        ("peer", ctypes.c_char_p),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


class _DeviceEnd:
    """The part that both ends on a stream share. Calls only enqueue work; none waits for it.

    Calls may be captured in a CUDA graph, and each replay sends or receives the next message. Use an end on
    one stream at a time, and ask check() before relying on what was received: from its first failure on an
    end does nothing, and what is behind it on the stream runs all the same. Keep it for as long as graphs
    that use it are replayed.
    """

    sends: ClassVar[bool]
    _end = ctypes.c_void_p()  # of one that was never made

    def __init__(
        self,
        segment: RingMemory,
        peer: str,
        watched: Sequence[int] = (),
        *,
        timeout_s: float,
        device: torch.device | str = "cuda",
        engine: str = "shm",
        writer: Any = None,
        place: Place = ON_THE_HOST,
    ) -> None:
        """Build the end; with a `writer` a NIC carries the messages and the segment is its ring or mirror."""
        self._end = ctypes.c_void_p()
        self._ending = threading.Lock()  # another thread may end its waits while this one closes it
        self._nic: NicEnd | None = None
        self._watch: Watch | None = None
        self._owner = os.getpid()
        gpu.require()
        self.device = gpu.tensors_on(device)
        self.engine = engine
        self.peer = peer
        self.ring = place  # where it lies
        self.first_seqno = segment.first_seqno  # of the first message: where one that takes over begins
        self._segment = segment  # stays mapped
        timeout_ns = int(seconds(timeout_s) * 1e9)
        channel = _Channel(
            segment.address,
            segment.nbytes,
            _SENDS if self.sends else _RECEIVES,
            segment.on_device,
            timeout_ns,
            peer.encode(),
        )
        try:
            with gpu.current(self.device):
                cuda_library.call("channel_create", channel, ctypes.byref(self._end))
                if writer is not None:
                    queue = writer.lend(segment, peer, watched, sends=self.sends)
                    self._nic = NicEnd(queue, timeout_ns, peer, sends=self.sends)
                    self._nic.attach_to(self._end)
            if watched:
                self._watch = Watch(watched, self._abort_of(ctypes.c_void_p(self._end.value), self._nic))
        except BaseException:
            self.close()
            raise

    def _abort_of(self, end: ctypes.c_void_p, nic: NicEnd | None) -> Callable[[], None]:
        """Return the watch's callback, which references this object only during the call."""
        this = weakref.ref(self)

        def abort() -> None:
            if (owner := this()) is not None:
                _end_waits(end, nic)
            del owner  # which may be the last there is of it: __del__ runs here, in the watch's thread

        return abort

    def share(self, fate: Tensor) -> None:
        """Share a failure flag, an integer that is 0, with other ends of this stream: once one fails, none of
        them sends or receives any more, so that nothing is computed from missing data.
        """
        cuda_library.call("channel_share", self._open(), fate.data_ptr())
        self._fate = fate  # stays as long

    def check(self) -> None:
        """Raise the device's error so far as a ChannelError, without waiting."""
        status, sentence = cuda_library.call_status("channel_check", self._open())
        # The NIC knows more of its failure, and may be why nothing came in time.
        if self._nic is not None and status in (0, LATE, NIC_FAILED):
            failure = self._nic.failure()
            status, sentence = failure if failure[0] else (status, sentence)
        if status:
            if status in _ERRORS:
                raise _ERRORS[status](sentence)
            raise CudaError("cuda-failed", sentence)

    def drain(self, stream: gpu.Stream | None = None) -> None:
        """Wait on the stream until the NIC has finished all requests; no-op without a NIC.

        check() raises errors up to that point.
        """
        self._open()
        if self._nic is not None:
            with gpu.current(self.device):
                self._nic.poll(stream or gpu.current_stream(self.device))

    def abort(self) -> None:
        """End the waits for a peer that has ended, once all that it had published is received.

        Called when the peer's process ends, if one of `watched` shows it, as on a link they do.
        """
        with self._ending:
            _end_waits(self._open(), self._nic)

    def close(self) -> None:
        """Wait for the device and notify the peer that there will be nothing more.

        What still waits on a stream is ended as by abort(); synchronise with it before to let it come to
        its end.
        """
        if self._end.value is None:
            return
        with self._ending:
            end, self._end = self._end, ctypes.c_void_p()
            nic, self._nic = self._nic, None
        watch, self._watch = self._watch, None
        with ExitStack() as closing:  # from the last to the first, whatever one of them raises
            if watch is not None:
                closing.callback(watch.close)  # the peer sees the channel closed before the connection breaks
            if os.getpid() != self._owner:
                return  # the parent's, in the driver too
            closing.callback(cuda_library.call, "channel_destroy", end)
            if nic is not None:
                closing.callback(nic.close)
                closing.callback(cuda_library.call, "channel_abort", end)
            if watch is not None:
                closing.callback(watch.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _open(self) -> ctypes.c_void_p:
        if self._end.value is None:
            raise ChannelClosedError(f"the channel with {self.peer} was closed at this end")
        if os.getpid() != self._owner:
            raise ChannelError(
                f"the channel with {self.peer} is another process's, and this is a fork of that"
            )
        return self._end

    def _launch(self, name: str, tensors: tuple[Tensor, ...], stream: gpu.Stream | None) -> None:
        """Enqueue the call on the stream."""
        end = self._open()
        buffers = buffers_of(tensors, self.device)
        on = stream or gpu.current_stream(self.device)
        with gpu.current(self.device):
            cuda_library.call(f"channel_{name}", end, buffers, len(tensors), on.cuda_stream)
            for tensor in tensors:
                if isinstance(on, torch.cuda.Stream):
                    tensor.record_stream(on)  # its memory is not given to others before


def _end_waits(end: ctypes.c_void_p, nic: NicEnd | None) -> None:
    try:
        cuda_library.call("channel_abort", end)
    finally:
        if nic is not None:
            nic.abort()


class DeviceSender(_DeviceEnd):
    """The sending end: over the ring that the peer has made, or over a mirror of it that a NIC knows."""

    sends = True

    def send(self, *tensors: Tensor, stream: gpu.Stream | None = None) -> None:
        """Send up to 14 contiguous CUDA tensors as the parts of one message, when there is a free slot."""
        self._launch("send", tensors, stream)


class DeviceReceiver(_DeviceEnd):
    """The receiving end, for the process that has made the ring."""

    sends = False

    def recv(self, timeout_s: float | None = None) -> DeviceMessage:  # noqa: ARG002 - the end has its own
        """Return the next message, as it will be on the stream."""
        return DeviceMessage(self)

    def ready(self, timeout_s: float = 0.0) -> bool:  # noqa: ARG002
        """Return True: recv() never waits on the host."""
        return True

    def recv_into(self, *tensors: Tensor, stream: gpu.Stream | None = None) -> None:
        """Wait for the next message, copy its parts into these tensors and give its slot back.

        There must be as many tensors as parts, none smaller than its part.
        """
        self._launch("recv", tensors, stream)


def buffers_of(tensors: tuple[Tensor, ...], device: torch.device) -> ctypes.Array[_Buffer]:
    """Return the tensors as an array of C buffers; raise a ValueError if one cannot be sent."""
    if len(tensors) > MOST_PARTS:
        raise ValueError(f"a message has up to {MOST_PARTS} parts, not {len(tensors)}")
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"a tensor on {tensor.device} cannot go by a channel of {device}")
        if not tensor.is_contiguous():
            raise ValueError("a tensor in a message must be contiguous")
    return (_Buffer * len(tensors))(*[_Buffer(t.data_ptr(), t.nbytes) for t in tensors])
