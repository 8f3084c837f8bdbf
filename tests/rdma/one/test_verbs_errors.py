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
# A waiting end asks its NIC once a second, and that gives up after two more; in an emulated machine.
TOLD_S = 10.0

NO_ANSWER = r"the NIC of pyverbs \(channel data\) has not answered, and sending again has not helped"
HAS_FAILED = r"the queue pair to pyverbs \(channel data\) has failed"
REFUSES = r"the NIC of pyverbs \(channel data\) refuses a write"


def expect_told(call: Call, sentence: str) -> None:
    """The same error each time, the first one in time."""
    begun = time.monotonic()
    with pytest.raises(fhbn.NicError, match=sentence) as first:
        call()
    assert time.monotonic() - begun < TOLD_S
    with pytest.raises(fhbn.NicError) as again:
        call()
    assert str(again.value) == str(first.value)


def fill(sender: fhbn.Sender) -> None:
    """Until there is no slot left, and then wait for one."""
    while True:
        sender.send(b"x", timeout_s=30)


def expect_receives(receiver: fhbn.Receiver, epoch: int, peer: Any) -> None:
    header = peer.HEADER.pack(0, epoch, 0, *[0] * 14)
    peer.memory.write(header, len(header), peer.slot_of(0))
    peer.write(peer.slot_of(0), len(header))
    peer.say_line(peer.PUBLISHED, 1)
    with receiver.recv() as message:
        assert message.seqno == 0


def expect_sends(sender: fhbn.Sender, peer: Any) -> None:
    sender.send(b"anew")
    peer.until(peer.PUBLISHED, lambda line: line[0] == 1)


def test_a_receiver_whose_own_queue_pair_fails_hears_of_it(
    our_receiver: OurReceiver, new_peer: Callable[[], Any]
) -> None:
    """Its NIC refuses what the peer writes, and does nothing more; the receiver has asked for nothing."""
    peer = new_peer()
    receiver, _ = our_receiver(peer)
    assert peer.is_refused(peer.RING_BYTES + 4096, 64)
    expect_told(receiver.recv, HAS_FAILED)
    again = new_peer()
    expect_receives(*our_receiver(again), again)


def test_a_sender_whose_own_queue_pair_fails_hears_of_it(
    our_sender: OurSender, new_peer: Callable[[], Any]
) -> None:
    """Of its mirror a peer may write to the lines, and not to the slots."""
    peer = new_peer()
    sender = our_sender(peer)
    sender.send(b"x")
    assert peer.is_refused(peer.FIRST_SLOT, 64)
    expect_told(lambda: fill(sender), HAS_FAILED)
    again = new_peer()
    expect_sends(our_sender(again), again)


def test_a_receiver_whose_peer_has_failed_hears_of_it(
    our_receiver: OurReceiver, new_peer: Callable[[], Any]
) -> None:
    peer = new_peer()
    receiver, _ = our_receiver(peer)
    peer.fail()
    expect_told(receiver.recv, NO_ANSWER)
    again = new_peer()
    expect_receives(*our_receiver(again), again)


def test_a_sender_whose_peer_has_failed_hears_of_it(
    our_sender: OurSender, new_peer: Callable[[], Any]
) -> None:
    peer = new_peer()
    sender = our_sender(peer)
    for _ in range(4):
        sender.send(b"x")
    peer.until(peer.PUBLISHED, lambda line: line[0] == 4)
    peer.fail()
    expect_told(lambda: fill(sender), NO_ANSWER)
    again = new_peer()
    expect_sends(our_sender(again), again)


def test_memory_that_the_peer_has_withdrawn_is_not_written_to(
    our_sender: OurSender, new_peer: Callable[[], Any]
) -> None:
    peer = new_peer()
    sender = our_sender(peer)
    sender.send(b"x")
    peer.until(peer.PUBLISHED, lambda line: line[0] == 1)
    peer.withdraw_memory()
    expect_told(lambda: fill(sender), REFUSES)
    again = new_peer()
    expect_sends(our_sender(again), again)
