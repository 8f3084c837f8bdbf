"""Common parts of tests of channels: the types of their fixtures, and usual arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lamina import fhbn
from lamina._native import ShmSegment
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Deadline

Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Links = tuple[fhbn.Link, fhbn.Link]
Open = Callable[..., tuple[Any, Any]]
SPEC = ChannelSpec("a", 64, 4, 7, 0, 30.0, 0.0)


def soon() -> Deadline:
    return Deadline(30)


def segment(slots: int = 2) -> ShmSegment:
    """Return a ring whose numbers soon wrap around."""
    return ShmSegment.create(1 << 16, slots, epoch=3, first_seqno=2**64 - 2)


def fill(sender: fhbn.Sender) -> None:
    """Fill a ring of four slots; the fifth message waits."""
    for _ in range(5):
        sender.send(b"x")
