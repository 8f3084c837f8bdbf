"""Damaged messages between an engine's processes: none may be accepted, leak, or crash a process.

A stranger lacks the secret; an insider has it, and sends wrong messages. Decoders, sockets and shared memory
are the engine's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import mmap
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgpack

from experiments.corpus import HURTFUL, changed
from experiments.files import LONGEST_S, MOST_BYTES, descriptors, peak_bytes
from experiments.message_samples import SPOKEN
from experiments.tally import Tally
from lamina._native import ShmReceiver, ShmSegment, ShmSender
from lamina.cluster import messages as wire
from lamina.fhbn import ChannelError, Link, new_secret
from lamina.fhbn.control import Control, Deadline, Place, greeting

Outcome = tuple[str | None, str]
# Enough to receive what was sent; nothing else will arrive.
_WAIT_S = 0.05
_SECRET = new_secret()
_LENGTH = struct.Struct("<I")
_PIPE_LENGTH = struct.Struct("<Q")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ENCODED = tuple(map(wire.encode, SPOKEN))
_SETTLED_AFTER = 1000


def messages(seeds: Sequence[int]) -> Tally:
    """Damage a message, a connection or a ring; a case is one of these."""
    tally = Tally("messages")
    open_before = peak_before = 0
    for turn, seed in enumerate(seeds):
        drawn = random.Random(seed)
        name = drawn.choices(list(KINDS), _WEIGHTS)[0]
        began = time.perf_counter()
        try:
            kind, what = KINDS[name](drawn)
        except Exception as error:
            kind, what = "crashed", repr(error)
        if (took := time.perf_counter() - began) > LONGEST_S:
            kind, what = "crashed", f"took {took:.1f} s"
        tally.add(kind, name, seed, what)
        if turn == _SETTLED_AFTER:
            open_before, peak_before = descriptors(), peak_bytes()
    if peak_before and (grown := peak_bytes() - peak_before) > MOST_BYTES:
        tally.add("leaked", "all", seeds[0], f"{grown:,} bytes")
    if open_before and (more := descriptors() - open_before) > 0:
        tally.add("leaked", "all", seeds[0], f"{more} descriptors")
    return tally


def _damaged(body: bytes, drawn: random.Random) -> bytes:
    return changed(body, drawn, _ENCODED)


def _message(drawn: random.Random) -> Outcome:
    """Decode one damaged message: it is a valid message, or refused."""
    with contextlib.suppress(wire.MessageError):
        wire.encode(wire.decode(_damaged(drawn.choice(_ENCODED), drawn), "a worker"))
    return None, ""


def _pipe(drawn: random.Random) -> Outcome:
    """Damage the fork server's pipe, whose other end closes."""
    body = drawn.choice(_ENCODED)
    ends = os.pipe()
    try:
        os.write(ends[1], _damaged(_PIPE_LENGTH.pack(len(body)) + body, drawn)[:60_000])
        os.close(ends[1])
        with contextlib.suppress(wire.MessageError):
            wire.read(ends[0], "the fork server", Deadline(_WAIT_S))
    finally:
        os.close(ends[0])
    return None, ""


@contextlib.contextmanager
def _connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a loopback connection: the listener's and the connector's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        guest = socket.create_connection(server.getsockname())
        with guest:
            host, _ = server.accept()
            with host:
                yield host, guest


def _sent(greeted: bytes, bodies: Sequence[bytes]) -> list[bytes]:
    """Return all that a peer with the secret sends after this greeting: greeting, proof, then frames."""
    own = greeting()
    session = greeted[16:] + own[16:]
    key = hmac.digest(_SECRET, b"connector" + session, "sha256")
    frames = [
        _LENGTH.pack(len(body)) + body + hmac.digest(key, number.to_bytes(8, "little") + body, "sha256")
        for number, body in enumerate(bodies)
    ]
    return [own + hmac.digest(key, b"proof", "sha256"), *frames]


def _stranger(drawn: random.Random) -> Outcome:
    """Damage a connection: every message received was sent, in order."""
    greeted = greeting()
    bodies = drawn.choices(_ENCODED, k=drawn.randint(0, 4))
    stream = _damaged(b"".join(_sent(greeted, bodies)), drawn)
    received = []
    with _connected() as (host, guest):
        guest.sendall(stream[:100_000])
        guest.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ChannelError):
            control = Control(host, _SECRET, listening=True, deadline=Deadline(_WAIT_S), greeted=greeted)
            for _ in range(5):
                received.append(control.receive(Deadline(_WAIT_S)))
    return (
        (None, "")
        if received == bodies[: len(received)]
        else ("wrong", f"{received!r} instead of {bodies!r}")
    )


def _insider(drawn: random.Random) -> Outcome:
    """Open a link and a channel with the secret, as a peer that misbehaves."""
    sends = drawn.random() < 0.5
    greeted = greeting()
    place = Place.here().to_wire()
    rings = _rings(drawn) if sends and drawn.random() < 0.3 else contextlib.nullcontext(b"\0nobody")
    with rings as name, _connected() as (host, guest):
        hello: dict[str, Any] = {"name": "peer", "place": place}
        spec = {"name": "a", "message_bytes": 64, "slots": 4, "epoch": 7, "first_seqno": 0}
        answers: list[dict[str, Any]] = [{"use": "shm"}]
        if sends:
            answers = [{"engines": ["shm"], "terms": spec}, {"socket": name, "token": b"t"}]
        bodies = [msgpack.packb(_spoiled(each, drawn)) for each in [hello, *answers, {"opened": True}]]
        at = drawn.randrange(len(bodies))
        if drawn.random() < 0.5:
            bodies[at] = _damaged(bodies[at], drawn)
        guest.sendall(b"".join(_sent(greeted, bodies))[:200_000])
        guest.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ChannelError):
            control = Control(host, _SECRET, listening=True, deadline=Deadline(_WAIT_S), greeted=greeted)
            with Link(control, "victim", Deadline(_WAIT_S)) as link:
                if sends:
                    link.sender("a", timeout_s=_WAIT_S, spin_s=0).close()
                else:
                    link.receiver("a", message_bytes=64, timeout_s=_WAIT_S, spin_s=0).close()
    return None, ""


