"""What both ends hear when a NIC gives up: one error each, and the channel can be opened again."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from lamina import fhbn
from lamina._native import NicReceiver, NicSender
from lamina._softnic import SoftWriter

Ends = tuple[NicSender, NicReceiver]
Open = Callable[..., Ends]
Call = Callable[[], object]

RECEIVER = "attention worker 0"  # as the sender calls it
REFUSES = r"the NIC of .* \(channel data\) refuses a write"
NO_ANSWER = r"the NIC of .* \(channel data\) has not answered, and sending again has not helped"
HAS_FAILED = r"the queue pair to .* \(channel data\) has failed and sends nothing more"


def fill(sender: NicSender) -> None:
    """Until there is no slot left, and then wait for one."""
    while True:
        sender.send(b"x", timeout_s=30)


def expect_error(call: Call, sentence: str) -> None:
    """The same error each time."""
    with pytest.raises(fhbn.NicError, match=sentence) as first:
        call()
    with pytest.raises(fhbn.NicError) as again:
        call()
    assert str(again.value) == str(first.value)


def expect_goes_on(ends: Open, network: str, receiver: NicReceiver) -> None:
    """With a new channel over the same link."""
    first_seqno = receiver.next_seqno
    sender, receiver = ends(network, first_seqno=first_seqno)
    assert sender.next_seqno == first_seqno
    for number in range(10):
        sender.send(bytes([number]))
        with receiver.recv() as message:
            assert bytes(message[0]) == bytes([number])


def mislead(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[int], int]
) -> None:
    """Have the sender read a field of what the receiver says of its memory as something else."""
    field = module.field

    def spied(message: dict[str, Any], requested: str, kind: type, peer: str) -> Any:
        result = field(message, requested, kind, peer)
        return change(result) if (requested, peer) == (name, RECEIVER) else result

    monkeypatch.setattr(module, "field", spied)


@pytest.mark.parametrize(
    ("name", "change"),
    [("rkey", lambda key: key ^ 0x5A5A00), ("memory", lambda address: address + (1 << 30))],
    ids=["wrong rkey", "out of bounds"],
)
def test_a_write_is_refused(
    ends: Open,
    network: str,
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[int], int],
) -> None:
    """The queue pair that refuses fails too: its end hears of that though it has nothing to write."""
    with monkeypatch.context() as patched:
        mislead(module, patched, name, change)
        sender, receiver = ends(network)
    expect_error(lambda: fill(sender), REFUSES)
    expect_error(lambda: receiver.recv(30), HAS_FAILED)
    expect_goes_on(ends, network, receiver)


@pytest.mark.parametrize(
    ("act", "failing", "at_sender", "at_receiver"),
    [
        ("fail", "sender", HAS_FAILED, NO_ANSWER),
        ("fail", "receiver", NO_ANSWER, HAS_FAILED),
        ("unplug", "sender", NO_ANSWER, NO_ANSWER),
        ("unplug", "receiver", NO_ANSWER, NO_ANSWER),
    ],
    ids=["the sender's", "the receiver's", "the sender's cable", "the receiver's cable"],
)
def test_a_queue_pair_fails(
    ends: Open,
    writers: dict[str, SoftWriter],
    act: str,
    failing: str,
    at_sender: str,
    at_receiver: str,
) -> None:
    """On a softnic; tests/rdma has devices. A peer that only waits gets the error too."""
    sender, receiver = ends("softnic")
    sender.send(b"before")
    with receiver.recv() as message:
        assert bytes(message[0]) == b"before"
    end = time.monotonic() + 30
    while sender.consumed != 1:  # until then the receiver's queue pair has something to do
        assert time.monotonic() < end
    getattr(writers[failing], act)()
    messages: list[tuple[Call, str]] = [
        (lambda: fill(sender), at_sender),
        (lambda: receiver.recv(30), at_receiver),
    ]
    for call, sentence in messages if failing == "sender" else reversed(messages):
        expect_error(call, sentence)
    sender.close()
    expect_goes_on(ends, "softnic", receiver)


def test_a_sender_that_waits_for_a_slot_notices_it(ends: Open, writers: dict[str, SoftWriter]) -> None:
    sender, receiver = ends("softnic", slots=1)
    sender.send(b"x")
    assert receiver.ready(30)
    writers["receiver"].fail()
    expect_error(lambda: sender.send(b"y", timeout_s=30), NO_ANSWER)


def test_reminders_while_waiting_change_nothing(ends: Open) -> None:
    """The line is written again as it was."""
    sender, receiver = ends("softnic", slots=1, first_seqno=2**64 - 1)
    with pytest.raises(fhbn.ChannelTimeoutError):
        receiver.recv(1.2)
    sender.send(b"a")
    with pytest.raises(fhbn.ChannelTimeoutError):
        sender.send(b"late", timeout_s=0.1)
    for expected in (b"a", b"b"):
        with receiver.recv() as message:
            assert bytes(message[0]) == expected
        if expected == b"a":
            sender.send(b"b")
