"""What the engines over torch.distributed share: how their two processes meet, and what their errors mean.

A group of two is made for every channel. torch's global group is neither used nor changed.
"""

from __future__ import annotations

import datetime
import math
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from lamina.fhbn.control import Control, field
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelTimeoutError, HandshakeError
from lamina.fhbn.place import Place

SENDER, RECEIVER = 0, 1  # ranks

Group = TypeVar("Group")


class ControlStore(Store):
    """The key-value store by which torch's groups meet, over the authenticated connection: no port is opened.

    What one side sets is sent to the other, which reads it when it asks for it.
    """

    def __init__(self, control: Control, deadline: Deadline) -> None:
        super().__init__()
        self._control = control
        self._deadline = deadline
        self._values: dict[str, bytes] = {}
        # torch puts its own in the place of what is raised in here.
        self.error: BaseException | None = None

    def set(self, key: str, value: bytes | str) -> None:
        """Known on both sides from now on."""
        value = value.encode() if isinstance(value, str) else bytes(value)
        self._values[key] = value
        self._noting(lambda: self._control.say({"key": key, "value": value}, self._deadline))

    def get(self, key: str) -> bytes:
        """Waits until it was set."""
        self._noting(lambda: self._wait_for(key))
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:  # noqa: ARG002
        """Until they were set; the deadline is that of the opening."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether they have come."""
        return all(key in self._values for key in keys)

    def _wait_for(self, key: str) -> None:
        while key not in self._values:
            message = self._control.hear(self._deadline)
            name = field(message, "key", str, self._control.peer)
            self._values[name] = field(message, "value", bytes, self._control.peer)

    def _noting(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            self.error = error
            raise


def met(
    control: Control, deadline: Deadline, make: Callable[[ControlStore], Group]
) -> tuple[Group, ControlStore]:
    """The group that `make` gives, while the other process does the same. The store must live as long."""
    store = ControlStore(control, deadline)
    try:
        return make(store), store
    except (RuntimeError, ValueError) as error:
        if store.error is not None:
            raise store.error from error
        if deadline.left_s == 0:
            raise ChannelTimeoutError(f"{control.peer} did not come to the channel in time") from error
        raise HandshakeError(
            "channel-connect", f"torch cannot connect to {control.peer}: {first_line(error)}"
        ) from error


def own_host(control: Control, deadline: Deadline) -> str:
    """The address to listen on: reached from this machine only, or where the peer has found us already."""
    here = Place.here().machine
    control.say({"machine": here}, deadline)
    if field(control.hear(deadline), "machine", str, control.peer) == here:
        return "127.0.0.1"
    with socket.socket(fileno=os.dup(control.fileno())) as same:
        return str(same.getsockname()[0])


def patience(timeout_s: float) -> datetime.timedelta:
    """As torch takes it: whole milliseconds, no fewer than asked for, and zero would be for ever."""
    return datetime.timedelta(milliseconds=max(1, math.ceil(min(timeout_s, 1e6) * 1e3)))


def first_line(error: BaseException) -> str:
    """What torch has to say, without its stack."""
    return str(error).strip().split("\n", 1)[0][:200]


def flat_bytes(tensor: Any) -> Any:
    """A contiguous tensor as one of bytes, in the same memory."""
    if not tensor.is_contiguous():
        raise ValueError("a tensor to send must be contiguous")
    return tensor.detach().reshape(-1).view(torch.uint8)
