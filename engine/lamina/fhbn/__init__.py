"""Channels between workers: one-way, ordered, in microseconds.

One process makes a `Listener`, the other one calls `connect`; each gets a `Link`, on which both open the same
channels, one as `link.receiver(name, ...)` and the other one as `link.sender(name)`.
"""

from lamina.fhbn.channel import MOST_PARTS, Message, Receiver, Sender
from lamina.fhbn.control import new_secret
from lamina.fhbn.engines import NETWORKS
from lamina.fhbn.errors import (
    ChannelClosedError,
    ChannelCorruptedError,
    ChannelError,
    ChannelTimeoutError,
    HandshakeError,
    NicError,
    PeerLostError,
)
from lamina.fhbn.link import Link, Listener, connect

__all__ = [
    "MOST_PARTS",
    "NETWORKS",
    "ChannelClosedError",
    "ChannelCorruptedError",
    "ChannelError",
    "ChannelTimeoutError",
    "HandshakeError",
    "Link",
    "Listener",
    "Message",
    "NicError",
    "PeerLostError",
    "Receiver",
    "Sender",
    "connect",
    "new_secret",
]
