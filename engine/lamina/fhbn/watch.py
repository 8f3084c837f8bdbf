"""Notices a peer's end for kernels, which wait for the peer and cannot see its process end."""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack


class Watch:
    """A thread that waits for the peer to end, and then calls."""

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
                target=_wait, args=(waiting, stopping.fileno(), ended), name="lamina-fhbn-watch", daemon=True
            )
            self._thread.start()
            self._opened = opened.pop_all()

    def stop(self) -> None:
        """It makes no call after this."""
        self._running.shutdown(socket.SHUT_WR)
        # It may be that thread in which the end is collected as garbage. It then finds that it is to stop, or
        # has called already.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close(self) -> None:
        """Let go of what was watched."""
        self._opened.close()


def _wait(waiting: select.poll, stopping: int, ended: Callable[[], None]) -> None:
    if stopping not in dict(waiting.poll()):
        ended()
