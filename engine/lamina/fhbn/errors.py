"""What can go wrong with channels, each in a sentence that names the peer."""

from __future__ import annotations

from lamina._native import (
    ChannelClosedError,
    ChannelCorruptedError,
    ChannelError,
    ChannelTimeoutError,
    NicError,
    PeerLostError,
)


class HandshakeError(ChannelError):
    """Two processes could not agree on a link or a channel; nothing of it is left."""


__all__ = [
    "ChannelClosedError",
    "ChannelCorruptedError",
    "ChannelError",
    "ChannelTimeoutError",
    "HandshakeError",
    "NicError",
    "PeerLostError",
]
