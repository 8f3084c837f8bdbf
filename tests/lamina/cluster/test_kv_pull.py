"""KV from prefill workers: taken piece by piece, between other things, whole or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cluster_support import KvTaker, channel

from lamina._native import ShmSender
from lamina.cluster.kv_pull import CALLED_OFF, NAP_S, PIECE_BYTES, PieceHeader, piece_bytes, piece_tokens
from lamina.fhbn import ChannelClosedError, ChannelCorruptedError, ChannelTimeoutError
from lamina.kv import ArenaShape

SHAPE = ArenaShape(layers=2, kv_heads=2, head_dim=16, dtype=torch.float32)
SILENCE_S = 0.02  # seconds


class Attention(KvTaker):
    """That takes KV from two prefill workers."""

    def __init__(self) -> None:
        self.looks = 0
        super().__init__(SHAPE, self.look)
        self.prefill: list[ShmSender] = []
        for _ in range(2):
            self.connect()

    def connect(self) -> None:
        sender, receiver = channel("attention 0")
        self.prefill.append(sender)
        self.pull.add(receiver)

    def look(self) -> None:
        self.looks += 1

    def pull_all(self) -> int:
        taken = 0
        while self.pull.pull():
            taken += 1
        return taken

    def has(self, name: int, tokens: int, shared: int = 0) -> bool:
        """Whether all of a sequence's own KV is what was sent."""
        for layer in range(SHAPE.layers):
            expected = kv(name, layer, shared, tokens)
            result = self.arena.read(layer, name)
            if not all(torch.equal(a[-len(b) :], b) for a, b in zip(result, expected, strict=True)):
                return False
        return True


@pytest.fixture
def attention() -> Iterator[Attention]:
    made = Attention()
    yield made
    made.arena.check_integrity()


