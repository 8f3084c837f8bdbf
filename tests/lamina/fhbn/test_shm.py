"""Channels in shared memory, as Python has them: what one should not do is an error, and never a crash."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina import fhbn
from lamina._native import ShmMessage, ShmReceiver, ShmSegment, ShmSender

Ends = tuple[ShmSender, ShmReceiver]


def ends(message_bytes: int = 4096, slots: int = 4, *, first_seqno: int = 0, spin_s: float = 1e-4) -> Ends:
    segment = ShmSegment.create(message_bytes, slots, epoch=7, first_seqno=first_seqno)
    sender = ShmSender(ShmSegment.attach(segment.descriptor), "receiver", timeout_s=30, spin_s=spin_s)
    return sender, ShmReceiver(segment, "sender", timeout_s=30, spin_s=spin_s)


@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=fhbn.MOST_PARTS), max_size=20),
    st.sampled_from([0, 1, 2**32 - 3, 2**63, 2**64 - 5]),
)
def test_sent_messages_arrive(messages: list[list[bytes]], first_seqno: int) -> None:
    sender, receiver = ends(fhbn.MOST_PARTS * 320, first_seqno=first_seqno)
    for index, message in enumerate(messages):
        sender.send(*message)
        with receiver.recv() as result:
            assert [bytes(part) for part in result] == message
            assert result.seqno == (first_seqno + index) % 2**64
    assert sender.next_seqno == sender.consumed == receiver.next_seqno == receiver.consumed


def test_the_end_of_a_part_that_is_copied_past_the_cache_arrives() -> None:
    """From 4 MiB on a part is copied in steps of 64 bytes, and what is left after the last one by itself."""
    for extra in (0, 1, 63):
        part = os.urandom((4 << 20) + extra)
        sender, receiver = ends(len(part) + 64, slots=1)
        sender.send(b"before", part, b"after")
        with receiver.recv() as result:
            assert [bytes(each) for each in result] == [b"before", part, b"after"]


def test_tensors_arrive_without_a_copy() -> None:
    sender, receiver = ends()
    q = torch.randn(3, 5)
    sender.send(q)
    message = receiver.recv()
    result = torch.frombuffer(message[0], dtype=q.dtype).view(3, 5)
    assert torch.equal(result, q)
    assert result.data_ptr() % 64 == 0
    message[0][:] = bytes(message[0].nbytes)
    assert not result.any()


@pytest.mark.long(but=["0.0"])
@pytest.mark.parametrize("spin_s", [0.0, 1.0])
def test_a_waiter_is_woken(spin_s: float) -> None:
    sender, receiver = ends(slots=1, spin_s=spin_s)
    count = 2000

    def send() -> None:
        for number in range(count):
            sender.send(number.to_bytes(4, "little"))

    thread = threading.Thread(target=send)
    thread.start()
    for number in range(count):
        with receiver.recv() as message:
            assert int.from_bytes(message[0], "little") == number
    thread.join()
    spun, slept = receiver.waits
    assert spun + slept > 0
    assert spin_s or not spun


def test_memory_is_given_back() -> None:
    sender, receiver = ends()
    segment = ShmSegment.create(64, 1, epoch=0, first_seqno=0)
    number = segment.descriptor
    assert os.fstat(number).st_mode & 0o777 == 0o600
    del segment, sender, receiver
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_invalid_rings_cannot_be_attached() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(ValueError, match="not sealed"):
            ShmSegment.attach(reading)
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(OSError, match="looking at a peer's shared memory"):
        ShmSegment.attach(reading)


@pytest.mark.parametrize(("message_bytes", "slots"), [(0, 1), (1, 0), (1, 3), (1 << 41, 1), (64, 1 << 17)])
def test_an_impossible_shape_is_refused(message_bytes: int, slots: int) -> None:
    with pytest.raises(ValueError, match="a channel's messages hold 1 byte to 1 TiB, and its slots"):
        ShmSegment.create(message_bytes, slots, epoch=0, first_seqno=0)


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(OSError, match=r"of shared memory|of memory for a channel"):
        ShmSegment.create(1 << 40, 1 << 10, epoch=0, first_seqno=0)


@pytest.mark.filterwarnings("ignore:nanobind:RuntimeWarning")  # which it gives beside the error
@pytest.mark.parametrize(
    "call",
    [
        lambda: ShmReceiver.recv(object()),  # type: ignore[arg-type]
        lambda: ShmReceiver.__new__(ShmReceiver).recv(),
        lambda: ShmSender.send(object()),  # type: ignore[arg-type]
        lambda: ShmSender.__new__(ShmSender).send(),
        lambda: ShmMessage.__getitem__(object(), 0),  # type: ignore[arg-type]
        lambda: ShmMessage.__new__(ShmMessage)[0],
    ],
)
def test_other_objects_as_ends_are_type_errors(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


def freed() -> torch.Tensor:
    tensor = torch.zeros(100)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "tensor", [freed(), torch.zeros(4, dtype=torch.complex64).conj()], ids=["freed", "conjugated"]
)
def test_a_tensor_without_its_values_in_memory_is_refused(tensor: torch.Tensor) -> None:
    sender, receiver = ends()
    with pytest.raises(ValueError, match="tensor"):
        sender.send(tensor)
    sender.send(b"x")
    with receiver.recv() as message:
        assert (message.seqno, bytes(message[0])) == (0, b"x")


def while_receiving(receiver: ShmReceiver, sender: ShmSender, call: Callable[[], object]) -> str:
    """What `call` raises as soon as another thread is waiting in recv()."""
    thread = threading.Thread(target=receiver.recv)
    thread.start()
    try:
        while thread.is_alive():
            try:
                call()
            except fhbn.ChannelTimeoutError:
                continue  # the other one has not begun yet
            except fhbn.ChannelError as error:
                return str(error)
    finally:
        sender.send(b"")
        thread.join()
    raise AssertionError("no error")


def test_a_second_thread_is_refused() -> None:
    sender, receiver = ends()
    reported = while_receiving(receiver, sender, lambda: receiver.recv(timeout_s=0))
    assert "in use by another thread" in reported


def test_closing_with_a_waiting_thread_is_refused() -> None:
    sender, receiver = ends()
    begun = threading.Event()

    def close() -> None:
        # Not before the other thread is in its wait, or there would be nothing to refuse.
        if not begun.is_set():
            try:
                receiver.recv(timeout_s=0)
            except fhbn.ChannelTimeoutError:
                raise
            except fhbn.ChannelError:
                begun.set()
        receiver.close()

    assert "in use by another thread" in while_receiving(receiver, sender, close)
    receiver.close()
