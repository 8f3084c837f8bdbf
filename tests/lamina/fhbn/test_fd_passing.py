"""How a ring is handed over, and what keeps it from others."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fhbn_support import SPEC, Both, Links, Open, soon

from lamina import fhbn
from lamina._native import ShmReceiver, ShmSegment
from lamina.fhbn import fd_passing, shm


@pytest.fixture
def before_coming(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[dict[str, Any]], None]], None]:
    """Have something done when the sender has heard where to come, and has not come yet."""
    field = fd_passing.field

    def install(act: Callable[[dict[str, Any]], None]) -> None:
        def spied(message: dict[str, Any], name: str, kind: type, peer: str) -> Any:
            if name == "token":
                act(message)
            return field(message, name, kind, peer)

        monkeypatch.setattr(fd_passing, "field", spied)

    return install


Before = Callable[[Callable[[dict[str, Any]], None]], None]


def visitor(offer: dict[str, Any]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(30)
    connection.connect(offer["socket"])
    return connection


def test_memory_is_given_only_for_the_token(ends: Open, before_coming: Before) -> None:
    """Somebody else on this machine finds the local socket, and comes first."""
    got: list[bytes] = []

    def steal(offer: dict[str, Any]) -> None:
        for shown in (b"", bytes(32), offer["token"][:-1]):
            with visitor(offer) as thief:
                thief.send(shown)
                got.append(thief.recv(16))

    before_coming(steal)
    ends()
    assert got == [b"", b"", b""]


def test_another_user_does_not_get_the_memory_with_the_token_either(
    ends: Open, before_coming: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = fd_passing._credentials
    got: list[bytes] = []

    def anothers(connection: socket.socket) -> tuple[int, int, int]:
        pid, user, group = credentials(connection)
        return pid, user + 1, group

    def steal(offer: dict[str, Any]) -> None:
        monkeypatch.setattr(fd_passing, "_credentials", anothers)
        with visitor(offer) as thief, contextlib.suppress(BrokenPipeError):
            thief.send(offer["token"])
            with contextlib.suppress(ConnectionResetError):  # it was not even read
                got.append(thief.recv(16))
        monkeypatch.setattr(fd_passing, "_credentials", credentials)

    before_coming(steal)
    ends()
    assert got in ([], [b""])


def test_silent_peers_are_not_waited_for(ends: Open, before_coming: Before) -> None:
    with contextlib.ExitStack() as strangers:

        def crowd(offer: dict[str, Any]) -> None:
            for _ in range(10):
                strangers.enter_context(visitor(offer))

        before_coming(crowd)
        sender, receiver = ends()
        sender.send(b"x")
        assert bytes(receiver.recv()[0]) == b"x"


def test_an_error_of_the_machine_is_not_a_strangers(
    links: Links, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = links

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(shm, "ShmReceiver", full)

    def refused() -> None:
        with pytest.raises(fhbn.HandshakeError, match="channel-refused"):
            ours.sender("a")

    start = time.monotonic()
    with pytest.raises(OSError, match="Too many open files"):
        both(lambda: theirs.receiver("a", message_bytes=64), refused)
    assert time.monotonic() - start < 25


@pytest.mark.parametrize(
    ("message", "error", "code"),
    [
        (None, fhbn.PeerLostError, "channel-peer-lost"),
        ({"refused": "no room"}, fhbn.HandshakeError, "channel-refused"),
        ({"a": 1}, fhbn.HandshakeError, "channel-handover"),
    ],
)
def test_a_lost_sender_is_reported_at_once(
    links: Links, both: Both, message: dict[str, Any] | None, error: type[Exception], code: str
) -> None:
    """It dies, or finds out that it cannot, when it has chosen already."""
    ours, theirs = links

    def give_up() -> None:
        theirs.control.receive_message(soon())
        theirs.control.send_message({"use": "shm"}, soon())
        theirs.control.receive_message(soon())
        theirs.close() if message is None else theirs.control.send_message(message, soon())

    start = time.monotonic()
    with pytest.raises(error, match=code):
        both(lambda: ours.receiver("a", message_bytes=64, timeout_s=60), give_up)
    assert time.monotonic() - start < 30


def test_a_missing_sender_is_a_timeout(links: Links, both: Both) -> None:
    ours, theirs = links

    def choose() -> None:
        theirs.control.receive_message(soon())
        theirs.control.send_message({"use": "shm"}, soon())

    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        both(lambda: ours.receiver("a", message_bytes=64, timeout_s=1), choose)


def hand(link: fhbn.Link, descriptors: list[int] | None) -> None:
    """Be a receiver that hands these over, or nothing."""
    link.control.send_message({"engines": ["shm"], "missing": {}, "terms": SPEC.to_wire()}, soon())
    link.control.receive_message(soon())
    name = b"\0lamina-test-" + os.urandom(16).hex().encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(name)
        listening.listen()
        listening.settimeout(30)
        link.control.send_message({"socket": name, "token": bytes(32)}, soon())
        if descriptors is None:
            with contextlib.suppress(fhbn.PeerLostError):
                link.control.receive_message(soon())  # the other side gives up
            return
        with listening.accept()[0] as connection:
            connection.recv(32)
            socket.send_fds(connection, [b"ring"], descriptors)


def test_no_memory_at_all_is_a_finding(links: Links, both: Both) -> None:
    ours, theirs = links
    with pytest.raises(fhbn.HandshakeError, match="channel-handover"):
        both(lambda: ours.sender("a"), lambda: hand(theirs, []))


def test_memory_that_does_not_come_is_a_timeout(links: Links, both: Both) -> None:
    ours, theirs = links
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        both(lambda: ours.sender("a", timeout_s=1), lambda: hand(theirs, None))


@pytest.mark.parametrize(
    "other",
    [(65, 4, 7, 0), (64, 8, 7, 0), (64, 4, 8, 0), (64, 4, 7, 1)],
    ids=["message_bytes", "slots", "epoch", "first_seqno"],
)
def test_another_ring_than_was_offered_is_refused(
    links: Links, both: Both, other: tuple[int, int, int, int]
) -> None:
    ours, theirs = links
    message_bytes, slots, epoch, first_seqno = other
    ring = ShmSegment.create(message_bytes, slots, epoch=epoch, first_seqno=first_seqno)
    with pytest.raises(fhbn.HandshakeError, match="channel-ring"):
        both(lambda: ours.sender("a"), lambda: hand(theirs, [ring.descriptor]))


def unseen(pid: int) -> int:
    """As it is for a process of another pid namespace."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), pid)


