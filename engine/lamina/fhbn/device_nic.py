"""A NIC's part in a device's end of a channel: its queue is posted to by kernels (csrc/fhbn/cuda/nic.h).

Not verified on hardware: neither a GPU nor a ConnectX has run it.
"""

from __future__ import annotations

import ctypes

import torch

from lamina import cuda_library
from lamina._native import LentQueue, ShmSegment

LATE, LOST, CLOSED = 4, 5, 6  # of lamina_cuda_status


class _Queues(ctypes.Structure):
    _fields_ = (
        ("requests", ctypes.c_void_p),
        ("send_record", ctypes.c_void_p),
        ("registers", ctypes.c_void_p),
        ("completions", ctypes.c_void_p),
        ("completion_record", ctypes.c_void_p),
        ("blocks", ctypes.c_uint32),
        ("completion_count", ctypes.c_uint32),
        ("qpn", ctypes.c_uint32),
        ("half_bytes", ctypes.c_uint32),
        ("registers_are_io", ctypes.c_int32),
    )


class _State(ctypes.Structure):
    _fields_ = (
        ("next", ctypes.c_uint32),
        ("rung", ctypes.c_uint32),
        ("latest", ctypes.c_uint32),
        ("asked", ctypes.c_uint32),
        ("done", ctypes.c_uint32),
        ("taken", ctypes.c_uint32),
        ("half", ctypes.c_uint32),
    )


class _Nic(ctypes.Structure):
    _fields_ = (
        ("queues", _Queues),
        ("state", _State),
        ("memory", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("local_key", ctypes.c_uint32),
        ("remote_key", ctypes.c_uint32),
        ("remote_address", ctypes.c_uint64),
        ("side", ctypes.c_int32),
        ("timeout_ns", ctypes.c_int64),
        ("peer", ctypes.c_char_p),
    )


class _Left(ctypes.Structure):
    _fields_ = (("state", _State), ("told", ctypes.c_uint64), ("works", ctypes.c_int32))


class NicEnd:
    """What posts for one end, behind it on its stream, until close() gives the queue back to the host."""

    def __init__(self, segment: ShmSegment, queue: LentQueue, side: int, timeout_ns: int, peer: str) -> None:
        """On the current device."""
        self._queue = queue
        self._sends = side == 0
        self._peer = peer
        self._end = ctypes.c_void_p()
        asked = _Nic(
            _Queues(**queue.queues),
            _State(*queue.state),
            segment.address,
            segment.nbytes,
            queue.local_key,
            queue.remote_key,
            queue.remote_address,
            side,
            timeout_ns,
            peer.encode(),
        )
        cuda_library.call("nic_create", asked, ctypes.byref(self._end))

    def post(self, stream: torch.cuda.Stream) -> None:
        """Tell the peer, on the stream, what the end has sent or given back since the last time."""
        cuda_library.call("nic_post", self._end, stream.cuda_stream)

    def poll(self, stream: torch.cuda.Stream) -> None:
        """Wait on the stream until the NIC has done all that was posted."""
        cuda_library.call("nic_poll", self._end, stream.cuda_stream)

    def failure(self) -> tuple[int, str]:
        """What the device has found wrong with the NIC by now, or why it went wrong; 0 if nothing matters."""
        status, sentence = cuda_library.ask("nic_check", self._end)
        if not status:
            return 0, ""
        closed, ended = self._queue.peer_has_closed, self._queue.peer_has_ended
        if not (closed or ended):
            return status, sentence
        # Its queue pair is gone. A sender needs no more credits then, and what it sent before is in the ring.
        if not self._sends:
            return 0, ""
        how = "closed the channel" if closed else "ended"
        return CLOSED if closed else LOST, f"{self._peer} has {how} and takes no more messages"

    def abort(self) -> None:
        """End waits for the NIC."""
        cuda_library.call("nic_abort", self._end)

    def close(self) -> None:
        """Wait for the device, and have the host tell the peer that this was the end, if the NIC still works.

        The channel's end is to be aborted before, or else its waits are waited for.
        """
        end, self._end = self._end, ctypes.c_void_p()
        left = _Left()
        cuda_library.call("nic_destroy", end, left)
        if left.works:
            state = [getattr(left.state, name) for name, _ in _State._fields_]
            self._queue.close(state, left.told)
