"""Links: how two processes meet and prove that they have the same secret, and the channels between them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from lamina.fhbn.channel import ChannelSpec, Receiver, Sender
from lamina.fhbn.control import (
    INTRODUCTION_BYTES,
    Control,
    Deadline,
    Place,
    RefusedError,
    WireMessage,
    field,
    greeting,
    require_secret,
    seconds,
    sound_name,
)
from lamina.fhbn.engines import Available, best, engine, find, passed_over, require_network
from lamina.fhbn.errors import (
    ChannelClosedError,
    ChannelError,
    ChannelTimeoutError,
    HandshakeError,
    PeerLostError,
)

if TYPE_CHECKING:
    from lamina.fhbn.device import DeviceReceiver, DeviceSender

TIMEOUT_S = 30.0
# Longer than a peer takes to answer, and too short to keep a core from other work.
SPIN_S = 500e-6


class _Closable(Protocol):
    def close(self) -> None: ...


AnyEnd = TypeVar("AnyEnd", bound=_Closable)
End = Callable[[Control, ChannelSpec, Deadline], AnyEnd]  # makes this process's
Maker = Callable[[str], End[AnyEnd]]  # from the engine that was agreed upon


class Link:
    """A connection to one process. Both open the same channels in the same order, one end each.

    It opens channels and notices the other process's end; channels work on without it.
    """

    def __init__(self, control: Control, name: str, deadline: Deadline) -> None:
        """Exchange names and places with the peer."""
        self._control = control
        self._here = Place.here()
        control.send_message({"name": name, "place": self._here.to_wire()}, deadline)
        hello = control.receive_message(deadline)
        try:
            self.peer = control.peer = sound_name(field(hello, "name", str, control.peer))
        except ValueError as error:
            raise HandshakeError(
                "channel-message", f"the name of {control.peer} is invalid: {error}"
            ) from error
        self._there = Place.from_wire(hello, self.peer)
        self.why = ""  # why the latest sender's network is no better one

    def receiver(
        self,
        name: str,
        *,
        message_bytes: int,
        slots: int = 4,
        network: str = "auto",
        first_seqno: int = 0,
        timeout_s: float = TIMEOUT_S,
        spin_s: float = SPIN_S,
    ) -> Receiver:
        """Return the receiving end of a channel, while the peer opens the sending end.

        `message_bytes` is the most that the parts of a message have together; `slots` is rounded up to a
        power of two. A receiver that takes over from one that has ended gives `first_seqno`, the message it
        wants next. `timeout_s` is how long this call and later ones wait, `spin_s` how long they look before
        they sleep.
        """
        spec = ChannelSpec.new(name, message_bytes, slots, first_seqno, timeout_s, spin_s)
        return self._receiver(spec, network, lambda chosen: engine(chosen).receiver)

    def sender(
        self, name: str, *, network: str = "auto", timeout_s: float = TIMEOUT_S, spin_s: float = SPIN_S
    ) -> Sender:
        """Return the sending end of a channel, while the peer opens the receiving end, which says how large
        it is.

        Its `next_seqno` is the message that the receiver wants next: one that takes over from a sender that
        has ended goes on there.
        """
        return self._sender(name, timeout_s, spin_s, network, lambda chosen: engine(chosen).sender)

    def device_receiver(
        self,
        name: str,
        *,
        message_bytes: int,
        slots: int = 4,
        network: str = "auto",
        first_seqno: int = 0,
        timeout_s: float = TIMEOUT_S,
        device: str = "cuda",
    ) -> DeviceReceiver:
        """Open a receiver on a GPU's stream, whatever the peer's end is on. Over mlx5 not verified on
        hardware.
        """
        from lamina.fhbn.device import DeviceReceiver

        spec = ChannelSpec.new(name, message_bytes, slots, first_seqno, timeout_s, 0.0)
        return self._receiver(spec, network, partial(_on_a_device, DeviceReceiver, device), on_stream=True)

    def device_sender(
        self, name: str, *, network: str = "auto", timeout_s: float = TIMEOUT_S, device: str = "cuda"
    ) -> DeviceSender:
        """Open a sender on a GPU's stream, whatever the peer's end is on. Not verified over mlx5."""
        from lamina.fhbn.device import DeviceSender

        return self._sender(
            name, timeout_s, 0.0, network, partial(_on_a_device, DeviceSender, device), on_stream=True
        )

    def _receiver(
        self, spec: ChannelSpec, network: str, maker: Maker[AnyEnd], *, on_stream: bool = False
    ) -> AnyEnd:
        require_network(network)
        deadline = Deadline(spec.timeout_s)
        with self._opening(deadline):
            available = find(network, self._here, self._there, self._control.own_host, on_stream=on_stream)
            offer = {"engines": available.usable, "missing": available.missing, "terms": spec.to_wire()}
            self._control.send_message(offer, deadline)
            chosen = field(self._control.receive_message(deadline), "use", str, self.peer)
            if chosen not in available.usable:
                raise HandshakeError(
                    "channel-message", f"{self.peer} has chosen a network that was not offered"
                )
            return self._both(maker(chosen)(self._control, spec, deadline), deadline)

    def _sender(
        self,
        name: str,
        timeout_s: float,
        spin_s: float,
        network: str,
        maker: Maker[AnyEnd],
        *,
        on_stream: bool = False,
    ) -> AnyEnd:
        require_network(network)
        sound_name(name, "a channel")
        seconds(spin_s)
        deadline = Deadline(timeout_s)
        with self._opening(deadline):
            offer = self._control.receive_message(deadline)
            ours = find(network, self._here, self._there, self._control.own_host, on_stream=on_stream)
            spec = ChannelSpec.from_wire(field(offer, "terms", dict, self.peer), self.peer, timeout_s, spin_s)
            if spec.name != name:
                raise HandshakeError(
                    "channel-name", f"this process opens channel {name!r} and {self.peer} {spec.name!r}"
                )
            theirs = self._offered(offer)
            chosen = best(ours.usable, theirs.usable)
            self.why = passed_over(chosen, ours, theirs, self.peer)
            self._control.send_message({"use": chosen}, deadline)
            return self._both(maker(chosen)(self._control, spec, deadline), deadline)

    def _offered(self, offer: WireMessage) -> Available:
        names: list[Any] = field(offer, "engines", list, self.peer)
        missing: dict[Any, Any] = field(offer, "missing", dict, self.peer)
        texts = [*names, *missing, *missing.values()]
        if not all(isinstance(one, str) and one.isprintable() for one in texts):
            raise HandshakeError("channel-message", f"{self.peer} has sent a message without sound 'engines'")
        return Available(names, missing)

    @contextlib.contextmanager
    def _opening(self, deadline: Deadline) -> Iterator[None]:
        """End the link if a channel cannot be opened: how far the other side had come is unknown.

        The other side gets the reason, if it may still be listening.
        """
        try:
            yield
        except BaseException as error:
            # ValueError: a reason that cannot be encoded is dropped.
            with contextlib.closing(self), contextlib.suppress(ChannelError, ValueError):
                if not isinstance(error, RefusedError | PeerLostError | ChannelTimeoutError):
                    self._control.refuse(str(error) or type(error).__name__, deadline)
            raise

    def _both(self, end: AnyEnd, deadline: Deadline) -> AnyEnd:
        """Return the end, once the peer has its own: a channel has two or none."""
        try:
            self._control.send_message({"opened": True}, deadline)
            if not field(self._control.receive_message(deadline), "opened", bool, self.peer):
                raise HandshakeError(
                    "channel-not-opened", f"{self.peer} has not opened its end of the channel"
                )
        except BaseException:
            end.close()
            del end  # with the connection that it watches: the peer notices that one's end only
            raise
        return end

    @property
    def control(self) -> Control:
        """The connection for other messages between the two, while no channel is being opened."""
        return self._control

    def close(self) -> None:
        """Hang up. Open channels stay open."""
        self._control.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _on_a_device(kind: type[AnyEnd], device: str, chosen: str) -> End[AnyEnd]:
    """Make an end over a ring or, where a NIC has one of its own at each end, over its mirror."""

    def make(control: Control, spec: ChannelSpec, deadline: Deadline) -> AnyEnd:
        over: Any = engine(chosen)
        end_of: Any = kind
        with over.joined(control, spec, deadline, sends=end_of.sends, gpu=device) as made:
            end: AnyEnd = end_of(
                made.segment, made.peer, made.watched,
                timeout_s=spec.timeout_s, device=device, engine=chosen, writer=made.writer, place=made.place,
            )  # fmt: skip
            return end

    return make


# A connection that does not introduce itself is closed after this.
_GREETING_S = 2.0
_LAST_PORT = 65535


class _Guest(NamedTuple):
    """One that has connected and was greeted."""

    connection: socket.socket
    greeted: bytes
    until: Deadline


class Listener:
    """A listener for links, on this machine only unless another host is named."""

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
        """Return the next process that connects and has the secret. Others are turned away.

        A silent connection holds up no other: each is greeted, and read when its introduction is there.
        """
        deadline = Deadline(timeout_s)
        refused: ChannelError | None = None
        while True:
            ready = self._ready(deadline)
            for number in self._guests.keys() - set(ready):
                if not self._guests[number].until.left_s:
                    self._dismissed(number).connection.close()
                    refused = ChannelTimeoutError("the other process sent nothing in time")
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
                raise ChannelTimeoutError(f"no process connected to {self.address} in time{why}") from refused

    def visited(self, timeout_s: float) -> bool:
        """Return whether a connection has come in this time, so that accept() has something to do."""
        if self._socket.fileno() < 0:
            raise ChannelClosedError(f"the listener {self.name} on {self.address} was closed")
        return bool(self._waiting.select(timeout_s))

    def _ready(self, deadline: Deadline) -> list[int]:
        """Return the connections that can be read, once there are some or the time of one is over."""
        if self._socket.fileno() < 0:
            raise ChannelClosedError(f"the listener {self.name} on {self.address} was closed")
        until = min([deadline.wait_s, *(guest.until.wait_s for guest in self._guests.values())])
        return [key.fd for key, _ in self._waiting.select(until)]

    def _greet(self) -> None:
        try:
            connection, _ = self._socket.accept()  # waits: the socket does not block
        except (BlockingIOError, ConnectionError):  # it disconnected again
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
        except OSError:  # it disconnected again
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
    """Return a link to the listener at host:port."""
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
