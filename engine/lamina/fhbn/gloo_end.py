"""What both ends of a channel over gloo do: wait, notice the other's end, and say goodbye."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo

from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelError, ChannelTimeoutError, PeerLostError
from lamina.fhbn.frame import Framing
from lamina.fhbn.torch_distributed import GroupEnd, met, own_host, patience

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
        """Let gloo write the next message of this tag into the tensor."""
        return self._group.recv([tensor], self._other, tag)

    def _wait(self, work: Any, deadline: Deadline, late: str) -> None:
        try:
            work.wait(patience(deadline.left_s))
        except RuntimeError as error:
            raise self._lost(deadline, late) from error

    def _lost(self, deadline: Deadline, late: str) -> ChannelError:
        """What it means that gloo gave up. It says so in words for people; what counts is the time."""
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
                said = torch.ones(1, dtype=torch.uint8)
                group.send([said], self._other, GOODBYE).wait(patience(_GOODBYE_S))
        self._forget()
        del group

    def _forget(self) -> None:
        """Let go of what gloo has not done yet."""
        self._goodbye_work = None

    def __del__(self) -> None:
        # At the very end torch may be gone already; the peer then sees the connection break.
        if self._group is not None and not sys.is_finalizing():
            self.close()
