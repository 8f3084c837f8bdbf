"""The connection over which two processes agree: authenticated, in small msgpack messages, never pickle.

Both prove that they know the same secret before either reads anything of variable size, and every message
after that carries a code that only they can make. It is not encrypted.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from lamina.fhbn.errors import ChannelTimeoutError, HandshakeError, PeerLostError
from lamina.fhbn.readiness import LONGEST_WAIT_S

# Thirty years: callers may pass `inf`, and no clock overflows.
LONGEST_S = 1e9
# A socket takes 0 for: do not wait, say EAGAIN.
_SHORTEST_WAIT_S = 1e-6


def seconds(timeout_s: float) -> float:
    """Return a caller's time limit, within what clocks can count; ValueError if it is no number."""
    if not timeout_s >= 0:
        raise ValueError(f"a timeout of {timeout_s}: give a number of seconds, 0 or more")
    return min(timeout_s, LONGEST_S)


class Deadline:
    """`timeout_s` from now, handed through the steps of one call."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + seconds(timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    @property
    def wait_s(self) -> float:
        """Return the remaining time for a system call: never zero, never more than it can count."""
        return min(max(self.left_s, _SHORTEST_WAIT_S), LONGEST_WAIT_S)

    def sooner(self, timeout_s: float) -> Deadline:
        """Return this deadline, or one `timeout_s` from now if that comes first."""
        return Deadline(min(self.left_s, timeout_s))


LEAST_SECRET_BYTES = 16
MOST_MESSAGE_BYTES = 16 << 20
_MAX_NAME = 200
_PATIENCE_S = 0.1
_MAGIC = b"lamina control 1"
_NONCE_BYTES = 32
_CODE_BYTES = 32
_LENGTH = struct.Struct("<I")
# Keep-alive: after 2 s of silence a probe every second, lost after three; data that was sent and not
# acknowledged is given up in that time too.
_KEEPALIVE = (
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 2),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 3),
    ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), 5000),
)
# What a connector says as soon as it was greeted: its own greeting, and the proof.
INTRODUCTION_BYTES = len(_MAGIC) + _NONCE_BYTES + _CODE_BYTES

# What msgpack has, with text as keys; field() looks into it.
WireMessage = dict[str, Any]

T = TypeVar("T")


def new_secret() -> bytes:
    """Return a secret for the processes of one run. Hand it over by a pipe or a private file."""
    return secrets.token_bytes(32)


def require_secret(secret: bytes) -> bytes:
    """Return the secret, or ValueError if it is too short to be one."""
    if len(secret) < LEAST_SECRET_BYTES:
        raise ValueError(f"a secret has {LEAST_SECRET_BYTES} bytes or more: use new_secret()")
    return secret


def sound_name(name: str, of: str = "a process") -> str:
    """Return a name that an error can carry; ValueError if it is none."""
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise ValueError(f"{of}'s name has 1 to {_MAX_NAME} printable characters, not {name[:40]!r}")
    return name


def greeting() -> bytes:
    """Return the first message of each end: the protocol's name, and a nonce."""
    return _MAGIC + secrets.token_bytes(_NONCE_BYTES)


class RefusedError(HandshakeError):
    """A refusal by the peer, with its reason."""


