"""A server's address, checked and bound before the rest of the server is loaded."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

# The kernel buffers at most twice these for a connection that is not read; else they grow to megabytes.
KERNEL_BYTES = {socket.SO_SNDBUF: 131_072, socket.SO_RCVBUF: 65_536}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Names:
    """A server's host names: all that lead to this machine's loopback, and these."""

    def __init__(self, more: Iterable[str]) -> None:
        self._more = frozenset(name.strip("[]").lower() for name in more)

    def has(self, given: bytes) -> bool:
        """Return whether this is one of the names, with any port."""
        name = given.decode("latin-1").lower()
        if name.startswith("["):
            name, _, port = name[1:].partition("]")
        else:
            name, _, port = name.partition(":")
        if port.removeprefix(":").strip("0123456789"):
            return False
        return is_loopback(name) or name in self._more


def bound(host: str, port: int) -> socket.socket:
    """Return a socket with its address, which does not listen yet; an OSError if it cannot be bound."""
    family, kind, protocol_, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound_socket = socket.socket(family, kind, protocol_)
    try:
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for which, size in KERNEL_BYTES.items():
            bound_socket.setsockopt(socket.SOL_SOCKET, which, size)
        bound_socket.bind(address)
    except BaseException:
        bound_socket.close()
        raise
    return bound_socket
