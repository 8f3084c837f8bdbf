"""What both ends of a channel over gloo do: wait, notice the other's end, and say goodbye."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo

from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelError, ChannelTimeoutError, PeerLostError
from lamina.fhbn.frame import Framing
from lamina.fhbn.terms import Terms
from lamina.fhbn.torch_distributed import RECEIVER, met, own_host, patience

FRAMES, PAYLOADS, GOODBYE = 0, 1, 2  # tags
_GOODBYE_S = 1.0

# Not an exception: its traceback would hold this end, and its connection open.
Ending = tuple[type[ChannelError], str]


class GlooEnd:
    """A group of two with the state of one end. A wait that was cut short leaves it broken, as gloo does."""

    engine = "gloo"

    def __init__(self, control: Control, terms: Terms, deadline: Deadline, rank: int) -> None:
        host = own_host(control, deadline)

        def make(store: Any) -> Any:
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [ProcessGroupGloo.create_device(hostname=host, lazy_init=False)]
            options._threads = 1
            options._timeout = patience(deadline.left_s)
            return ProcessGroupGloo(store, rank, 2, options)

        self._group, self._store = met(control, deadline, make)
        self.peer = f"{control.peer} (channel {terms.name})"
        self._other = 1 - rank
        self._direction = "from" if rank == RECEIVER else "to"
        self._timeout_s = terms.timeout_s
        self._framing = Framing(terms, self.peer)
        self._ended: Ending | None = None  # what later calls raise too
        # Taken up by gloo at once, whatever else waits: what comes here is no part of the order of messages.
        self._goodbye = torch.zeros(1, dtype=torch.uint8)
        self._heard_goodbye = self._expect(self._goodbye, GOODBYE)

    def _require_open(self) -> None:
        if self._group is None:
            raise ChannelClosedError(f"the channel {self._direction} {self.peer} was closed at this end")
        if self._ended is not None:
            kind, sentence = self._ended
            raise kind(sentence)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        seconds = self._timeout_s if timeout_s is None else timeout_s
        if not seconds >= 0:
            raise ValueError(f"a timeout of {seconds}: give a number of seconds, 0 or more")
        return Deadline(seconds)

    def _expect(self, tensor: Any, tag: int) -> Any:
        """Let gloo write the next message of this tag into the tensor."""
        return self._group.recv([tensor], self._other, tag)

    def _wait(self, work: Any, deadline: Deadline, late: str) -> None:
        try:
            work.wait(patience(deadline.left_s))
        except RuntimeError as error:
            raise self._lost(deadline, late) from error
        except BaseException:  # a signal: whether it was done is not known
            self._ended = self._broken("an interruption")
            raise

    def _lost(self, deadline: Deadline, late: str) -> ChannelError:
        """What it means that gloo gave up. It says so in words for people; what counts is the time."""
        if self._was_heard():
            self._ended = (ChannelClosedError, f"{self.peer} has closed the channel")
        elif deadline.left_s == 0:
            self._ended = self._broken("a timeout")
            return ChannelTimeoutError(late)
        else:
            self._ended = (PeerLostError, f"{self.peer} has ended without closing the channel")
        kind, sentence = self._ended
        return kind(sentence)

    def _broken(self, by: str) -> Ending:
        sentence = f"the channel {self._direction} {self.peer} did not survive {by}: over gloo, none does"
        return ChannelError, sentence

    def _was_heard(self) -> bool:
        with contextlib.suppress(RuntimeError):
            self._heard_goodbye.wait(patience(0))
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
        self._heard_goodbye = None

    def __del__(self) -> None:
        # At the very end torch may be gone already; the peer then sees the connection break.
        if getattr(self, "_group", None) is not None and not sys.is_finalizing():
            self.close()
