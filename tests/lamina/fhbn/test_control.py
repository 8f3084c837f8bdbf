"""The control connection: authentication, garbage, and what closes it."""

from __future__ import annotations

import hmac
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from fhbn_support import Both, soon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina import fhbn
from lamina.fhbn.control import MOST_MESSAGE_BYTES, Control, Deadline, RefusedError, field

Pair = tuple[Control, Control]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        return first, server.accept()[0]


def raw(control: Control, data: bytes) -> None:
    """Bytes that an attacker on the network might insert."""
    control._socket.sendall(data)


def frame(body: bytes, code: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body + code


def test_messages_cross_both_ways_in_order(pair: Pair) -> None:
    for one, other in (pair, pair[::-1]):
        for number in range(3):
            one.send_message({"number": number, "bytes": bytes(number), "list": [None, 1.5, "é"]}, soon())
        for number in range(3):
            result = other.receive_message(soon())
            assert result == {"number": number, "bytes": bytes(number), "list": [None, 1.5, "é"]}


def test_a_late_message_is_received_later(pair: Pair) -> None:
    one, other = pair
    body = msgpack.packb({"a": 1})
    whole = frame(body, one._code(one._own, 0, body))
    for cut in (2, 6, len(whole) - 1):
        raw(one, whole[:cut])
        with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
            other.receive_message(Deadline(0.01))
        raw(one, whole[cut:])
        assert other.receive_message(soon()) == {"a": 1}
        one._sent, other._received = 0, 0


@pytest.mark.parametrize("place", range(8))
def test_a_changed_byte_is_noticed(pair: Pair, place: int) -> None:
    one, other = pair
    body = msgpack.packb({"key": "v"})
    whole = bytearray(frame(body, one._code(one._own, 0, body)))
    whole[4 + place * 5 % (len(whole) - 4)] ^= 1
    raw(one, bytes(whole))
    with pytest.raises(fhbn.HandshakeError, match="channel-message"):
        other.receive_message(soon())
    with pytest.raises(fhbn.PeerLostError):
        other.receive_message(soon())


def test_a_message_cannot_be_repeated_or_sent_back(pair: Pair) -> None:
    one, other = pair
    body = msgpack.packb({"a": 1})
    first = frame(body, one._code(one._own, 0, body))
    raw(one, first)
    assert other.receive_message(soon()) == {"a": 1}
    raw(one, first)
    raw(other, first)
    for end in pair:
        with pytest.raises(fhbn.HandshakeError, match="channel-message"):
            end.receive_message(soon())


def test_a_huge_message_is_neither_sent_nor_read(pair: Pair) -> None:
    one, other = pair
    with pytest.raises(ValueError, match="a control message has up to 16,777,216 bytes, not 16,777,2"):
        one.send_message({"a": bytes(MOST_MESSAGE_BYTES)}, soon())
    raw(one, struct.pack("<I", MOST_MESSAGE_BYTES + 1))
    with pytest.raises(fhbn.HandshakeError, match="channel-message"):
        other.receive_message(soon())


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xc1", b"\x82\xa1a", b"\x80\x80", b"\x91" * 2000),
        b"\x81\x01\x02",  # keys are text
        *(msgpack.packb([1]), msgpack.packb(None)),  # no map
    ],
)
def test_an_invalid_body_is_an_error(pair: Pair, body: bytes) -> None:
    one, other = pair
    raw(one, frame(body, one._code(one._own, 0, body)))
    with pytest.raises(fhbn.HandshakeError, match="channel-message"):
        other.receive_message(soon())


def test_a_refusal_is_raised_with_its_reason(pair: Pair) -> None:
    one, other = pair
    one.peer = "attention worker 3"
    other.refuse("there is no room", soon())
    with pytest.raises(RefusedError, match="channel-refused"):
        one.receive_message(soon())
    other.send_message({"a": 1}, soon())
    assert one.receive_message(soon()) == {"a": 1}


def test_the_peers_end_is_reported(pair: Pair) -> None:
    one, other = pair
    other.close()
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        one.receive_message(soon())
    assert one.fileno() == -1


@pytest.mark.parametrize("kind", [int, str, bytes, dict])
@pytest.mark.parametrize("value", [None, 1.5, True, [1]])
def test_a_field_of_another_type_is_refused(kind: type, value: object) -> None:
    with pytest.raises(fhbn.HandshakeError, match="channel-message"):
        field({"size": value}, "size", kind, "x")


def test_another_secret_is_refused_on_both_sides(both: Both, listener: fhbn.Listener) -> None:
    def steal() -> None:
        with pytest.raises(fhbn.HandshakeError, match="channel-secret"):
            fhbn.connect(listener.address, name="thief", secret=bytes(16))

    def accept() -> None:
        with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
            listener.accept(1)

    both(accept, steal)


