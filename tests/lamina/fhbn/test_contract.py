"""What a channel promises, over every engine; what is special to one engine is in a file of its own.

In `make rdma-test` the engine is verbs, and there is no torch.
"""

from __future__ import annotations

import gc
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lamina import fhbn

Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Open = Callable[..., tuple[fhbn.Sender, fhbn.Receiver]]
LARGE = 66_536  # more than gloo sends at once


@pytest.fixture
def network(kind: str) -> str:
    """The engine's name."""
    return kind.partition("+")[0]


@pytest.mark.parametrize("first_seqno", [0, 2**32 - 3, 2**64 - 5])
def test_sent_messages_arrive(ends: Open, network: str, first_seqno: int) -> None:
    """With numbers that go beyond 64 bits too."""
    draws = random.Random(first_seqno)
    sender, receiver = ends(network, 1 << 16, first_seqno=first_seqno)
    assert (sender.engine, receiver.engine) == (network, network)
    assert sender.peer.endswith(" 0 (channel data)")
    for index in range(40):
        sizes = [draws.choice((0, 1, 63, 64, 65, 700, 4000)) for _ in range(draws.randrange(15))]
        message = [draws.randbytes(size) for size in sizes]
        sender.send(*message)
        with receiver.recv() as received:
            assert [bytes(part) for part in received] == message
            assert received.seqno == (first_seqno + index) % 2**64
    assert sender.next_seqno == receiver.next_seqno == receiver.consumed


def test_a_large_message_arrives_whole(ends: Open, network: str) -> None:
    sender, receiver = ends(network, 300_001, slots=2)
    for number in range(4):
        parts = [random.Random(number).randbytes(300_001 - number), bytes([number]) * number]
        sender.send(*parts)
        with receiver.recv() as received:
            assert [bytes(part) for part in received] == parts


@pytest.mark.parametrize("rows", [3, LARGE])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_tensors_arrive(ends: Open, network: str, dtype: str, rows: int) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    sender, receiver = ends(network, 64 * LARGE)
    q, k = torch.randn(rows, 5).to(kind), torch.randn(7).to(kind)
    for _ in range(5):
        sender.send(q)
        sender.send(q, k if dtype == "bfloat16" else k.numpy())
        for message in (receiver.recv(), receiver.recv()):
            with message:
                assert torch.equal(torch.frombuffer(message[0], dtype=kind).view(rows, 5), q)
    assert torch.equal(torch.frombuffer(message[1], dtype=kind), k)


@pytest.mark.parametrize("size", [8, LARGE])
def test_held_messages_are_not_overwritten_and_are_released_in_any_order(
    ends: Open, network: str, size: int
) -> None:
    sender, receiver = ends(network, size, slots=4)
    for number in range(4):
        sender.send(bytes([number]) * size)
    if network != "gloo":
        with pytest.raises(fhbn.ChannelTimeoutError):
            sender.send(b"late", timeout_s=0.05)
    stored = [receiver.recv() for _ in range(4)]
    assert not receiver.ready(), "what is held is not the next one"
    with pytest.raises(fhbn.ChannelError, match="channel-unusable"):
        receiver.recv()
    for index in (2, 1, 3):
        stored[index].release()
        assert receiver.consumed == sender.consumed == 0
    assert bytes(stored[0][0]) == bytes(size)
    stored[0].release()
    stored[0].release()  # once is enough
    assert receiver.consumed == 4
    assert not receiver.ready()
    for number in range(4, 8):
        sender.send(bytes([number]) * size)
    assert [bytes(receiver.recv()[0][:1]) for _ in range(4)] == [b"\4", b"\5", b"\6", b"\7"]
    assert sender.consumed >= 4


def test_a_message_is_released_with_its_last_view(ends: Open, network: str) -> None:
    sender, receiver = ends(network, slots=1)
    sender.send(b"abc")
    view = np.frombuffer(receiver.recv()[0], dtype=np.uint8)
    gc.collect()
    assert receiver.consumed == 0
    assert view.tobytes() == b"abc"
    del view
    assert receiver.consumed == 1


