"""Prompts computed by prefill workers while others decode: the same tokens, whatever happens meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_support import (
    KINDS,
    Load,
    Reference,
    Saved,
    ScriptedMachine,
    Start,
    at,
    mixed,
    play,
    prompts,
    shared,
    sound,
    tokens_of,
)

from lamina import Engine, Sampling
from lamina.cluster import Layout
from lamina.cluster.messages import Forget, KvStored, PrefillFailed
from lamina.cluster.prefill_dispatch import PrefillDispatch, PrefillRequest
from lamina.serve import EngineError

STAGED = Path(__file__).with_name("staged.py")
LONG, WRONG = 60, 13  # as there
POSITIONS = 2048
LAYOUTS = {
    "serial": shared(1, 1, prefill_workers=1, pipelining="serial"),
    "heads": shared(1, 2, prefill_workers=1),
    "requests": shared(2, 2, prefill_workers=2, batches=3, partition="requests"),
    "ranks": shared(2, 1, prefill_workers=2, pipelining="serial"),
    "stages": shared(2, 2, prefill_workers=1, pipeline_parallel=2),
    "streamed": shared(1, 2, prefill_workers=1, stream_chunks=2),
    "gloo": shared(1, 2, prefill_workers=1, partition="requests", network="gloo"),
}


@pytest.fixture(scope="module")
def load() -> Load:
    return mixed(15)


@pytest.mark.long(but=["heads", "requests", "ranks", "stages"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_are_the_originals(layout: str, start: Start, reference: Reference) -> None:
    """Of short prompts, of one token, and of one that takes several chunks and pieces."""
    engine = start(LAYOUTS[layout], layers=3, positions=POSITIONS)
    texts = prompts(30, 1, 700, 2, 45)
    results = engine.generate(texts, Sampling(max_tokens=9, ignore_eos=True))
    for text, result in zip(texts, results, strict=True):
        expected = reference("llama-gqa", tuple(text), 9, layers=3, positions=POSITIONS)
        assert tokens_of(result) == [expected]
    sound(engine)
    assert engine.workers[-1].startswith("prefill ")


@pytest.mark.long(but=["requests"])
@pytest.mark.parametrize("layout", ["heads", "requests"])
def test_requests_of_all_kinds(layout: str, load: Load, start: Start) -> None:
    expected = play(start(shared(1, 1)), load)
    engine = start(LAYOUTS[layout])
    assert play(engine, load) == expected
    assert play(engine, load) == expected
    sound(engine)
    assert not engine.faults


@pytest.mark.long(but=["heads-150"])
@pytest.mark.parametrize(("layout", "kv_tokens"), [("heads", 150), ("requests", 260)])
def test_preempted_requests_resume(layout: str, kv_tokens: int, load: Load, start: Start) -> None:
    """With what they have made since: of samples and beams each its own."""
    expected = play(start(shared(1, 1)), load)
    engine = start(LAYOUTS[layout], admission="grow", kv_tokens=kv_tokens)
    preempted: list[int] = []
    numbers = [engine.submit(*request) for request in load]
    while not engine.idle:
        preempted += engine.step().preempted
    assert [tokens_of(engine.result(number)) for number in numbers] == expected
    assert preempted
    sound(engine)


@pytest.fixture(scope="module")
def staged_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedMachine]:
    """Its prefill workers wait in the middle of long prompts while there is a file."""
    with ScriptedMachine(STAGED, tmp_path_factory.mktemp("staged") / "file") as machine:
        yield machine


@pytest.fixture
def staged_engine(staged_machine: ScriptedMachine, saved: Saved) -> Iterator[Start]:
    """An engine in which a long prompt waits until the file is removed."""
    started: list[Engine] = []
    staged_machine.file.touch()

    def make(layout: str = "requests", **options: Any) -> Engine:
        engine = Engine(
            saved("llama-gqa"),
            layout=LAYOUTS[layout],
            machine=staged_machine,
            **{"kv_tokens": 2000} | options,
        )
        started.append(engine)
        return engine

    yield make
    staged_machine.file.unlink(missing_ok=True)
    for engine in started:
        engine.close()


@pytest.fixture
def release(staged_machine: ScriptedMachine) -> Callable[[], None]:
    return staged_machine.file.unlink


@pytest.mark.long(but=["serial"])
@pytest.mark.parametrize("layout", ["serial", "heads", "requests"])
def test_others_decode_while_a_prompt_is_computed(
    layout: str, staged_engine: Start, release: Callable[[], None], start: Start
) -> None:
    short, long = prompts(5, LONG + 20)
    wish = Sampling(max_tokens=25, ignore_eos=True)
    expected = play(start(shared(1, 1)), [(short, wish), (long, wish)])
    engine = staged_engine(layout)
    first = engine.submit(short, wish)
    engine.step()
    second = engine.submit(long, wish)
    steps = [engine.step() for _ in range(10)]
    assert [step.size for step in steps] == [1] * 10, "nobody has waited for the prompt"
    assert not any(step.joined for step in steps)
    release()
    results: list[int] = []
    while not engine.idle:
        results += engine.step().joined
    assert results == [second]
    assert [tokens_of(engine.result(number)) for number in (first, second)] == expected
    sound(engine)


def test_a_step_without_decoding_waits_for_a_prompt(
    staged_engine: Start, release: Callable[[], None]
) -> None:
    """Asleep, and until its first token."""
    engine = staged_engine("heads")
    (long,) = prompts(LONG + 1)
    number = engine.submit(long, Sampling(max_tokens=2, ignore_eos=True))
    threading.Timer(0.5, release).start()
    began, worked = time.monotonic(), time.process_time()
    step = engine.step()
    assert time.monotonic() - began > 0.4
    assert time.process_time() - worked < 0.2
    assert (step.joined, step.size, engine.idle) == ([number], 1, False)
    engine.run()
    sound(engine)


@pytest.mark.long(but=["requests"])
@pytest.mark.parametrize("layout", ["heads", "requests"])
def test_cancelled_while_its_prompt_is_computed(
    layout: str, staged_engine: Start, release: Callable[[], None]
) -> None:
    """Its memory is free at once, and late KV of it changes no other request."""
    short, long, other = prompts(5, LONG + 20, LONG + 15)
    engine = staged_engine(layout, max_sequences=3)
    first = engine.submit(short, Sampling(max_tokens=20, ignore_eos=True))
    engine.step()
    second = engine.submit(long, Sampling(max_tokens=60, n=2, temperature=1.0))
    engine.step()
    third = engine.submit(other, Sampling(max_tokens=20, ignore_eos=True))
    engine.step()
    assert engine.waiting
    engine.cancel(second)
    for _ in range(3):
        engine.step()
    assert not engine.waiting, "there is room for the third now"
    release()
    engine.run()
    assert engine.result(second).completions[0].tokens == ()
    expected = [tokens_of(engine.result(number)) for number in (first, third)]
    wish = Sampling(max_tokens=20, ignore_eos=True)
    assert play(engine, [(short, wish), (other, wish)]) == expected
    sound(engine)


def test_the_last_one_cancelled_while_its_prompt_is_computed(
    staged_engine: Start, release: Callable[[], None]
) -> None:
    short, long = prompts(5, LONG + 1)
    engine = staged_engine("requests")
    engine.submit(short, Sampling(max_tokens=3, ignore_eos=True))
    engine.step()
    number = engine.submit(long)
    engine.step()
    engine.step()
    engine.cancel(number)
    assert engine.idle
    release()
    sound(engine)


@pytest.mark.parametrize("alone", [True, False])
def test_a_prompt_that_cannot_be_computed_fails_alone(alone: bool, staged_engine: Start) -> None:
    short, wrong = prompts(5, WRONG + 1)
    engine = staged_engine("heads")
    numbers = [] if alone else [engine.submit(short, Sampling(max_tokens=5, ignore_eos=True))]
    failing = engine.submit(wrong, Sampling(max_tokens=5))
    ended: list[int] = []
    while not engine.idle:
        ended += engine.step().ended
    assert sorted(ended) == [*numbers, failing]
    assert engine.result(failing).error == "its prompt could not be computed: bad luck"
    for number in numbers:
        assert len(tokens_of(engine.result(number))[0]) == 5
    assert len(play(engine, [(short, Sampling(max_tokens=4, ignore_eos=True))])[0][0]) == 4
    sound(engine)
    assert not engine.faults


@pytest.mark.long(but=["attention 0-heads", "prefill 0-requests"])
@pytest.mark.parametrize("layout", ["heads", "requests"])
@pytest.mark.parametrize("victim", ["model 0", "attention 0", "attention 1", "prefill 0"])
def test_workers_killed_while_prompts_are_computed(
    layout: str, victim: str, staged_engine: Start, start: Start
) -> None:
    """No worker waits for prefill workers after that, though they are still stopped."""
    texts = prompts(5, 20, LONG, LONG + 20, 7)
    load = [
        (text, Sampling(max_tokens=12, ignore_eos=True, **KINDS[i % len(KINDS)]))
        for i, text in enumerate(texts)
    ]
    expected = play(start(shared(1, 1)), load)
    engine = staged_engine(layout)
    assert play(engine, load, at(4, engine.inject_fault, victim)) == expected
    (fault,) = engine.faults
    assert victim in fault.workers
    sound(engine)


def test_prefill_workers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8})
    layout = Layout(1, 1, prefill_workers=1)
    assert layout.names == ["model 0", "attention 0", "prefill 0"]
    assert layout.cores() == [3, 5, 8]
    with pytest.raises(EngineError, match="layout-cores-too-few"):
        Layout(1, 1, prefill_workers=2).cores()


class FewWords:
    """A pool of workers that keeps what it is sent, and receives what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.coming: list[tuple[int, Any]] = []

    def send(self, number: int, message: Any, _: object) -> None:
        self.sent.append((number, message))

    def patience(self, _: object) -> None:
        """Do nothing: no wait is bounded here."""

    def received(self, kind: type) -> list[tuple[int, Any]]:
        chosen = [one for one in self.coming if isinstance(one[1], kind)]
        self.coming = [one for one in self.coming if one not in chosen]
        return chosen


