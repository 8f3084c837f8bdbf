"""What our ends hear when a queue pair fails while both processes live: one error each, and in time.

The peer is in plain pyverbs: it fails as it is told to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lamina import fhbn

OurReceiver = Callable[..., tuple[fhbn.Receiver, int]]
OurSender = Callable[..., fhbn.Sender]
Call = Callable[[], object]
# A waiting end asks its NIC once a second, and that gives up after two more. Half of what an end waits:
# the machine is emulated, and may be slow.
LIMIT_S = 30.0

NO_ANSWER = r"the NIC of pyverbs \(channel data\) has not answered, and sending again has not helped"
HAS_FAILED = r"the queue pair to pyverbs \(channel data\) has failed"
REFUSES = r"the NIC of pyverbs \(channel data\) refuses a write"


def expect_error(call: Call, sentence: str) -> None:
    """The same error each time, the first one in time."""
    begun = time.monotonic()
    with pytest.raises(fhbn.NicError, match=sentence) as first:
        call()
    assert time.monotonic() - begun < LIMIT_S
    with pytest.raises(fhbn.NicError) as again:
        call()
    assert str(again.value) == str(first.value)


def fill(sender: fhbn.Sender) -> None:
    """Until there is no slot left, and then wait for one."""
    while True:
        sender.send(b"x")


def expect_refused(peer: Any, offset: int) -> None:
    assert peer.is_refused(offset, 64)


def expect_receives(receiver: fhbn.Receiver, epoch: int, peer: Any) -> None:
    header = peer.HEADER.pack(0, epoch, 0, *[0] * 14)
    peer.memory.write(header, len(header), peer.slot_of(0))
    peer.write(peer.slot_of(0), len(header))
    peer.write_line(peer.PUBLISHED, 1)
    with receiver.recv() as message:
        assert message.seqno == 0


def expect_sends(sender: fhbn.Sender, peer: Any) -> None:
    sender.send(b"anew")
    peer.until(peer.PUBLISHED, lambda line: line[0] == 1)


@pytest.mark.parametrize(
    ("fail", "sentence"),
    [
        # Its NIC refuses what the peer writes, and does nothing more; the receiver has asked for nothing.
        (lambda peer: expect_refused(peer, peer.RING_BYTES + 4096), HAS_FAILED),
        (lambda peer: peer.fail(), NO_ANSWER),
    ],
    ids=["our own", "the peer's"],
)
def test_a_receiver_notices_a_queue_pair_that_fails(
    our_receiver: OurReceiver, new_peer: Callable[[], Any], fail: Callable[[Any], None], sentence: str
) -> None:
    peer = new_peer()
    receiver, _ = our_receiver(peer)
    fail(peer)
    expect_error(receiver.recv, sentence)
    again = new_peer()
    expect_receives(*our_receiver(again), again)


@pytest.mark.parametrize(
    ("sent", "fail", "sentence"),
    [
        # Of its mirror a peer may write to the lines, and not to the slots.
        (1, lambda peer: expect_refused(peer, peer.FIRST_SLOT), HAS_FAILED),
        (4, lambda peer: peer.fail(), NO_ANSWER),
        (1, lambda peer: peer.withdraw_memory(), REFUSES),
    ],
    ids=["our own", "the peer's", "memory withdrawn"],
)
def test_a_sender_notices_a_queue_pair_that_fails(
    our_sender: OurSender, new_peer: Callable[[], Any], sent: int, fail: Callable[[Any], None], sentence: str
) -> None:
    peer = new_peer()
    sender = our_sender(peer)
    for _ in range(sent):
        sender.send(b"x")
    peer.until(peer.PUBLISHED, lambda line: line[0] == sent)
    fail(peer)
    expect_error(lambda: fill(sender), sentence)
    again = new_peer()
    expect_sends(our_sender(again), again)