def _spoiled(message: dict[str, Any], drawn: random.Random) -> dict[str, Any]:
    """Return a message, valid or with other values in some places."""
    if drawn.random() < 0.6:
        return message
    spoiled = dict(message)
    key = drawn.choice(list(spoiled))
    value = spoiled[key]
    if isinstance(value, dict) and drawn.random() < 0.8:
        spoiled[key] = _spoiled(value, drawn)
    else:
        spoiled[key] = drawn.choice(_VALUES)
    return spoiled


_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63), 1e308, float("nan"), float("inf")),
    *(
        "",
        "a",
        "a\n",
        "\ud7ff",
        "shm",
        "auto",
        "x" * 300,
        b"",
        b"\0" * 200,
        b"\0lamina-",
        [],
        {},
        ["shm"],
        [[]],
    ),
    *({"name": "a"}, ["nobody"], ["shm\n"], *HURTFUL[:20]),
)


@contextlib.contextmanager
def _rings(drawn: random.Random) -> Iterator[bytes]:
    """Yield the name of a socket that hands over a ring, or something else."""
    name = b"\0torture-" + os.urandom(8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(name)
        server.listen()
        ring = _memory(drawn)
        ways = drawn.choice(([ring], [ring], [ring], [], [ring, ring], [0]))
        words = drawn.choice((b"ring", b"ring", b"", b"x" * 70))

        def hand_over() -> None:
            with contextlib.suppress(OSError):
                visitor, _ = server.accept()
                with visitor:
                    socket.send_fds(visitor, [words], ways)

        thread = threading.Thread(target=hand_over)
        thread.start()
        try:
            yield name
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:
                late.connect(name)  # nobody may have come
            thread.join()
            os.close(ring)


def _memory(drawn: random.Random) -> int:
    """Return memory of about the shape of a ring; the caller closes it."""
    segment = ShmSegment.create(drawn.choice((1, 64, 1000)), drawn.choice((1, 4, 16)), epoch=7, first_seqno=0)
    size = os.fstat(segment.descriptor).st_size
    head = bytearray(os.pread(segment.descriptor, 64, 0))
    for _ in range(drawn.choice((0, 1, 1, 2))):
        at = drawn.randrange(0, 40, 4)
        head[at : at + 4] = drawn.choice((drawn.randbytes(4), b"\0\0\0\0", b"\xff" * 4, b"\1\0\0\0"))
    memory = os.memfd_create("torture", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(memory, drawn.choice((size, size, size, size - 1, size + 1, 0, 4096, size * 2)))
    if os.fstat(memory).st_size >= len(head):
        os.pwrite(memory, head, 0)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, drawn.choice((_SEALS, _SEALS, _SEALS, 0, fcntl.F_SEAL_SHRINK)))
    return memory


def _attach(drawn: random.Random) -> Outcome:
    """Attach a descriptor as a ring: its shape is one of memory of this size, or it is refused."""
    memory = _memory(drawn)
    try:
        with contextlib.suppress(ValueError, OSError):
            segment = ShmSegment.attach(memory)
            size = os.fstat(memory).st_size
            if ShmSegment.bytes_for(segment.message_bytes, segment.slots) != size:
                return "wrong", f"{segment.slots} of {segment.message_bytes} in {size}"
            sender = ShmSender(segment, "a peer", timeout_s=0, spin_s=0)
            with contextlib.suppress(ChannelError):
                for _ in range(segment.slots + 1):
                    sender.send(b"x")
    finally:
        os.close(memory)
    return None, ""


def _ring(drawn: random.Random) -> Outcome:
    """Write anywhere in a ring while both ends use it: a message within its slot, or an error."""
    most = drawn.choice((64, 200, 1000))
    slots = drawn.choice((1, 2, 4))
    segment = ShmSegment.create(most, slots, epoch=3, first_seqno=drawn.choice((0, 5, 2**64 - 2)))
    sender = ShmSender(ShmSegment.attach(segment.descriptor), "receiver", timeout_s=0, spin_s=0)
    receiver = ShmReceiver(segment, "sender", timeout_s=0, spin_s=0)
    size = os.fstat(segment.descriptor).st_size
    with mmap.mmap(segment.descriptor, size) as memory:
        for _ in range(8):
            # Numbers are 8 bytes at their place; many stand for seqnos and sizes near those that are due.
            at = drawn.randrange(0, size - 8, 8)
            word = drawn.choice((drawn.getrandbits(64), drawn.randrange(20), 2**64 - 1 - drawn.randrange(9)))
            memory[at : at + 8] = word.to_bytes(8, "little")
            try:
                if drawn.random() < 0.5:
                    sender.send(b"x" * drawn.randrange(60))
                else:
                    with receiver.recv() as message:
                        received = sum(len(bytes(message[part])) for part in range(len(message)))
                    if received > most:
                        return "wrong", f"{received} bytes of {most}"
            except ChannelError:
                pass
    return None, ""


KINDS: Mapping[str, Callable[[random.Random], Outcome]] = {
    "a message": _message,
    "a pipe": _pipe,
    "a stranger": _stranger,
    "an insider": _insider,
    "attach": _attach,
    "a ring": _ring,
}
_WEIGHTS = (6, 2, 2, 2, 4, 4)