def test_prompts_go_to_the_least_loaded_worker() -> None:
    workers = FewWords()
    prefilling = PrefillDispatch(workers, Layout(2, 2, prefill_workers=2, batches=3))  # type: ignore[arg-type]
    for name, tokens, known in ((1, 50, 0), (2, 60, 20), (3, 5, 0), (4, 20, 0), (5, 1, 0)):
        prefilling.compute(PrefillRequest(name, np.zeros(tokens, np.int32), known, 0))
    assert [number for number, _ in workers.sent] == [4, 5, 5, 5, 4]
    assert [message.to for _, message in workers.sent] == [[0, 1]] * 5
    workers.coming = [(2, KvStored(2)), (3, KvStored(2)), (2, KvStored(1)), (2, KvStored(77))]
    assert prefilling.news(wait=False) == {2: None}
    workers.coming = [(4, PrefillFailed(1, "bad luck")), (2, KvStored(1))]
    assert prefilling.news(wait=False) == {1: "bad luck"}
    prefilling.forget([1, 4, 88])
    assert workers.sent[5:] == [(5, Forget(4))]
    prefilling.compute(PrefillRequest(6, np.zeros(9, np.int32), 0, 0))
    prefilling.compute(PrefillRequest(7, np.zeros(9, np.int32), 0, 0))
    assert [number for number, _ in workers.sent[6:]] == [4, 5]


def test_all_that_a_lost_worker_may_have_computed_together_are_suspects() -> None:
    """Its first prompt, and those that fit into a chunk with it; where that is longer, those that pass it."""
    prefilling = PrefillDispatch(FewWords(), Layout(2, 2, prefill_workers=2, batches=3))  # type: ignore[arg-type]
    lengths = {1: 300, 2: 900, 3: 100, 4: 30, 5: 200, 6: 20}
    for name, tokens in lengths.items():
        prefilling.compute(PrefillRequest(name, np.zeros(tokens, np.int32), 0, 0))
    assert prefilling.computed_by([4]) == [1, 3, 4, 6]
    assert prefilling.computed_by([5]) == [2]
    assert prefilling.computed_by([0, 1]) == []
