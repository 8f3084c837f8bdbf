"""How two processes meet, undisturbed by other peers."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from fhbn_support import Both

from lamina import fhbn
from lamina.fhbn.control import Control, Deadline, greeting


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_a_process_without_a_sound_name_is_refused(secret: bytes, name: str) -> None:
    with pytest.raises(ValueError, match="a process's name has 1 to 200 printable characters"):
        fhbn.Listener(name, secret)
    with pytest.raises(ValueError, match="a process's name has 1 to 200 printable characters"):
        fhbn.connect("127.0.0.1:9", name=name, secret=secret)


@pytest.mark.parametrize("address", ["", "somewhere", "127.0.0.1:", "127.0.0.1:http"])
def test_an_address_without_a_port_is_refused(secret: bytes, address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        fhbn.connect(address, name="x", secret=secret)


def test_no_listener_is_an_error(secret: bytes) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
        with pytest.raises(fhbn.HandshakeError, match="channel-connect"):
            fhbn.connect(f"{host}:{port}", name="x", secret=secret)


def test_a_port_in_use_is_an_error(listener: fhbn.Listener, secret: bytes) -> None:
    port = int(listener.address.split(":")[1])
    with pytest.raises(fhbn.HandshakeError, match="channel-listen"):
        fhbn.Listener("second", secret, port=port)


@pytest.mark.parametrize("port", ["0", "99999", "9" * 30])
def test_a_port_that_cannot_be_connected_to_is_refused(secret: bytes, port: str) -> None:
    with pytest.raises(ValueError, match="has a port that cannot be: give one of 1 to 65535"):
        fhbn.connect(f"127.0.0.1:{port}", name="x", secret=secret)


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_cannot_be_listened_on_is_refused(secret: bytes, port: int) -> None:
    with pytest.raises(ValueError, match=f"on port {port}: give 1 to 65535, or 0 for any"):
        fhbn.Listener("x", secret, port=port)


def test_a_closed_listener_says_so(listener: fhbn.Listener) -> None:
    listener.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        listener.accept(1)


def test_without_a_free_descriptor_it_says_so(
    listener: fhbn.Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with stranger(listener):
        monkeypatch.setattr(socket.socket, "accept", full)
        with pytest.raises(fhbn.HandshakeError, match="channel-accept"):
            listener.accept(30)


def test_no_peer_is_a_timeout(listener: fhbn.Listener) -> None:
    for timeout_s in (0, 0.01):
        with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
            listener.accept(timeout_s)
    for senseless in (-1, float("nan")):
        with pytest.raises(ValueError, match="a number of seconds, 0 or more"):
            listener.accept(senseless)


def test_a_listener_that_does_not_answer_is_a_timeout(secret: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", late)
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        fhbn.connect("127.0.0.1:9", name="x", secret=secret)


def stranger(listener: fhbn.Listener, sent: bytes = b"") -> socket.socket:
    host, port = listener.address.split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(sent)
    return connection


def test_silent_peers_do_not_block_others(
    listener: fhbn.Listener, meet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they have said anything, in the middle of their greeting, and after it."""
    monkeypatch.setattr("lamina.fhbn.link._GREETING_S", 1.0)
    whole = greeting() + bytes(31)
    with ExitStack() as strangers:
        for sent in (b"", whole[:7], whole[:48], whole) * 10:
            strangers.enter_context(stranger(listener, sent))
        start = time.monotonic()
        ours, theirs = meet("worker", 60)
        # One after the other they would take 40 s.
        assert time.monotonic() - start < 20
        with ours, theirs:
            assert ours.peer == "worker"


def test_one_that_says_nothing_is_turned_away(
    listener: fhbn.Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.fhbn.link._GREETING_S", 0.01)
    with stranger(listener) as silent:
        silent.settimeout(30)
        with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
            listener.accept(0.5)
        assert len(silent.recv(100)) == 48
        assert silent.recv(1) == b""


def test_several_that_come_at_once_are_all_met(listener: fhbn.Listener, secret: bytes) -> None:
    names = {f"worker {number}" for number in range(5)}
    with ThreadPoolExecutor(len(names)) as pool, ExitStack() as links:
        coming = [
            pool.submit(fhbn.connect, listener.address, name=name, secret=secret, timeout_s=60)
            for name in names
        ]
        met = [links.enter_context(listener.accept(60)) for _ in names]
        for link in coming:
            links.enter_context(link.result(60))
    assert {link.peer for link in met} == names


def test_a_meeting_that_fails_is_hung_up(secret: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        server.settimeout(30)

        def answer() -> Control:
            control = Control(server.accept()[0], secret, listening=True, deadline=Deadline(30))
            control.send_message({"name": "a\nb", "place": {"machine": "x", "user": 0}}, Deadline(30))
            return control

        answering = pool.submit(answer)
        host, port = server.getsockname()
        with pytest.raises(fhbn.HandshakeError, match="channel-message") as failed:
            fhbn.connect(f"{host}:{port}", name="x", secret=secret)
        other = answering.result(30)
        other.receive_message(Deadline(30))
        # Though the error is kept, and all that it refers to with it.
        with pytest.raises(fhbn.PeerLostError):
            other.receive_message(Deadline(30))
        assert failed.value is not None


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e9])
def test_a_meeting_may_wait_for_ever(meet: Callable[..., Any], both: Both, timeout_s: float) -> None:
    ours, theirs = meet(timeout_s=timeout_s)
    with ours, theirs:
        sender, receiver = both(
            lambda: ours.sender("a", timeout_s=timeout_s),
            lambda: theirs.receiver("a", message_bytes=64, timeout_s=timeout_s),
        )
        sender.send(b"x")
        assert bytes(receiver.recv()[0]) == b"x"
