"""How two processes meet: one listens, the other connects, and both prove that they have the same secret."""

from __future__ import annotations

import socket
from selectors import EVENT_READ, DefaultSelector
from typing import NamedTuple

from lamina.fhbn.control import INTRODUCTION_BYTES, Control, greeting, require_secret, sound_name
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelError, ChannelTimeoutError, HandshakeError
from lamina.fhbn.link import TIMEOUT_S, Link

# A connection that does not introduce itself is closed after this.
_GREETING_S = 2.0
_LAST_PORT = 65535


class _Guest(NamedTuple):
    """One that has connected and was greeted."""

    connection: socket.socket
    greeted: bytes
    until: Deadline


class Listener:
    """Where others connect to. On this machine only, unless another host is named."""

    def __init__(self, name: str, secret: bytes, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.name = sound_name(name)
        self._secret = require_secret(secret)
        if not 0 <= port <= _LAST_PORT:
            raise ValueError(f"cannot listen on port {port}: give 1 to {_LAST_PORT}, or 0 for any")
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise HandshakeError(
                "channel-listen",
                f"cannot listen on {host}:{port}: {error.strerror}; give another address, or port 0 for any",
            ) from error
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])  # for connect()
        self._socket.setblocking(False)
        self._guests: dict[int, _Guest] = {}
        self._waiting = DefaultSelector()
        self._waiting.register(self._socket, EVENT_READ)

    def accept(self, timeout_s: float = TIMEOUT_S) -> Link:
        """The next process that connects and has the secret. Others are turned away.

        A silent connection holds up no other: each is greeted, and read when its introduction is there.
        """
        deadline = Deadline(timeout_s)
        refused: ChannelError | None = None
        while True:
            ready = self._ready(deadline)
            for number in self._guests.keys() - set(ready):
                if not self._guests[number].until.left_s:
                    self._dismissed(number).connection.close()
                    refused = ChannelTimeoutError("the other process said nothing in time")
            for number in ready:
                if number == self._socket.fileno():
                    self._greet()
                    continue
                try:
                    return self._met(self._dismissed(number), deadline)
                except ChannelError as error:
                    refused = error
            if not deadline.left_s:
                why = f"; one that came was turned away: {refused}" if refused else ""
                raise ChannelTimeoutError(f"nobody connected to {self.address} in time{why}") from refused

    def visited(self, timeout_s: float) -> bool:
        """Whether a connection has come in this time, so that accept() has something to do."""
        if self._socket.fileno() < 0:
            raise ChannelClosedError(f"the listener {self.name} on {self.address} was closed")
        return bool(self._waiting.select(timeout_s))

    def _ready(self, deadline: Deadline) -> list[int]:
        """Connections that can be read, once there are some or the time of one is over."""
        if self._socket.fileno() < 0:
            raise ChannelClosedError(f"the listener {self.name} on {self.address} was closed")
        until = min([deadline.wait_s, *(guest.until.wait_s for guest in self._guests.values())])
        return [key.fd for key, _ in self._waiting.select(until)]

    def _greet(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # it has gone again
            return
        except OSError as error:
            raise HandshakeError(
                "channel-accept", f"cannot accept a connection on {self.address}: {error.strerror}"
            ) from error
        connection.setblocking(False)
        # Ready when all is there that it sends before it is answered, so that reading never waits.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, INTRODUCTION_BYTES)
        guest = _Guest(connection, greeting(), Deadline(_GREETING_S))
        try:
            connection.send(guest.greeted)
        except OSError:  # it has gone again
            connection.close()
            return
        self._guests[connection.fileno()] = guest
        self._waiting.register(connection, EVENT_READ)

    def _dismissed(self, number: int) -> _Guest:
        guest = self._guests.pop(number)
        self._waiting.unregister(guest.connection)
        return guest

    def _met(self, guest: _Guest, deadline: Deadline) -> Link:
        guest.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        until = deadline.sooner(_GREETING_S)
        control = Control(
            guest.connection, self._secret, listening=True, deadline=until, greeted=guest.greeted
        )
        return _linked(control, self.name, until)

    def close(self) -> None:
        """Stop listening. Links stay."""
        for number in list(self._guests):
            self._dismissed(number).connection.close()
        self._waiting.close()
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
    if not 1 <= int(port) <= _LAST_PORT:
        raise ValueError(f"address '{address}' has a port that cannot be: give one of 1 to {_LAST_PORT}")
    try:
        connection = socket.create_connection((host, int(port)), timeout=deadline.wait_s)
    except TimeoutError as error:
        raise ChannelTimeoutError(f"{address} did not answer in time") from error
    except OSError as error:
        raise HandshakeError("channel-connect", f"cannot connect to {address}: {error}") from error
    return _linked(Control(connection, secret, listening=False, deadline=deadline), name, deadline)


def _linked(control: Control, name: str, deadline: Deadline) -> Link:
    try:
        return Link(control, name, deadline)
    except BaseException:
        control.close()
        raise