def test_a_view_outlives_both_ends(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    sender.send(b"abc")
    view = receiver.recv()[0]
    del sender, receiver
    gc.collect()
    assert bytes(view) == b"abc"


def test_a_message_is_a_sequence(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    sender.send(b"a", b"", bytearray(b"ccc"))
    message = receiver.recv()
    assert [len(part) for part in message] == [1, 0, 3]  # type: ignore[attr-defined]
    assert len(message) == 3
    assert bytes(message[-1]) == b"ccc"
    for index in (3, -4):
        with pytest.raises(IndexError, match="no such part"):
            message[index]


@pytest.mark.parametrize(
    ("buffers", "error"),
    [
        ([bytes(4097)], ValueError),
        ([bytes(4094), b"xx", b"y"], ValueError),
        ([b"x"] * 65, ValueError),
        (["text"], TypeError),
        ([3], TypeError),
        ([np.zeros((4, 4))[:, ::2]], ValueError),
    ],
)
def test_invalid_messages_are_refused_and_not_sent(
    ends: Open, network: str, buffers: list[object], error: type[Exception]
) -> None:
    sender, receiver = ends(network)
    with pytest.raises(error):
        sender.send(*buffers)
    assert sender.next_seqno == 0
    sender.send(np.zeros((2, 16), "f4, i4"), np.zeros((0, 3)), bytes(4096 - 256))
    message = receiver.recv()
    assert (message.seqno, [len(part) for part in message]) == (0, [256, 0, 3840])  # type: ignore[attr-defined]


def test_a_tensor_that_cannot_be_sent_is_refused(ends: Open, network: str) -> None:
    torch = pytest.importorskip("torch")
    sender, _ = ends(network)
    for tensor, error in (
        (torch.zeros(4, 4)[:, ::2], ValueError),
        (torch.zeros(4, device="meta"), TypeError),
    ):
        with pytest.raises(error, match="a tensor to send must be"):
            sender.send(tensor)


@pytest.mark.usefixtures("survives")
def test_a_deadline_leaves_the_channel_as_it_was(ends: Open, network: str) -> None:
    sender, receiver = ends(network, slots=1)
    for timeout_s in (0, 0.05):
        with pytest.raises(fhbn.ChannelTimeoutError, match=r"(attention|model) worker 0") as late:
            receiver.recv(timeout_s)
        assert isinstance(late.value, TimeoutError)
    sender.send(b"1")
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        sender.send(b"2", timeout_s=0.05)
    with receiver.recv() as message:
        assert bytes(message[0]) == b"1"
    sender.send(b"2")
    assert bytes(receiver.recv()[0]) == b"2"


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan")])
def test_a_senseless_timeout_is_refused(ends: Open, network: str, timeout_s: float) -> None:
    sender, receiver = ends(network)
    calls: list[Callable[[], object]] = [
        lambda: sender.send(b"", timeout_s=timeout_s),
        lambda: receiver.recv(timeout_s=timeout_s),
        lambda: receiver.ready(timeout_s),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="a number of seconds, 0 or more"):
            call()


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("size", [3, LARGE])
def test_closing_ends_the_channel_after_the_last_message(
    ends: Open, network: str, size: int, forgotten: bool
) -> None:
    sender, receiver = ends(network, size, slots=8)
    for number in range(12):
        sender.send(bytes([number]) * size)
        if number < 5:
            receiver.recv().release()
    if not forgotten:
        sender.close()
        sender.close()
        with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
            sender.send(b"later")
    del sender
    gc.collect()
    for number in range(5, 12):
        assert bytes(receiver.recv()[0]) == bytes([number]) * size
    for _ in range(2):
        with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
            receiver.recv()


def test_a_closed_receiver_takes_no_more(ends: Open, network: str) -> None:
    sender, receiver = ends(network, slots=2)
    sender.send(b"1")
    message = receiver.recv()
    receiver.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.recv()
    message.release()
    del message, receiver
    gc.collect()

    def several() -> None:
        for _ in range(5):  # there are slots for two, or three
            sender.send(b"2", timeout_s=30)

    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        several()


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Have Ctrl-C pressed after a while."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("survives")
def test_ctrl_c_ends_a_wait(ends: Open, network: str, alarm: Callable[[float], None]) -> None:
    sender, receiver = ends(network, slots=1)

    def interrupted(wait: Callable[[], object]) -> None:
        alarm(0.05)  # inside of what catches it, however soon it goes off
        wait()

    for wait in (receiver.recv, lambda: receiver.ready(30)):
        with pytest.raises(KeyboardInterrupt):
            interrupted(wait)
    sender.send(b"1")
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: sender.send(b"2"))
    assert bytes(receiver.recv()[0]) == b"1"
    sender.send(b"2")
    assert bytes(receiver.recv()[0]) == b"2"


@pytest.mark.parametrize("first_seqno", [0, 2**64 - 3])
@pytest.mark.parametrize("size", [0, 3, LARGE])
def test_readiness_can_be_queried_at_any_time(ends: Open, network: str, size: int, first_seqno: int) -> None:
    sender, receiver = ends(network, LARGE, slots=2, first_seqno=first_seqno)
    for _ in range(7):  # each slot several times
        assert not receiver.ready()
        assert not receiver.ready(0.001), "to ask leaves the channel as it was"
        sender.send(bytes(size))
        assert receiver.ready(10)
        assert receiver.ready()
        message = receiver.recv()
        assert not receiver.ready(), "the next one is not there, whether or not this one was released"
        message.release()


def test_a_wait_for_a_message_ends_with_it(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    threading.Timer(0.05, sender.send, [b"1"]).start()
    assert receiver.ready(30)
    assert bytes(receiver.recv()[0]) == b"1"


@pytest.mark.usefixtures("survives")
def test_the_peers_end_is_no_message_and_ends_a_wait_for_one(ends: Open, network: str) -> None:
    sender, receiver = ends(network)
    sender.send(b"1")
    sender.close()
    assert receiver.ready(1)
    receiver.recv().release()
    assert not receiver.ready()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.ready(1)
    receiver.close()
    with pytest.raises(fhbn.ChannelClosedError, match="channel-closed"):
        receiver.ready(1)


@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left(meet: Callable[[], Any], both: Both, network: str) -> None:
    ours, theirs = meet()
    with ours, theirs:
        for _ in range(3):
            sender, receiver = both(
                lambda: ours.sender("a", network=network),
                lambda: theirs.receiver("a", message_bytes=64, network=network),
            )
            sender.send(b"x")
            message = receiver.recv()
            sender.close()
            receiver.close()
            message.release()
    del sender, receiver, message
    gc.collect()
