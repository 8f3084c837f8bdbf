"""Errors of channels, each in a sentence that names the peer.

C++ and Python raise most of these classes with a sentence alone, and the class stands for the code. Only a
HandshakeError has many reasons, and its code is given where it is raised.
"""

from __future__ import annotations

from functools import cached_property

from lamina._native import (
    ChannelClosedError,
    ChannelCorruptedError,
    ChannelError,
    ChannelTimeoutError,
    NicError,
    PeerLostError,
)
from lamina.errors import CodedError

CODES: dict[type[ChannelError], str] = {
    ChannelError: "channel-unusable",
    ChannelClosedError: "channel-closed",
    ChannelCorruptedError: "channel-corrupted",
    ChannelTimeoutError: "channel-timeout",
    NicError: "channel-nic",
    PeerLostError: "channel-peer-lost",
}


class HandshakeError(CodedError, ChannelError):
    """Two processes could not agree on a link or a channel; nothing of it is left."""


def _give_codes() -> None:
    for kind, code in CODES.items():
        kind.code = code  # type: ignore[attr-defined]
    # A list of each error's own, in its __dict__, so that others can add notes to it.
    notes = cached_property(lambda error: [error.code])
    notes.__set_name__(ChannelError, "__notes__")
    ChannelError.__notes__ = notes  # type: ignore[assignment]


_give_codes()

__all__ = [
    "ChannelClosedError",
    "ChannelCorruptedError",
    "ChannelError",
    "ChannelTimeoutError",
    "HandshakeError",
    "NicError",
    "PeerLostError",
]
