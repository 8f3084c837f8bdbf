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
from collections.abc import Generator, Iterator
from selectors import EVENT_READ, DefaultSelector
from typing import NamedTuple, NoReturn

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
    watched: tuple[int, ...]  # descriptors that tell of its end; to be copied


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
        try:
            socket.send_fds(connection, [b"ring"], [segment.descriptor])
        except ConnectionError:
            _raise_its_end(control, deadline)
        except OSError as error:
            raise HandshakeError(f"cannot hand shared memory over to {control.peer}: {error}") from error
        with _watched(connection) as watched:
            yield Handed(segment, _called(control, terms), watched)


@contextlib.contextmanager
def taken_ring(control: Control, terms: Terms, deadline: Deadline) -> Iterator[Handed]:
    """The sender's half: fetch the ring, and see that it is what was offered."""
    offer = control.hear(deadline)
    name, token = (field(offer, key, bytes, control.peer) for key in ("socket", "token"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(deadline.wait_s)
        try:
            connection.connect(name)
            connection.send(token)
            said, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
        except TimeoutError as error:
            raise ChannelTimeoutError(f"{control.peer} did not hand over its memory in time") from error
        except ConnectionError:  # nobody is there any more: why not is heard below
            said, descriptors = b"", []
        except OSError as error:
            raise HandshakeError(f"cannot take over the shared memory of {control.peer}: {error}") from error
        with _closing(descriptors):
            if not said:
                _raise_its_end(control, deadline)
            if len(descriptors) != 1:
                raise HandshakeError(f"{control.peer} has not handed over its shared memory")
            segment = _attach(descriptors[0], terms, control)
            with _watched(connection) as watched:
                yield Handed(segment, _called(control, terms), watched)


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
    """A local connection to the process at the other end of `control`. It tells of its end ever after."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    name = b"\0lamina-" + secrets.token_hex(16).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(name)
        listening.listen()
        control.say({"socket": name, "token": token}, deadline)
        with contextlib.closing(_visitors(listening, control, deadline)) as visitors:
            for visitor in visitors:
                with visitor:
                    if _shows(visitor, token):
                        yield visitor
                        return


def _visitors(
    listening: socket.socket, control: Control, deadline: Deadline
) -> Generator[socket.socket, None, None]:
    """Those of our own user that come and say something. Nobody is waited for who has come and is silent."""
    with contextlib.ExitStack() as opened, DefaultSelector() as waiting:
        waiting.register(control, EVENT_READ)
        waiting.register(listening, EVENT_READ)
        while ready := waiting.select(deadline.wait_s):
            for key, _ in ready:
                if key.fileobj is control:
                    _raise_its_end(control, deadline)
                if key.fileobj is listening:
                    visitor = opened.enter_context(listening.accept()[0])
                    if _credentials(visitor)[1] == os.getuid():
                        waiting.register(visitor, EVENT_READ, visitor)
                    else:
                        visitor.close()
                else:
                    waiting.unregister(key.data)
                    yield key.data
    raise ChannelTimeoutError(f"{control.peer} did not come for its shared memory")


def _shows(visitor: socket.socket, token: bytes) -> bool:
    with contextlib.suppress(OSError):
        return hmac.compare_digest(visitor.recv(_TOKEN_BYTES, socket.MSG_DONTWAIT), token)
    return False


def _raise_its_end(control: Control, deadline: Deadline) -> NoReturn:
    """Raise why the peer does not go on: it has refused or is gone, and neither is silent."""
    control.hear(deadline)
    raise HandshakeError(f"{control.peer} speaks of something else while memory is handed over")


@contextlib.contextmanager
def _watched(connection: socket.socket) -> Iterator[tuple[int, ...]]:
    """What tells of the other process's end: its connection and, where it can be seen, the process.

    Either alone would miss some: a child that it has forked keeps a connection open, and a process of another
    pid namespace cannot be seen: it has no number here.
    """
    pid, _, _ = _credentials(connection)
    try:
        process = os.pidfd_open(pid)
    except OSError:
        yield (connection.fileno(),)
        return
    try:
        yield connection.fileno(), process
    finally:
        os.close(process)


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid, gid


@contextlib.contextmanager
def _closing(descriptors: list[int] | array.array[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _called(control: Control, terms: Terms) -> str:
    return f"{control.peer} (channel {terms.name})"
