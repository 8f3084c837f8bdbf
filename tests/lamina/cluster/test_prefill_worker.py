"""A prefill worker's prompts: the KV that the original computes, in order, until they are cancelled."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cluster_support import KvTaker, channel

from lamina._native import ShmReceiver
from lamina.cluster import prefill_worker
from lamina.cluster.front_end_link import Context
from lamina.cluster.kv_pull import CALLED_OFF, PIECE_SLOTS, PieceHeader, piece_bytes
from lamina.cluster.messages import Compute, Forget, PrefillFailed
from lamina.cluster.prefill_worker import PrefillJob, PrefillRole
from lamina.convert import Conversion, convert
from lamina.model import prefill
from lamina.pipeline import Recorder
from lamina.pipeline.arenas import arena_shape
from lamina.pipeline.partition import Along, Partition

SmallModel = Callable[..., transformers.PreTrainedModel]
Served = tuple[transformers.PreTrainedModel, Conversion]
WORKERS = 2
CHUNK = 16


class OverError(Exception):
    """The front end has ended."""


class ScriptedFrontEnd:
    """Says what was put into its queue, and then that it has ended."""

    take: Callable[[Compute | Forget], None]

    def __init__(self) -> None:
        self.jobs: queue.Queue[Compute | Forget | None] = queue.Queue()
        self.received: list[Any] = []

    def receive(self) -> None:
        message = self.jobs.get(timeout=30)
        if message is None:
            raise OverError
        self.take(message)

    def look(self) -> None:
        while not self.jobs.empty():
            self.receive()

    def send(self, message: Any) -> None:
        self.received.append(message)

    def compute(self, name: int, text: list[int], *, shared: int = 0, to: tuple[int, ...] = (0, 1)) -> None:
        self.jobs.put(Compute(name, np.array(text, np.int32), shared, list(to)))

    def forget(self, name: int) -> None:
        self.jobs.put(Forget(name))

    def end(self) -> None:
        self.jobs.put(None)


class Working:
    """Whether the worker says that it works."""

    def __init__(self) -> None:
        self.now = False
        self.most_work = 0.0

    def start(self, kind: str, work: float) -> None:
        assert kind == "prompt"
        self.now, self.most_work = True, max(self.most_work, work)

    def stop(self) -> None:
        self.now = False


class Attention(KvTaker):
    """One attention worker."""

    def __init__(self, conversion: Conversion, heads: range, receiver: ShmReceiver) -> None:
        super().__init__(arena_shape(conversion, len(heads)))
        self.heads = slice(heads.start, heads.stop)
        self.receiver = receiver
        self.pull.add(receiver)

    def matches(self, name: int, kv: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for layer, expected in enumerate(kv):
            # Of as many tokens the last one sees those that are kept.
            first = self.arena.shape.sights[layer].first(len(expected[0]))
            for result, whole in zip(self.arena.read(layer, name), expected, strict=True):
                torch.testing.assert_close(result, whole[first:, self.heads], rtol=1e-4, atol=1e-5)


def role_of(served: Served, along: Along, front: ScriptedFrontEnd, heartbeat: Working) -> PrefillRole:
    model, conversion = served
    first = conversion.attentions[0]
    partition = Partition(along, 1, WORKERS, first.heads, first.kv_heads)
    config = SimpleNamespace(partition=partition, kv_dtype="auto")
    context: Any = (config, front, Recorder(), heartbeat)
    return PrefillRole(Context(*context), conversion.attended(model), conversion, model)


class Cast:
    """A prefill worker in a thread of its own, two attention workers, and the model that they serve."""

    def __init__(self, served: Served, along: Along, slots: int) -> None:
        self.model, self.conversion = served
        first = self.conversion.attentions[0]
        self.front = ScriptedFrontEnd()
        self.heartbeat = Working()
        self.role = role_of(served, along, self.front, self.heartbeat)
        partition = self.role._partition
        self.attention: list[Attention] = []
        for worker in range(WORKERS):
            heads = partition.kv_of(partition.of_worker(worker))
            most = piece_bytes(2 * len(heads) * first.head_dim * self.conversion.dtype.itemsize)
            sender, receiver = channel(f"attention {worker}", slots, most)
            self.role.senders[worker] = sender  # type: ignore[assignment]
            self.attention.append(Attention(self.conversion, heads, receiver))
        self._thread = threading.Thread(target=self._work)
        self.error: BaseException | None = None
        self._thread.start()

    def _work(self) -> None:
        try:
            with torch.inference_mode():
                self.role.work()
        except BaseException as error:
            self.error = error

    def pull_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.error is None
            if not any(attention.pull.pull() for attention in self.attention):
                time.sleep(1e-4)  # the other thread's turn

    def original(self, text: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        cache = transformers.DynamicCache()
        with torch.inference_mode():
            self.model(input_ids=torch.tensor([text]), past_key_values=cache, use_cache=True)
        return [(kv.keys[0].transpose(0, 1), kv.values[0].transpose(0, 1)) for kv in cache.layers]

    def end(self) -> None:
        """Let it hear of the end, whatever it has to send before that."""
        self.front.end()
        while self._thread.is_alive():
            for attention in self.attention:
                if attention.receiver.ready(0.001):
                    attention.receiver.recv().release()
        assert isinstance(self.error, OverError)


@pytest.fixture(scope="module")
def served(small_model: SmallModel) -> Served:
    model = small_model("llama-gqa")
    return model, convert(model)


@pytest.fixture
def start(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cast]]:
    monkeypatch.setattr(prefill_worker, "CHUNK", CHUNK)
    started: list[Cast] = []

    def make(along: Along = "heads", slots: int = PIECE_SLOTS) -> Cast:
        started.append(Cast(served, along, slots))
        return started[-1]

    yield make
    for each in started:
        each.end()


def text_of(tokens: int, seed: int = 0) -> list[int]:
    return torch.randint(1, 120, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def headlines(attention: Attention) -> list[PieceHeader]:
    results = []
    while attention.receiver.ready(0.2):
        with attention.receiver.recv() as message:
            results.append(PieceHeader.from_wire(message))
    return results


@pytest.mark.parametrize("small_pieces", [False, True])
def test_attention_workers_get_their_heads_of_each_prompt(
    start: Callable[..., Cast], small_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small_pieces:
        monkeypatch.setattr("lamina.cluster.kv_pull.PIECE_BYTES", 300)
    cast = start(slots=2)
    texts = {1: text_of(1), 2: text_of(CHUNK, 2), 3: text_of(2 * CHUNK + 5, 3)}
    for name, text in texts.items():
        for attention in cast.attention:
            attention.expect(name, len(text))
        cast.front.compute(name, text)
    cast.pull_until(lambda: all(len(attention.had) == len(texts) for attention in cast.attention))
    # Told by its tokens, a long prompt after short ones is no work that hangs.
    assert cast.heartbeat.most_work >= CHUNK
    for attention in cast.attention:
        assert attention.had == [1, 2, 3], "in the order in which they were asked for"
        for name, text in texts.items():
            attention.matches(name, cast.original(text))
    assert cast.front.received == []


def test_whole_requests_go_to_one_attention_worker(start: Callable[..., Cast]) -> None:
    cast = start("requests")
    first, second = cast.attention
    text = text_of(CHUNK + 3)
    for name, attention in ((1, second), (2, first)):
        attention.expect(name, len(text))
        cast.front.compute(name, text, to=(cast.attention.index(attention),))
    cast.pull_until(lambda: first.had == [2] and second.had == [1])
    first.matches(2, cast.original(text))
    second.matches(1, cast.original(text))


@pytest.mark.parametrize("shared", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_of_shared_tokens_nothing_is_sent(start: Callable[..., Cast], shared: int) -> None:
    cast = start()
    text = text_of(2 * CHUNK + 5)
    for attention in cast.attention:
        attention.expect(1, len(text))
    cast.front.compute(1, text)
    cast.pull_until(lambda: all(attention.had == [1] for attention in cast.attention))
    other = text[:shared] + text_of(2 * CHUNK + 5 - shared, 9)
    for attention in cast.attention:
        attention.arena.fork(1, 2, shared)
        attention.expect(2, len(other), shared)
    cast.front.compute(2, other, shared=shared)
    cast.pull_until(lambda: all(attention.had == [1, 2] for attention in cast.attention))
    for attention in cast.attention:
        attention.matches(2, cast.original(other))


def test_a_cancelled_prompt_stops_at_the_next_chunk(start: Callable[..., Cast]) -> None:
    cast = start(slots=2)  # so few that it waits in the middle of the first chunk
    text = text_of(5 * CHUNK)
    cast.front.compute(1, text, to=(0,))
    cast.front.compute(2, text, to=(0,))
    cast.front.compute(3, text_of(CHUNK), to=(0,))
    cast.attention[0].receiver.ready(30)
    cast.front.forget(1)
    cast.front.forget(2)  # which has not begun
    cast.front.forget(77)  # of whom it has never heard
    heads = headlines(cast.attention[0])
    layers = len(cast.conversion.attentions)
    assert heads == [
        *(PieceHeader(1, layer, 0) for layer in range(layers)), PieceHeader(1, CALLED_OFF, 0),
        PieceHeader(2, CALLED_OFF, 0),
        *(PieceHeader(3, layer, 0) for layer in range(layers)),
    ]  # fmt: skip


def test_one_that_waits_for_room_does_not_work(start: Callable[..., Cast]) -> None:
    cast = start(slots=1)
    cast.front.compute(1, text_of(CHUNK), to=(0,))
    assert cast.attention[0].receiver.ready(30)
    end = time.monotonic() + 30
    while cast.heartbeat.now:  # at the second layer, which is not received
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep(0.05)
    assert not cast.heartbeat.now
    cast.pull_until(lambda: len(headlines(cast.attention[0])) == 3)


def test_one_that_is_forgotten_when_all_was_sent_is_not_called_off(start: Callable[..., Cast]) -> None:
    cast = start(slots=2)
    cast.front.compute(1, text_of(CHUNK), to=(0,))
    cast.attention[0].receiver.ready(30)
    cast.front.forget(1)
    assert [head.layer for head in headlines(cast.attention[0])] == [0, 1, 2]


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_failed_prompt_is_reported_and_cancelled(
    start: Callable[..., Cast], chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast = start(slots=64)
    causal, calls = prefill.causal, 0

    def fail(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        nonlocal calls
        calls += len(q) == CHUNK  # the other prompt passes this one
        if len(q) == CHUNK and calls == 3 * chunks + 2:
            raise MemoryError("no more")
        return causal(q, *rest)

    monkeypatch.setattr(prefill, "causal", fail)
    cast.front.compute(1, text_of(3 * CHUNK), to=(0,))
    cast.front.compute(2, text_of(3), to=(1,))
    end = time.monotonic() + 30
    while not cast.front.received:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert cast.front.received == [PrefillFailed(1, "no more")]
    heads = headlines(cast.attention[0])
    assert heads[-1] == PieceHeader(1, CALLED_OFF, 0)
    assert len(heads) == 3 * chunks + 2 + 1
    assert [head.name for head in headlines(cast.attention[1])] == [2, 2, 2], "others are computed"


def test_requests_before_a_loss_are_not_computed_after_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, computed = ScriptedFrontEnd(), []
    role = role_of(served, "heads", front, Working())

    def compute(jobs: list[PrefillJob]) -> None:
        computed.extend(job.name for job in jobs)
        if jobs[0].name == 1:
            role.regroup()
            front.forget(2)
            front.compute(3, [7, 8])
        else:
            front.end()

    monkeypatch.setattr(role, "_compute", compute)
    for name in (1, 2):
        front.compute(name, [7] * 300)  # not both at once
    with pytest.raises(OverError):
        role.work()
    assert computed == [1, 3]


@pytest.mark.parametrize("wrong", [None, 4])
def test_short_prompts_are_computed_together(
    wrong: int | None, start: Callable[..., Cast], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that cannot be computed fails alone: what was sent of the others is not sent again."""
    cast = start(slots=64)
    calls: list[list[int]] = []
    call, causal = cast.role._prefill.call, prefill.causal

    def noted(some: Any, *rest: Any) -> Any:
        calls.append([one.run.tokens for one in some])
        return call(some, *rest)

    def fail(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(q) == wrong:
            raise MemoryError("no more")
        return causal(q, *rest)

    monkeypatch.setattr(cast.role._prefill, "call", noted)
    monkeypatch.setattr(prefill, "causal", fail)
    texts = {name: text_of(tokens, name) for name, tokens in {1: 5, 2: 4, 3: 9, 4: 7}.items()}
    for name, text in texts.items():
        for attention in cast.attention:
            attention.expect(name, len(text))
        if name < len(texts):  # it waits for the last one, and finds them all
            cast.role._take(Compute(name, np.array(text, np.int32), 0, [0, 1]))
    cast.front.compute(4, texts[4])
    right = [name for name, text in texts.items() if len(text) != wrong]
    cast.pull_until(lambda: all(set(attention.had) == set(right) for attention in cast.attention))
    for attention in cast.attention:
        for name in right:
            attention.matches(name, cast.original(texts[name]))
    assert calls == ([[5, 4, 7], [9]] if wrong is None else [[5, 4, 7], [5], [4], [7], [9]])
    assert cast.front.received == ([] if wrong is None else [PrefillFailed(2, "no more")])
