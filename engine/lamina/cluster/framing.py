"""Messages of any size between front end and workers: what is too long for one goes in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from lamina.fhbn.control import MOST_MESSAGE_BYTES, Control
from lamina.fhbn.deadline import Deadline

PART_BYTES = MOST_MESSAGE_BYTES // 2


def say(
    control: Control,
    message: dict[str, Any],
    deadline: Deadline,
    between: Callable[[], None] | None = None,
) -> None:
    """Send it; `between` is called while the other side does not take it."""
    body = msgpack.packb(message)
    if len(body) <= PART_BYTES:
        control.say(message, deadline, between)
        return
    for begin in range(0, len(body), PART_BYTES):
        end = begin + PART_BYTES
        control.say({"part": body[begin:end], "more": end < len(body)}, deadline, between)


def hear(control: Control, deadline: Deadline) -> dict[str, Any]:
    """Receive one, whole."""
    message = control.hear(deadline)
    if "part" not in message:
        return message
    parts = [message["part"]]
    while message["more"]:
        message = control.hear(deadline)
        parts.append(message["part"])
    whole: dict[str, Any] = msgpack.unpackb(b"".join(parts))
    return whole
