"""How messages travel: over a control connection, in parts where one is too long, or over a pipe."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import IO

from lamina.cluster.messages import AnyMessage, decode, encode
from lamina.fhbn.control import MOST_MESSAGE_BYTES, Control
from lamina.fhbn.deadline import Deadline

PART_BYTES = MOST_MESSAGE_BYTES // 2
_LAST, _MORE = b"\0", b"\1"  # what a part begins with
_LENGTH = struct.Struct("<Q")


def send(
    control: Control, message: AnyMessage, deadline: Deadline, between: Callable[[], None] | None = None
) -> None:
    """Send a message; `between` is called while the other side does not take it."""
    body = encode(message)
    last = max(len(body) - 1, 0) // PART_BYTES * PART_BYTES
    for begin in range(0, last, PART_BYTES):
        control.send(_MORE + body[begin : begin + PART_BYTES], deadline, between)
    control.send(_LAST + body[last:], deadline, between)


def receive(control: Control, deadline: Deadline) -> AnyMessage:
    """Receive a message, whole."""
    part = control.receive(deadline)
    parts = [part[1:]]
    while part[:1] == _MORE:
        part = control.receive(deadline)
        parts.append(part[1:])
    return decode(b"".join(parts), control.peer)


def write(pipe: IO[bytes], message: AnyMessage) -> None:
    """Send a message through a pipe."""
    body = encode(message)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def read(pipe: IO[bytes], sender: str) -> AnyMessage | None:
    """Receive a message from a pipe, or None if that has been closed."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = pipe.read(length)
    return decode(body, sender) if len(body) == length else None
