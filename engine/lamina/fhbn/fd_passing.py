"""Passing open files between two processes of one user, over a short-lived local socket.

It has a random name in no file system, and a process that connects has to show a token that was sent over the
authenticated connection.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Generator, Iterator
from selectors import EVENT_READ, DefaultSelector
from typing import NoReturn

from lamina.fhbn.control import Control, Deadline, Place, field
from lamina.fhbn.errors import ChannelTimeoutError, HandshakeError

_TOKEN_BYTES = 32
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MOST_WORDS_BYTES = 64


def impossible(here: Place, there: Place) -> str | None:
    """Return why nothing can be handed over between the two, in words that follow "because"."""
    if here.machine != there.machine:
        return "the two processes are on different machines, or in different network namespaces"
    if here.user != there.user:
        return f"the two processes belong to different users, {here.user} and {there.user}"
    return None


@contextlib.contextmanager
def meeting_point(control: Control, deadline: Deadline) -> Iterator[socket.socket]:
    """Yield a local connection to the process at the other end of `control`, which comes for it.

    It shows its end from then on.
    """
    token = secrets.token_bytes(_TOKEN_BYTES)
    name = b"\0lamina-" + secrets.token_hex(16).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(name)
        listening.listen()
        control.send_message({"socket": name, "token": token}, deadline)
        with contextlib.closing(_visitors(listening, control, deadline)) as visitors:
            for visitor in visitors:
                with visitor:
                    if _shows(visitor, token):
                        yield visitor
                        return


@contextlib.contextmanager
def visit(control: Control, deadline: Deadline) -> Iterator[socket.socket]:
    """Connect to the address where the other process waits."""
    offer = control.receive_message(deadline)
    name, token = (field(offer, key, bytes, control.peer) for key in ("socket", "token"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(deadline.wait_s)
        try:
            connection.connect(name)
            connection.send(token)
        except ConnectionError:  # the peer is lost
            _raise_its_end(control, deadline)
        except OSError as error:
            raise _not_taken(error, control) from error
        yield connection


def give(
    connection: socket.socket, words: bytes, descriptor: int, control: Control, deadline: Deadline
) -> None:
    """Hand an open file over, with a few words."""
    try:
        socket.send_fds(connection, [words], [descriptor])
    except ConnectionError:
        _raise_its_end(control, deadline)
    except OSError as error:
        raise HandshakeError(
            "channel-handover", f"cannot hand shared memory over to {control.peer}: {error}"
        ) from error


@contextlib.contextmanager
def taken(connection: socket.socket, control: Control, deadline: Deadline) -> Iterator[tuple[bytes, int]]:
    """Receive the peer's words and an open file, which is closed afterwards."""
    connection.settimeout(deadline.wait_s)
    try:
        words, descriptors, _, _ = socket.recv_fds(connection, _MOST_WORDS_BYTES, 1)
    except ConnectionError:  # the peer is lost; the reason is read below
        words, descriptors = b"", []
    except OSError as error:
        raise _not_taken(error, control) from error
    with contextlib.ExitStack() as opened:
        for descriptor in descriptors:
            opened.callback(os.close, descriptor)
        if not words:
            _raise_its_end(control, deadline)
        if len(descriptors) != 1:
            raise HandshakeError("channel-handover", f"{control.peer} has not handed over its shared memory")
        yield words, descriptors[0]


def _not_taken(error: OSError, control: Control) -> Exception:
    if isinstance(error, TimeoutError):
        return ChannelTimeoutError(f"{control.peer} did not hand over its memory in time")
    return HandshakeError(
        "channel-handover", f"cannot take over the shared memory of {control.peer}: {error}"
    )


def _visitors(
    listening: socket.socket, control: Control, deadline: Deadline
) -> Generator[socket.socket, None, None]:
    """Yield the connections of our own user that have sent something. A silent one holds up no other."""
    with contextlib.ExitStack() as opened, DefaultSelector() as waiting:
        waiting.register(control, EVENT_READ)
        waiting.register(listening, EVENT_READ)
        listening.setblocking(False)
        while ready := waiting.select(deadline.wait_s):
            for key, _ in ready:
                if key.fileobj is control:
                    _raise_its_end(control, deadline)
                if key.fileobj is listening:
                    try:
                        visitor = opened.enter_context(listening.accept()[0])  # waits: it does not block
                    except (BlockingIOError, ConnectionError):  # it disconnected again
                        continue
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
    """Raise the peer's refusal or loss; both are reported by the connection."""
    control.receive_message(deadline)
    raise HandshakeError(
        "channel-handover", f"{control.peer} sent another message while memory was handed over"
    )


@contextlib.contextmanager
def watched(connection: socket.socket) -> Iterator[tuple[int, ...]]:
    """Yield the descriptors that show the other process's end: its connection and, if visible, its pidfd.

    Either alone would miss some: a child that it has forked keeps a connection open, and a process of another
    pid namespace is not visible: it has no number here.
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