def kv(name: int, layer: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(2, 256, SHAPE.kv_heads, SHAPE.head_dim, generator=torch.Generator().manual_seed(name))
    keys, values = drawn[:, begin:end] + layer
    return keys, values


def send(sender: ShmSender, name: int, tokens: int, shared: int = 0, chunk: int = 7) -> int:
    """A prompt, as a prefill worker sends it; how many pieces that are."""
    pieces = 0
    for begin in range(shared, tokens, chunk):
        for layer in range(SHAPE.layers):
            sender.send(
                PieceHeader(name, layer, begin).to_wire(), *kv(name, layer, begin, min(begin + chunk, tokens))
            )
            pieces += 1
    return pieces


def call_off(sender: ShmSender, name: int) -> None:
    sender.send(PieceHeader(name, CALLED_OFF, 0).to_wire())


def fill(sender: ShmSender) -> None:
    """Send as long as there is room, and wait for more."""
    while True:
        call_off(sender, 1)


def test_kv_is_stored_in_its_slots_and_reported_when_complete(attention: Attention) -> None:
    attention.expect(5, 20)
    pieces = send(attention.prefill[0], 5, 20)
    for _ in range(pieces):
        assert attention.had == []
        assert attention.pull.pull()
    assert attention.had == [5]
    assert attention.has(5, 20)
    assert not attention.pull.pull()


def test_of_shared_tokens_nothing_comes(attention: Attention) -> None:
    attention.expect(1, 10)
    send(attention.prefill[0], 1, 10)
    attention.arena.fork(1, 2, 8)
    attention.expect(2, 30, shared=8)
    send(attention.prefill[0], 2, 30, shared=8)
    attention.pull_all()
    assert attention.had == [1, 2]
    assert attention.has(1, 10)
    assert attention.has(2, 30, shared=8)


def test_two_prefill_workers_take_turns(attention: Attention) -> None:
    for name, sender in enumerate(attention.prefill):
        attention.expect(name, 21)
        send(sender, name, 21)
    for _ in range(3):
        attention.pull.pull()
        attention.pull.pull()
        assert [sender.consumed for sender in attention.prefill] == [_ + 1, _ + 1]
    attention.pull_all()
    assert sorted(attention.had) == [0, 1]
    assert attention.has(0, 21)
    assert attention.has(1, 21)


def test_early_kv_waits_without_blocking_others(attention: Attention) -> None:
    first, second = attention.prefill
    early, expected = send(first, 1, 20), send(second, 2, 20)
    attention.expect(2, 20)
    assert attention.pull_all() == expected
    assert attention.had == [2]
    attention.expect(1, 20)
    assert attention.pull_all() == early
    assert attention.had == [2, 1]
    assert attention.has(1, 20)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_kv_of_cancelled_requests_is_discarded(attention: Attention, after: int) -> None:
    sender = attention.prefill[0]
    attention.expect(1, 20)
    pieces = send(sender, 1, 20)
    for _ in range(after):
        attention.pull.pull()
    attention.pull.forget([1, 99])
    attention.arena.release(np.array([1]))
    attention.expect(2, 20)  # in the same slots
    send(sender, 2, 20)
    assert attention.pull_all() == pieces - after + 6
    assert attention.had == [2]
    assert attention.has(2, 20)


def test_kv_of_a_forgotten_sequence_is_not_stored_over_that_of_its_slots_new_owner(
    attention: Attention,
) -> None:
    """The new owner's KV comes from another prefill worker, before the forgotten sequence's does."""
    first, second = attention.prefill
    attention.expect(1, 20)
    attention.pull.forget([1])
    attention.arena.release(np.array([1]))
    attention.expect(2, 20)  # in the same slots
    send(second, 2, 20)
    attention.pull_all()
    send(first, 1, 20)
    attention.pull_all()
    assert attention.had == [2]
    assert attention.has(2, 20)


@pytest.mark.parametrize("forgotten", [False, True])
def test_cancelled_work_is_not_waited_for(attention: Attention, forgotten: bool) -> None:
    sender = attention.prefill[0]
    attention.expect(1, 20)
    sender.send(PieceHeader(1, 0, 0).to_wire(), *kv(1, 0, 0, 7))
    call_off(sender, 1)
    if forgotten:
        attention.pull.forget([1])
    assert attention.pull_all() == 2
    assert attention.had == []
    attention.pull.until(lambda _: False)  # returns: nothing is expected
    attention.pull.forget([1])


def test_after_a_loss_nothing_is_expected_until_it_is_again(attention: Attention) -> None:
    first, _ = attention.prefill
    for name in (1, 2, 3):
        attention.expect(name, 20)
    send(first, 1, 20)
    attention.pull_all()
    first.send(PieceHeader(2, 0, 0).to_wire(), *kv(2, 0, 0, 7))
    send(first, 7, 20)  # early, and held
    attention.pull_all()
    attention.pull.forget([3])
    attention.pull.part()
    with pytest.raises(ChannelClosedError):
        fill(first)
    attention.pull.until(lambda _: False)  # returns
    attention.arena.release(np.array([2, 3]))
    attention.connect()
    attention.expect(2, 20)
    send(attention.prefill[-1], 2, 20)
    attention.pull_all()
    assert attention.had == [1, 2]
    assert attention.has(1, 20)
    assert attention.has(2, 20)


@pytest.mark.parametrize(
    ("layer", "first", "tokens"), [(2, 0, 5), (-2, 0, 5), (0, 18, 5), (0, 30, 1), (0, -3, 5)]
)
def test_kv_that_has_no_place_is_refused(attention: Attention, layer: int, first: int, tokens: int) -> None:
    attention.expect(1, 20)
    attention.prefill[0].send(PieceHeader(1, layer, first).to_wire(), *kv(1, 0, 0, tokens))
    with pytest.raises(ChannelCorruptedError, match="prefill 0 has sent KV that a sequence has no place for"):
        attention.pull.pull()


def test_an_available_message_has_precedence(attention: Attention) -> None:
    sender, receiver = channel("attention 0")
    attention.expect(1, 20)
    send(attention.prefill[0], 1, 20)
    sender.send(b"qkv")
    with attention.pull.recv(receiver, 30) as message:
        assert bytes(message[0]) == b"qkv"
    assert attention.prefill[0].consumed == 0


def test_pieces_are_pulled_until_a_message_is_there_and_not_after(attention: Attention) -> None:
    sender, receiver = channel("attention 0")
    attention.expect(1, 20)
    pieces = send(attention.prefill[0], 1, 20)
    store, appended = attention.pull._store.append, 0

    def append(*arguments: object) -> None:
        nonlocal appended
        appended += 1
        store(*arguments)  # type: ignore[arg-type]
        if appended == 3:
            sender.send(b"qkv")

    attention.pull._store.append = append  # type: ignore[method-assign, assignment]
    attention.pull.recv(receiver, 30).release()
    assert appended == 3 < pieces
    assert attention.looks == 0, "it has not slept"
    assert attention.pull_all() == pieces - 3
    assert attention.had == [1]


def test_a_message_ends_a_wait_without_kv(attention: Attention) -> None:
    sender, receiver = channel("attention 0")
    attention.expect(1, 20)
    look = attention.look

    def send_at_last() -> None:
        look()
        if attention.looks == 5:
            sender.send(b"qkv")

    attention.pull._look = send_at_last
    before = time.monotonic()
    attention.pull.recv(receiver, 30).release()
    assert attention.looks == 5, "it looks now and then what the front end has to say"
    assert time.monotonic() - before >= 4 * NAP_S, "and sleeps meanwhile"


def test_waiting_ends_in_time(attention: Attention) -> None:
    sender, receiver = channel("attention 0")
    attention.expect(1, 20)
    with pytest.raises(ChannelTimeoutError, match="nothing came from prefill 0 in time"):
        attention.pull.recv(receiver, SILENCE_S)
    sender.close()
    with pytest.raises(ChannelClosedError):
        attention.pull.recv(receiver, 30)


def test_prefill_is_not_polled_without_expected_kv(attention: Attention) -> None:
    sender, receiver = channel("attention 0")
    send(attention.prefill[0], 1, 20)
    threading.Timer(SILENCE_S, sender.send, [b"qkv"]).start()
    attention.pull.recv(receiver, 30).release()
    attention.pull.until(lambda _: False)
    assert attention.looks == 0
    assert attention.prefill[0].consumed == 0


def test_a_piece_is_bounded_but_holds_a_token() -> None:
    for token_bytes in (64, 1 << 10, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES * 3):
        tokens = piece_tokens(token_bytes)
        assert tokens == 1 or tokens * token_bytes <= PIECE_BYTES
        assert piece_bytes(token_bytes) == 24 + tokens * token_bytes
