"""Our ends of a channel against a peer in plain pyverbs, which shares no code with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from lamina import fhbn

FIRST = 2**64 - 3
MESSAGES = 10

OurReceiver = Callable[..., tuple[fhbn.Receiver, int]]
OurSender = Callable[..., fhbn.Sender]


def parts_of(seqno: int) -> list[bytes]:
    draws = random.Random(seqno)
    return [draws.randbytes(draws.choice((0, 1, 64, 65, 1200))) for _ in range(draws.randrange(5))]


def padded(part: bytes) -> bytes:
    return part.ljust(-(-len(part) // 64) * 64, b"\0")


def after(seqno: int) -> int:
    return (seqno + 1) % 2**64


def test_what_pyverbs_sends_arrives(our_receiver: OurReceiver, peer: Any) -> None:
    receiver, epoch = our_receiver(peer, FIRST)
    seqno = FIRST
    for _ in range(MESSAGES):
        parts = parts_of(seqno)
        sizes = [len(part) for part in parts]
        header = peer.HEADER.pack(seqno, epoch, len(parts), *sizes, *[0] * (14 - len(parts)))
        slot = header + b"".join(map(padded, parts))
        peer.memory.write(slot, len(slot), peer.slot_of(seqno))
        peer.write(peer.slot_of(seqno), len(slot))
        assert not receiver.ready()
        peer.write_line(peer.PUBLISHED, after(seqno))
        with receiver.recv() as message:
            assert message.seqno == seqno
            assert [bytes(part) for part in message] == parts
        assert peer.until(peer.CONSUMED, lambda line, n=seqno: line[0] == after(n))[1:] == (0, 1)
        seqno = after(seqno)
    peer.write_line(peer.PUBLISHED, seqno, closed=1)
    with pytest.raises(fhbn.ChannelClosedError):
        receiver.recv()


def test_pyverbs_receives_what_is_sent(our_sender: OurSender, peer: Any) -> None:
    sender = our_sender(peer, FIRST)
    seqno = FIRST
    for _ in range(MESSAGES):
        parts = parts_of(seqno)
        sender.send(*parts)
        assert peer.until(peer.PUBLISHED, lambda line, n=seqno: line[0] == after(n))[1:] == (0, 1)
        at = peer.slot_of(seqno)
        header = peer.HEADER.unpack(peer.memory.read(peer.HEADER.size, at))
        assert header[:3] == (seqno, 99, len(parts))
        assert list(header[3 : 3 + len(parts)]) == [len(part) for part in parts]
        at += peer.HEADER.size
        for part in parts:
            assert not part or peer.memory.read(len(part), at) == part
            at += len(padded(part))
        assert sender.consumed == seqno
        seqno = after(seqno)
        peer.write_line(peer.CONSUMED, seqno)
        assert sender.consumed == sender.next_seqno
    sender.close()
    assert peer.until(peer.PUBLISHED, lambda line: line[1] == 1)[0] == seqno


def test_a_credit_for_an_unsent_message_is_reported(our_sender: OurSender, peer: Any) -> None:
    """A peer that writes nonsense into our mirror: it is looked at when the ring is full."""
    sender = our_sender(peer)
    for _ in range(4):
        sender.send(b"x")
    peer.write_line(peer.CONSUMED, 1000)
    with pytest.raises(fhbn.ChannelCorruptedError, match="claims to have consumed"):
        sender.send(b"x")
