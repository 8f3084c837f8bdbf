"""The ends of a channel on an NVIDIA GPU: messages sent and received by kernels on a stream.

Not verified on hardware: compiled for sm_80 and sm_90, its kernels tested on the host only.
"""

from __future__ import annotations

import ctypes
from typing import Self

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

MOST_PARTS = 14
_SENDS, _RECEIVES = 0, 1
_LONGEST_S = 1e9  # thirty years, and no overflow
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

    def __init__(
        self, side: int, segment: ShmSegment, peer: str, timeout_s: float, device: torch.device | str
    ) -> None:
        self._end = ctypes.c_void_p()
        cuda_library.call("check_device")
        if not torch.cuda.is_available():
            raise CudaError("this torch is built without CUDA, whose tensors a device's channel needs")
        self.device = torch.device(device)
        self.peer = peer
        self._segment = segment  # stays mapped
        timeout_ns = int(min(timeout_s, _LONGEST_S) * 1e9)
        channel = _Channel(segment.address, segment.nbytes, side, timeout_ns, peer.encode())
        with torch.cuda.device(self.device):
            cuda_library.call("channel_create", channel, ctypes.byref(self._end))

    def check(self) -> None:
        """Raise what the device has found wrong by now, as a ChannelError; waits for nothing."""
        status, sentence = cuda_library.ask("channel_check", self._open())
        if status:
            raise _ERRORS.get(status, CudaError)(sentence)

    def abort(self) -> None:
        """The peer has ended: end the waits for it, once all that it had published is received."""
        cuda_library.call("channel_abort", self._open())

    def close(self) -> None:
        """Wait for the device and tell the peer that there will be nothing more.

        What still waits on a stream is ended as by abort(); synchronise with it before to let it come to
        its end.
        """
        if self._end.value is None:
            return
        end, self._end = self._end, ctypes.c_void_p()
        cuda_library.call("channel_destroy", end)

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
        parts = [] if tensors is None else [buffers_of(tensors), len(tensors)]
        with torch.cuda.device(self.device):
            on = torch.cuda.current_stream() if stream is None else stream
            cuda_library.call(f"channel_{name}", end, *parts, on.cuda_stream)
            for tensor in tensors or ():
                tensor.record_stream(on)  # its memory is not given to others before


class DeviceSender(_DeviceEnd):
    """The sending end, for the process whose peer has made the segment."""

    def __init__(
        self, segment: ShmSegment, peer: str, *, timeout_s: float, device: torch.device | str = "cuda"
    ) -> None:
        super().__init__(_SENDS, segment, peer, timeout_s, device)

    def send(self, *tensors: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        """Send up to 14 contiguous CUDA tensors as the parts of one message, when there is a free slot."""
        self._launch("send", tensors, stream)


class DeviceReceiver(_DeviceEnd):
    """The receiving end, for the process that has made the segment."""

    def __init__(
        self, segment: ShmSegment, peer: str, *, timeout_s: float, device: torch.device | str = "cuda"
    ) -> None:
        super().__init__(_RECEIVES, segment, peer, timeout_s, device)

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


def buffers_of(tensors: tuple[Tensor, ...]) -> ctypes.Array[_Buffer]:
    """The tensors' memory, as the library is told of it; a sentence if one cannot be sent as it is."""
    if len(tensors) > MOST_PARTS:
        raise ValueError(f"a message has up to {MOST_PARTS} parts, not {len(tensors)}")
    for tensor in tensors:
        if not tensor.is_cuda:
            raise TypeError("a device's channel carries tensors in GPU memory")
        if not tensor.is_contiguous():
            raise ValueError("a tensor in a message must be contiguous")
    return (_Buffer * len(tensors))(*[_Buffer(t.data_ptr(), t.nbytes) for t in tensors])
