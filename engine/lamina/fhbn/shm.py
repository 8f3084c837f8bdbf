"""The engine for two processes of one user on one machine: shared memory, one copy in, none out.

The receiver's memory has no name. It is handed to the sender as an open file, over a local socket that exists
only for that moment, under a random name in no file system; whoever connects has to show a token that was
sent over the authenticated connection.
"""

from __future__ import annotations

import array
import contextlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from lamina import host_memory
from lamina._native import ShmReceiver, ShmSegment, ShmSender
from lamina.fhbn.control import Control, field
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelTimeoutError, HandshakeError
from lamina.fhbn.place import Place
from lamina.fhbn.terms import Terms

_TOKEN_BYTES = 32
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def missing(here: Place, there: Place) -> str | None:
    """Memory is shared on one machine only."""
    if here.machine != there.machine:
        return "the two processes are on different machines, or in different network namespaces"
    if here.user != there.user:
        return f"the two processes belong to different users, {here.user} and {there.user}"
    return None


class Handed(NamedTuple):
    """A ring that two processes have, and for one of them who the other one is."""

    segment: ShmSegment
    peer: str
    watched: int  # a descriptor that tells of its end; to be copied


def receiver(control: Control, terms: Terms, deadline: Deadline) -> ShmReceiver:
    """Make the ring and hand it to the sender."""
    with made_ring(control, terms, deadline) as ring:
        return ShmReceiver(*ring, timeout_s=terms.timeout_s, spin_s=terms.spin_s)


def sender(control: Control, terms: Terms, deadline: Deadline) -> ShmSender:
    """Take the receiver's ring."""
    with taken_ring(control, terms, deadline) as ring:
        return ShmSender(*ring, timeout_s=terms.timeout_s, spin_s=terms.spin_s)


@contextlib.contextmanager
def made_ring(control: Control, terms: Terms, deadline: Deadline) -> Iterator[Handed]:
    """The receiver's half: make the ring and hand it over."""
    segment = _new_ring(terms)
    with _handing_over(control, deadline) as connection:
        socket.send_fds(connection, [b"ring"], [segment.descriptor])
        with _watched(connection, control) as watched:
            yield Handed(segment, _called(control, terms), watched)


@contextlib.contextmanager
def taken_ring(control: Control, terms: Terms, deadline: Deadline) -> Iterator[Handed]:
    """The sender's half: fetch the ring, and see that it is what was offered."""
    offer = control.hear(deadline)
    name, token = (field(offer, key, bytes, control.peer) for key in ("socket", "token"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(deadline.left_s or 1e-6)
        try:
            connection.connect(name)
            connection.send(token)
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
        except OSError as error:
            raise HandshakeError(f"cannot take over the shared memory of {control.peer}: {error}") from error
        with _closing(descriptors), _watched(connection, control) as watched:
            if len(descriptors) != 1:
                raise HandshakeError(f"{control.peer} has not handed over its shared memory")
            yield Handed(_attach(descriptors[0], terms, control), _called(control, terms), watched)


def _new_ring(terms: Terms) -> ShmSegment:
    shape = terms.message_bytes, terms.slots
    needed, free = ShmSegment.bytes_for(*shape), host_memory.free_bytes()
    if needed > free:
        raise HandshakeError(
            f"channel {terms.name} takes {needed:,} bytes for {terms.slots} messages of "
            f"{terms.message_bytes:,}, and {free:,} bytes of memory are free: make them smaller or fewer"
        )
    return ShmSegment.create(*shape, epoch=terms.epoch, first_seqno=terms.first_seqno)


def _attach(descriptor: int, terms: Terms, control: Control) -> ShmSegment:
    try:
        segment = ShmSegment.attach(descriptor)
    except ValueError as error:
        raise HandshakeError(f"{control.peer}: {error}") from error
    found = (segment.message_bytes, segment.slots, segment.epoch, segment.first_seqno)
    if found != (terms.message_bytes, terms.slots, terms.epoch, terms.first_seqno):
        raise HandshakeError(f"{control.peer} has handed over another ring than it had offered")
    return segment


@contextlib.contextmanager
def _handing_over(control: Control, deadline: Deadline) -> Iterator[socket.socket]:
    """A local connection to the process at the other end of `control`."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    name = b"\0lamina-" + secrets.token_hex(16).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(name)
        listening.listen()
        control.say({"socket": name, "token": token}, deadline)
        while True:
            listening.settimeout(deadline.left_s or 1e-6)
            try:
                connection, _ = listening.accept()
            except TimeoutError as error:
                raise ChannelTimeoutError(f"{control.peer} did not come for its shared memory") from error
            with connection:
                connection.settimeout(deadline.left_s or 1e-6)
                with contextlib.suppress(OSError):
                    shown = connection.recv(_TOKEN_BYTES)
                    if _user_of(connection) == os.getuid() and hmac.compare_digest(shown, token):
                        yield connection
                        return


@contextlib.contextmanager
def _watched(connection: socket.socket, control: Control) -> Iterator[int]:
    """What tells of the other process's end: itself, or where it cannot be seen, the connection to it."""
    pid, _, _ = _credentials(connection)
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # of another pid namespace, where it has no number here
        yield control.fileno()
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid, gid


def _user_of(connection: socket.socket) -> int:
    return _credentials(connection)[1]


@contextlib.contextmanager
def _closing(descriptors: list[int] | array.array[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _called(control: Control, terms: Terms) -> str:
    return f"{control.peer} (channel {terms.name})"
