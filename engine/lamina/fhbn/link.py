"""Links: two processes that have met, and the channels that they open between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lamina.fhbn.channel import Receiver, Sender
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control, RefusedError, WireMessage, field, sound_name
from lamina.fhbn.deadline import Deadline, seconds
from lamina.fhbn.engines import best, engine, require_network, usable
from lamina.fhbn.errors import ChannelError, ChannelTimeoutError, HandshakeError, PeerLostError
from lamina.fhbn.place import Place

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

    It is for opening channels, and hears of the other process's end; channels go on without it.
    """

    def __init__(self, control: Control, name: str, deadline: Deadline) -> None:
        """Exchange names and places with the peer."""
        self._control = control
        self._here = Place.here()
        control.say({"name": name, "place": self._here.to_wire()}, deadline)
        hello = control.hear(deadline)
        try:
            self.peer = control.peer = sound_name(field(hello, "name", str, control.peer))
        except ValueError as error:
            raise HandshakeError("channel-message", f"{control.peer} cannot be called so: {error}") from error
        self._there = Place.from_wire(hello, self.peer)

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
        """The receiving end of a channel, while the peer opens the sending end.

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
        """The sending end of a channel, while the peer opens the receiving end, which says how large it is.

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
        """The same on a GPU's stream, whatever the peer's end is on. Not verified on hardware."""
        from lamina.fhbn.device import DeviceReceiver

        spec = ChannelSpec.new(name, message_bytes, slots, first_seqno, timeout_s, 0.0)
        return self._receiver(spec, network, partial(_on_a_device, DeviceReceiver, device), on_stream=True)

    def device_sender(
        self, name: str, *, network: str = "auto", timeout_s: float = TIMEOUT_S, device: str = "cuda"
    ) -> DeviceSender:
        """The same on a GPU's stream, whatever the peer's end is on. Not verified on hardware."""
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
            engines = usable(network, self._here, self._there, on_stream=on_stream)
            self._control.say({"engines": engines, "terms": spec.to_wire()}, deadline)
            chosen = field(self._control.hear(deadline), "use", str, self.peer)
            if chosen not in engines:
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
            offer = self._control.hear(deadline)
            engines = usable(network, self._here, self._there, on_stream=on_stream)
            spec = ChannelSpec.from_wire(field(offer, "terms", dict, self.peer), self.peer, timeout_s, spin_s)
            if spec.name != name:
                raise HandshakeError(
                    "channel-name", f"this process opens channel {name!r} and {self.peer} {spec.name!r}"
                )
            chosen = best(engines, self._offered(offer))
            self._control.say({"use": chosen}, deadline)
            return self._both(maker(chosen)(self._control, spec, deadline), deadline)

    def _offered(self, offer: WireMessage) -> list[str]:
        names: list[Any] = field(offer, "engines", list, self.peer)
        if not all(isinstance(name, str) and name.isprintable() for name in names):
            raise HandshakeError("channel-message", f"{self.peer} has sent a message without sound 'engines'")
        return names

    @contextlib.contextmanager
    def _opening(self, deadline: Deadline) -> Iterator[None]:
        """A channel that cannot be opened ends the link: how far the other side had come is unknown.

        The other side is told why, if it may still be listening.
        """
        try:
            yield
        except BaseException as error:
            # ValueError: a reason that cannot be said is none.
            with contextlib.closing(self), contextlib.suppress(ChannelError, ValueError):
                if not isinstance(error, RefusedError | PeerLostError | ChannelTimeoutError):
                    self._control.refuse(str(error) or type(error).__name__, deadline)
            raise

    def _both(self, end: AnyEnd, deadline: Deadline) -> AnyEnd:
        """The end, once the peer has its own: a channel has two or none."""
        try:
            self._control.say({"opened": True}, deadline)
            if not field(self._control.hear(deadline), "opened", bool, self.peer):
                raise HandshakeError(
                    "channel-not-opened", f"{self.peer} has not opened its end of the channel"
                )
        except BaseException:
            end.close()
            del end  # with the connection that it watches: the peer hears of that one's end only
            raise
        return end

    @property
    def control(self) -> Control:
        """For other messages between the two, while no channel is being opened."""
        return self._control

    def close(self) -> None:
        """Hang up. Open channels stay open."""
        self._control.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _on_a_device(kind: type[AnyEnd], device: str, chosen: str) -> End[AnyEnd]:
    """Makes an end over a ring or, where a NIC has one of its own at each end, over its mirror."""

    def make(control: Control, spec: ChannelSpec, deadline: Deadline) -> AnyEnd:
        over: Any = engine(chosen)
        kept: Any = kind
        with over.joined(control, spec, deadline, sends=kept.sends) as (segment, peer, watched, writer):
            end: AnyEnd = kept(
                segment, peer, watched,
                timeout_s=spec.timeout_s, device=device, engine=chosen, writer=writer,
            )  # fmt: skip
            return end

    return make
