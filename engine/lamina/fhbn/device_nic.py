"""A NIC's part in a device's end of a channel: its queue is posted to by kernels (csrc/fhbn/cuda/nic.h).

Not verified on hardware: neither a GPU nor a ConnectX has run it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from lamina import cuda_library

LATE, LOST, CLOSED = 4, 5, 6  # of lamina_cuda_status


class NicEnd:
    """What posts for one end, behind it on its stream, until close() gives the queue back to the host."""

    def __init__(self, queue: Any, timeout_ns: int, peer: str, *, sends: bool) -> None:
        """On the current device; the queue is a LentQueue."""
        self._queue = queue
        self._sends = sends
        self._peer = peer
        self._end = ctypes.c_void_p()
        cuda_library.call("nic_create", queue.for_device(timeout_ns), ctypes.byref(self._end))

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
        left = ctypes.create_string_buffer(self._queue.left_bytes)
        cuda_library.call("nic_destroy", end, left)
        self._queue.close(left.raw)