class Control:
    """One end of an authenticated connection. What goes wrong on it closes it."""

    def __init__(
        self,
        connection: socket.socket,
        secret: bytes,
        *,
        listening: bool,
        deadline: Deadline,
        greeted: bytes | None = None,
    ) -> None:
        """`greeted` is the greeting() that was sent already, if one was."""
        self._socket = connection
        self._pending = bytearray()  # received, and not yet taken
        self.peer = "the other process"  # until it has sent its name
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if greeted is None:
                greeted = greeting()
                self._write(greeted, deadline)
            self._authenticate(greeted[len(_MAGIC) :], secret, listening, deadline)
        except BaseException:
            self.close()
            raise

    def _authenticate(self, ours: bytes, secret: bytes, listening: bool, deadline: Deadline) -> None:
        reply = self._read(len(_MAGIC) + _NONCE_BYTES, deadline)
        if reply[: len(_MAGIC)] != _MAGIC:
            raise HandshakeError(
                "channel-protocol",
                "the connecting process does not use this version of lamina's control protocol",
            )
        theirs = reply[len(_MAGIC) :]
        session = (ours + theirs) if listening else (theirs + ours)
        # One key a direction: nothing can be sent back to where it came from.
        keys = [hmac.digest(secret, side + session, "sha256") for side in (b"listener", b"connector")]
        self._own, self._others = keys if listening else keys[::-1]
        self._sent = self._received = 0
        # The connector first: a listener shows nothing to a process without the secret.
        if listening:
            self._receive_proof(deadline)
        self._write(hmac.digest(self._own, b"proof", "sha256"), deadline)
        if not listening:
            self._receive_proof(deadline)

    def _receive_proof(self, deadline: Deadline) -> None:
        expected = hmac.digest(self._others, b"proof", "sha256")
        try:
            proof = self._read(_CODE_BYTES, deadline)
        except PeerLostError as error:
            raise HandshakeError(
                "channel-secret", "the other process hung up instead of proving that it has the same secret"
            ) from error
        if not hmac.compare_digest(expected, proof):
            raise HandshakeError("channel-secret", "the other process has another secret")

    def send_message(
        self, message: WireMessage, deadline: Deadline, between: Callable[[], None] | None = None
    ) -> None:
        """Send a message of what msgpack has. `between` is called now and then while the peer does not take
        it; what it raises ends the connection, since half a message may be out.
        """
        self.send(msgpack.packb(message), deadline, between)

    def send(self, body: bytes, deadline: Deadline, between: Callable[[], None] | None = None) -> None:
        """Send a message that is encoded already."""
        if len(body) > MOST_MESSAGE_BYTES:
            raise ValueError(f"a control message has up to {MOST_MESSAGE_BYTES:,} bytes, not {len(body):,}")
        code = self._code(self._own, self._sent, body)
        self._write(_LENGTH.pack(len(body)) + body + code, deadline, between)
        self._sent += 1

    def receive_message(self, deadline: Deadline) -> WireMessage:
        """Receive a message. Its sender is certain; whether its fields make sense is the caller's to check.

        An incomplete message stays and can be received later. A refusal by the peer is raised.
        """
        body = self.receive(deadline)
        try:
            message = self._decoded(body)
        except HandshakeError:
            self.close()
            raise
        if "refused" in message:
            reason = field(message, "refused", str, self.peer)
            # Whatever it is made of: an error is one line.
            words = "".join(sign if sign.isprintable() else " " for sign in reason).split()
            raise RefusedError("channel-refused", f"{self.peer} refuses: {' '.join(words)}")
        return message

    def refuse(self, sentence: str, deadline: Deadline) -> None:
        """Notify the peer, which waits for another message, that it will not come, and why."""
        self.send_message({"refused": sentence}, deadline)

    def receive(self, deadline: Deadline) -> bytes:
        """Receive a message as it was encoded."""
        try:
            (length,) = _LENGTH.unpack(self._peek(_LENGTH.size, deadline))
            if length > MOST_MESSAGE_BYTES:
                raise HandshakeError(
                    "channel-message", f"{self.peer} announces a control message of {length:,} bytes"
                )
            frame = self._read(_LENGTH.size + length + _CODE_BYTES, deadline)
            body, code = frame[_LENGTH.size : -_CODE_BYTES], frame[-_CODE_BYTES:]
            if not hmac.compare_digest(code, self._code(self._others, self._received, body)):
                raise HandshakeError(
                    "channel-message", f"a control message of {self.peer} was changed on its way"
                )
            self._received += 1
            return bytes(body)
        except HandshakeError:
            self.close()
            raise

    def _decoded(self, body: bytes) -> WireMessage:
        try:
            message = msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException) as error:
            raise HandshakeError(
                "channel-message", f"a control message of {self.peer} cannot be read: {error}"
            ) from error
        if not isinstance(message, dict):
            raise HandshakeError("channel-message", f"a control message of {self.peer} is no map")
        return message

    @staticmethod
    def _code(key: bytes, count: int, body: bytes) -> bytes:
        return hmac.digest(key, count.to_bytes(8, "little") + body, "sha256")

    def _write(self, data: bytes, deadline: Deadline, between: Callable[[], None] | None = None) -> None:
        self._wait_until(deadline)
        left = memoryview(data)
        try:
            while left:
                if between is not None:
                    self._wait_until(deadline.sooner(_PATIENCE_S))
                try:
                    left = left[self._socket.send(left) :]
                except TimeoutError:
                    if between is None or not deadline.left_s:
                        raise
                    between()
        except BaseException as error:
            self.close()  # half a message may be out, after a signal too
            if isinstance(error, TimeoutError):
                raise ChannelTimeoutError(f"{self.peer} did not take a control message in time") from error
            if isinstance(error, OSError):
                raise PeerLostError(f"the control connection to {self.peer} is lost: {error}") from error
            raise

    def _read(self, count: int, deadline: Deadline) -> bytes:
        data = self._peek(count, deadline)
        del self._pending[:count]
        return data

    def _peek(self, count: int, deadline: Deadline) -> bytes:
        while len(self._pending) < count:
            self._wait_until(deadline)
            try:
                piece = self._socket.recv(min(count - len(self._pending), 1 << 16))
            except TimeoutError as error:
                raise ChannelTimeoutError(f"{self.peer} sent nothing in time") from error
            except BaseException as error:
                self.close()  # what was read when a signal came is lost
                if isinstance(error, OSError):
                    raise PeerLostError(f"the control connection to {self.peer} is lost: {error}") from error
                raise
            if not piece:
                self.close()
                raise PeerLostError(f"{self.peer} has closed the control connection")
            self._pending += piece
        return bytes(self._pending[:count])

    def _wait_until(self, deadline: Deadline) -> None:
        if self._socket.fileno() < 0:
            raise PeerLostError(f"the control connection to {self.peer} was closed at this end")
        self._socket.settimeout(deadline.wait_s)

    @property
    def own_host(self) -> str:
        """The address of this end: by it the peer is reached."""
        return str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """Return the socket, which hangs up when the other process ends."""
        return self._socket.fileno()

    def notice_silence(self) -> None:
        """Have the kernel ask now and then whether the other machine is there, and hang up if it is not."""
        for option, value in _KEEPALIVE:
            self._socket.setsockopt(*option, value)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def field(message: WireMessage, name: str, kind: type[T], peer: str) -> T:
    """Return a field of a received message, of this type."""
    value = message.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise HandshakeError("channel-message", f"{peer} has sent a message without a sound '{name}'")
    return value


@dataclass(frozen=True)
class Place:
    """Two processes whose `machine` is the same can hand each other memory, if they are the same `user`."""

    machine: str
    user: int

    @staticmethod
    def here() -> Place:
        """Return this process's identity: the running kernel, and the network namespace with its local
        sockets.
        """
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        network = Path("/proc/self/ns/net").readlink()
        return Place(f"{boot} {network}", os.getuid())

    @staticmethod
    def from_wire(message: WireMessage, peer: str) -> Place:
        """Parse the identity that the peer has sent."""
        place = field(message, "place", dict, peer)
        return Place(field(place, "machine", str, peer), field(place, "user", int, peer))

    def to_wire(self) -> WireMessage:
        """Return the identity as sent to the peer."""
        return asdict(self)