@pytest.mark.parametrize("observed", [True, False])
def test_descriptors_of_the_peers_end_are_watched(
    listener: fhbn.Listener,
    spawn: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    observed: bool,
) -> None:
    """The connection over which the ring went, and the process where it can be seen."""
    kinds: list[str] = []
    watching: list[int] = []

    def noted(segment: ShmSegment, peer: str, watched: tuple[int, ...], **options: float) -> ShmReceiver:
        for number in watched:
            kinds.append(str(Path(f"/proc/self/fd/{number}").readlink()).split(":")[0])
            about = Path(f"/proc/self/fdinfo/{number}").read_text()
            watching.extend(int(line.split()[1]) for line in about.splitlines() if line.startswith("Pid:"))
        return ShmReceiver(segment, peer, watched, **options)

    monkeypatch.setattr(shm, "ShmReceiver", noted)
    if not observed:
        monkeypatch.setattr(os, "pidfd_open", unseen)
    child = spawn("producer", "shm")
    with listener.accept() as link:
        receiver = link.receiver("data", message_bytes=1 << 14, network="shm")
    assert kinds == (["socket", "anon_inode"] if observed else ["socket"])
    assert watching == ([child.pid] if observed else [])
    receiver.recv().release()  # the link is closed, and the channel is not
    child.kill()
    with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
        receive_for_ever(receiver)


def receive_for_ever(receiver: fhbn.Receiver) -> None:
    while True:
        receiver.recv().release()


@pytest.mark.parametrize("observed", [True, False])
def test_a_closed_link_is_not_a_lost_worker(
    links: Links, ends: Open, monkeypatch: pytest.MonkeyPatch, observed: bool
) -> None:
    if not observed:
        monkeypatch.setattr(os, "pidfd_open", unseen)
    sender, receiver = ends()
    for link in links:
        link.close()
    with pytest.raises(fhbn.ChannelTimeoutError):
        receiver.recv(timeout_s=0.1)
    for _ in range(4):
        sender.send(b"x")
    with pytest.raises(fhbn.ChannelTimeoutError):
        sender.send(b"x", timeout_s=0.1)
    assert bytes(receiver.recv()[0]) == b"x"
