"""How two processes meet: one listens, the other connects, and both prove that they have the same secret."""

from __future__ import annotations

import socket

from lamina.fhbn.control import Control, require_secret
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelError, ChannelTimeoutError, HandshakeError
from lamina.fhbn.link import TIMEOUT_S, Link, sound_name

# One that has connected and says nothing keeps others waiting no longer than this.
_GREETING_S = 2.0


class Listener:
    """Where others connect to. On this machine only, unless another host is named."""

    def __init__(self, name: str, secret: bytes, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.name = sound_name(name)
        self._secret = require_secret(secret)
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise HandshakeError(
                f"cannot listen on {host}:{port}: {error.strerror}; give another address, or port 0 for any"
            ) from error

    @property
    def address(self) -> str:
        """host:port, for connect()."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def accept(self, timeout_s: float = TIMEOUT_S) -> Link:
        """The next process that connects and has the secret. Others are turned away."""
        deadline = Deadline(timeout_s)
        refused: ChannelError | None = None
        while True:
            self._socket.settimeout(deadline.left_s or 1e-6)
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                why = f"; one that came was turned away: {refused}" if refused else ""
                raise ChannelTimeoutError(f"nobody connected to {self.address} in time{why}") from refused
            try:
                return _linked(
                    connection, self.name, self._secret, deadline.sooner(_GREETING_S), listening=True
                )
            except ChannelError as error:
                refused = error

    def close(self) -> None:
        """Stop listening. Links stay."""
        self._socket.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(address: str, *, name: str, secret: bytes, timeout_s: float = TIMEOUT_S) -> Link:
    """A link to the listener at host:port."""
    deadline = Deadline(timeout_s)
    sound_name(name)
    require_secret(secret)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"address '{address}' is not host:port")
    try:
        connection = socket.create_connection((host, int(port)), timeout=deadline.left_s or 1e-6)
    except OSError as error:
        raise HandshakeError(f"cannot connect to {address}: {error}") from error
    return _linked(connection, name, secret, deadline, listening=False)


def _linked(
    connection: socket.socket, name: str, secret: bytes, deadline: Deadline, *, listening: bool
) -> Link:
    control = Control(connection, secret, listening=listening, deadline=deadline)
    try:
        return Link(control, name, deadline)
    except BaseException:
        control.close()
        raise