def test_a_listener_that_is_not_ours_is_refused(both: Both, secret: bytes) -> None:
    """It can do no better than to send a proof made up, or our own one back."""
    first, second = tcp_pair()

    def impostor() -> None:
        greeting = second.recv(48)
        second.sendall(greeting)
        second.sendall(second.recv(32))

    with first, second, pytest.raises(fhbn.HandshakeError, match="channel-secret"):
        both(lambda: Control(first, secret, listening=False, deadline=soon()), impostor)


@pytest.mark.parametrize("secret", [b"", b"short", bytes(15)])
def test_a_secret_that_is_none_is_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes or more"):
        fhbn.Listener("x", secret)
    with pytest.raises(ValueError, match="16 bytes or more"):
        fhbn.connect("127.0.0.1:9", name="x", secret=secret)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=200), greets=st.booleans())
def test_garbage_does_not_affect_other_peers(
    meet: Callable[[], Any], listener: fhbn.Listener, garbage: bytes, greets: bool
) -> None:
    host, port = listener.address.split(":")
    with socket.create_connection((host, int(port))) as stranger:
        if greets:
            stranger.sendall(b"lamina control 1" + bytes(32))
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        ours, theirs = meet()
        with ours, theirs:
            assert ours.peer == "attention worker 0"
            assert theirs.peer == "model worker 0"


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    message=st.dictionaries(
        st.sampled_from(["name", "place", "refused", "x"]),
        st.recursive(
            st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=300) | st.binary(max_size=20),
            lambda inner: (
                st.dictionaries(st.sampled_from(["machine", "user"]), inner) | st.lists(inner, max_size=3)
            ),
            max_leaves=5,
        ),
    )
)
def test_a_strange_introduction_is_turned_away(both: Both, secret: bytes, message: dict[str, Any]) -> None:
    """From a peer with the secret: a bug, or another version."""
    first, second = tcp_pair()

    def introduce() -> None:
        control = Control(first, secret, listening=False, deadline=soon())
        control.send_message(message, soon())

    def meet() -> fhbn.Link | fhbn.ChannelError:
        try:
            return fhbn.Link(
                Control(second, secret, listening=True, deadline=soon()), "model worker 0", soon()
            )
        except fhbn.ChannelError as error:
            return error

    with first, second:
        met, _ = both(meet, introduce)
    if isinstance(met, fhbn.Link):
        assert isinstance(message["name"], str)
        assert isinstance(message["place"]["machine"], str)
    else:
        assert str(met)
        assert "\n" not in str(met)


def test_proofs_are_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch, meet: Callable[[], Any]
) -> None:
    compared = []
    compare = hmac.compare_digest

    def noted(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    for link in meet():
        link.close()
    assert len(compared) == 4  # a proof and an introduction from either side


def interrupt_send(control: Control) -> None:
    """What the peer does not read, and so half of it is out when the signal comes."""
    control.send_message({"a": bytes(15 << 20)}, soon(), lambda: signal.raise_signal(signal.SIGALRM))


def send_for_ever(control: Control, deadline: Deadline) -> None:
    while True:
        control.send_message({"a": bytes(8 << 20)}, deadline)


def receive_for_ever(control: Control) -> None:
    while True:
        control.receive_message(soon())


def test_an_interruption_of_half_a_message_closes_it(pair: Pair) -> None:
    one, other = pair
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt_send(one)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert one.fileno() == -1
    with pytest.raises(fhbn.PeerLostError):
        receive_for_ever(other)


@pytest.mark.parametrize("call", ["send", "recv"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ConnectionResetError])
def test_a_socket_failure_closes_the_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, call: str, error: type[BaseException]
) -> None:
    one, _ = pair

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, call, fail)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else fhbn.PeerLostError):
        one.receive_message(soon()) if call == "recv" else one.send_message({}, soon())
    assert one.fileno() == -1


def test_a_message_that_was_not_taken_whole_closes_it(pair: Pair) -> None:
    one, _ = pair
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        send_for_ever(one, Deadline(0.05))
    assert one.fileno() == -1
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        one.send_message({}, soon())


def test_no_time_is_a_timeout_and_leaves_it_open(pair: Pair) -> None:
    one, other = pair
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        one.receive_message(Deadline(0))
    other.send_message({"a": 1}, soon())
    assert one.receive_message(Deadline(float("inf"))) == {"a": 1}


def test_invalid_times_are_refused() -> None:
    for senseless in (-1e-9, float("-inf"), float("nan")):
        with pytest.raises(ValueError, match="a number of seconds, 0 or more"):
            Deadline(senseless)
    assert Deadline(0).left_s == 0
    assert 0 < Deadline(0).wait_s < 1e-3
    with socket.socket() as waits:
        waits.settimeout(Deadline(float("inf")).wait_s)
