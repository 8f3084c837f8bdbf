"""Channels in shared memory, as Python has them."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina import fhbn
from lamina._native import ShmReceiver, ShmSegment, ShmSender

Ends = tuple[ShmSender, ShmReceiver]


def ends(message_bytes: int = 4096, slots: int = 4, *, first_seqno: int = 0, spin_s: float = 1e-4) -> Ends:
    segment = ShmSegment.create(message_bytes, slots, epoch=7, first_seqno=first_seqno)
    sender = ShmSender(ShmSegment.attach(segment.descriptor), "receiver", timeout_s=30, spin_s=spin_s)
    return sender, ShmReceiver(segment, "sender", timeout_s=30, spin_s=spin_s)


@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=fhbn.MOST_PARTS), max_size=20),
    st.sampled_from([0, 1, 2**32 - 3, 2**63, 2**64 - 5]),
)
def test_what_is_sent_arrives(messages: list[list[bytes]], first_seqno: int) -> None:
    sender, receiver = ends(fhbn.MOST_PARTS * 320, first_seqno=first_seqno)
    for index, message in enumerate(messages):
        sender.send(*message)
        with receiver.recv() as found:
            assert [bytes(part) for part in found] == message
            assert found.seqno == (first_seqno + index) % 2**64
    assert sender.next_seqno == sender.consumed == receiver.next_seqno == receiver.consumed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_arrive_without_a_copy(dtype: torch.dtype) -> None:
    sender, receiver = ends()
    q, k = torch.randn(3, 5).to(dtype), torch.randn(7).to(dtype)
    sender.send(q, k.numpy() if dtype != torch.bfloat16 else k)
    message = receiver.recv()
    found = torch.frombuffer(message[0], dtype=dtype).view(3, 5)
    assert torch.equal(found, q)
    assert torch.equal(torch.frombuffer(message[1], dtype=dtype), k)
    assert found.data_ptr() % 64 == 0
    message[0][:] = bytes(message[0].nbytes)
    assert not found.any()


<<<<<<< HEAD
=======
def test_several_messages_may_be_held_and_released_in_any_order() -> None:
    sender, receiver = ends(slots=4)
    for number in range(4):
        sender.send(bytes([number]))
    held = [receiver.recv() for _ in range(4)]
    with pytest.raises(fhbn.ChannelTimeoutError):
        sender.send(b"5", timeout_s=0)
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        receiver.recv()
    for index in (2, 1, 3):
        held[index].release()
        assert sender.consumed == 0
    assert [held[0][0][0]] == [0]
    held[0].release()
    held[0].release()  # once is enough
    assert sender.consumed == 4
    sender.send(b"5")
    assert bytes(receiver.recv()[0]) == b"5"


def test_a_message_is_released_when_the_last_view_of_it_is_gone() -> None:
    sender, receiver = ends(slots=1)
    sender.send(b"abc")
    view = np.frombuffer(receiver.recv()[0], dtype=np.uint8)
    gc.collect()
    assert sender.consumed == 0
    assert view.tobytes() == b"abc"
    del view
    assert sender.consumed == 1


def test_a_view_outlives_both_ends() -> None:
    sender, receiver = ends()
    sender.send(b"abc")
    view = receiver.recv()[0]
    del sender, receiver
    gc.collect()
    assert bytes(view) == b"abc"


def test_a_message_is_a_sequence() -> None:
    sender, receiver = ends()
    sender.send(b"a", b"", b"ccc")
    message = receiver.recv()
    assert [len(part) for part in message] == [1, 0, 3]
    assert len(message) == 3
    assert bytes(message[-1]) == b"ccc"
    for index in (3, -4):
        with pytest.raises(IndexError, match="no such part"):
            message[index]


@pytest.mark.parametrize(
    ("buffers", "error", "sentence"),
    [
        (
            [bytes(4097)],
            ValueError,
            r"the parts have 4097 bytes together and a message to receiver holds 4096: open",
        ),
        ([b"x"] * 65, ValueError, r"a message has up to 14 parts, not 65"),
        ([bytes(4094), b"xx", b"y"], ValueError, r"the parts have 4097 bytes together"),
        (["text"], TypeError, r"contiguous arrays and tensors in host memory, and of bytes"),
        ([3], TypeError, r"contiguous arrays and tensors"),
        ([np.zeros((4, 4))[:, ::2]], ValueError, r"not C-contiguous"),
        ([torch.zeros(4, 4)[:, ::2]], ValueError, r"a tensor to send must be contiguous"),
        ([torch.zeros(4, device="meta")], TypeError, r"a tensor to send must be in host memory"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_sends_nothing(
    buffers: list[Any], error: type[Exception], sentence: str
) -> None:
    sender, receiver = ends()
    with pytest.raises(error, match=sentence):
        sender.send(*buffers)
    assert sender.next_seqno == 0
    sender.send(bytes(4096))
    assert len(receiver.recv()[0]) == 4096


def test_a_deadline_leaves_the_channel_as_it_was() -> None:
    sender, receiver = ends(slots=1)
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout") as late:
        receiver.recv(timeout_s=0.01)
    assert isinstance(late.value, TimeoutError)
    sender.send(b"1")
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        sender.send(b"2", timeout_s=0.01)
    assert bytes(receiver.recv()[0]) == b"1"
    sender.send(b"2")
    assert bytes(receiver.recv()[0]) == b"2"


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan")])
def test_a_senseless_timeout_is_refused(timeout_s: float) -> None:
    sender, receiver = ends()
    calls: list[Callable[[], object]] = [
        lambda: sender.send(b"", timeout_s=timeout_s),
        lambda: receiver.recv(timeout_s=timeout_s),
        lambda: receiver.ready(timeout_s),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="a number of seconds, 0 or more"):
            call()


def test_closing_ends_the_channel_after_the_last_message() -> None:
    sender, receiver = ends()
    sender.send(b"last")
    sender.close()
    sender.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        sender.send(b"later")
    assert bytes(receiver.recv()[0]) == b"last"
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()


def test_a_closed_receiver_takes_no_more() -> None:
    sender, receiver = ends(slots=2)
    receiver.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()
    sender.send(b"1")
    sender.send(b"2")
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        sender.send(b"3")


def test_an_end_that_is_forgotten_is_closed() -> None:
    sender, receiver = ends()
    del sender
    gc.collect()
    with pytest.raises(fhbn.ChannelClosedError):
        receiver.recv()


@pytest.mark.long(but=["0.0"])
>>>>>>> main
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


def test_what_is_no_ring_cannot_be_attached() -> None:
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
