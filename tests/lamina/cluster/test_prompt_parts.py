"""Prompts in parts beside decoding: the same tokens, also after faults and cancellations."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_support import (
    Load,
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

from lamina import Engine, Sampling, host_memory
from lamina.cluster import Layout
from lamina.pipeline import prompt_calls
from lamina.serve import RequestError

HARMFUL = Path(__file__).with_name("harmful.py")
LAYOUTS = {
    "serial": shared(1, 1, pipelining="serial"),
    "rotational": shared(1, 2),
    "three": shared(2, 1, batches=3),
    "requests": shared(2, 2, batches=3, partition="requests"),
    "fixed": shared(2, 1, pipelining="fixed", batches=2),
    "ranks": shared(2, 1, pipelining="serial"),
    "stages": shared(2, 2, pipeline_parallel=2),
}
FEW = 7  # tokens of prompts an iteration


@pytest.fixture(scope="module")
def load() -> Load:
    return mixed(15)


@pytest.fixture(scope="module")
def expected_tokens(load: Load, saved: Saved) -> list[list[list[int]]]:
    return play(Engine(saved("llama-gqa"), kv_tokens=2000), load)


@pytest.mark.parametrize(("admission", "kv_tokens"), [("reserve", 2000), ("grow", 260)])
def test_in_one_process(
    admission: str, kv_tokens: int, load: Load, expected_tokens: list[list[list[int]]], saved: Saved
) -> None:
    engine = Engine(saved("llama-gqa"), kv_tokens=kv_tokens, admission=admission, prompt_tokens=FEW)
    numbers = [engine.submit(*request) for request in load]
    steps = []
    while not engine.idle:
        steps.append(engine.step())
    assert [tokens_of(engine.result(number)) for number in numbers] == expected_tokens
    assert max(step.prompt_tokens for step in steps) <= FEW
    assert any(step.prompt_tokens and not step.joined and step.size for step in steps), (
        "a part, beside decoding"
    )
    engine.check_integrity()


def test_a_last_sample_may_begin_its_prompt_and_join_at_once(saved: Saved) -> None:
    """Samples of preempted requests: the last one's whole prompt fits what is left of an iteration."""
    draw, load = random.Random(13), []
    for seed in range(5):
        text = [draw.randrange(1, 100) for _ in range(draw.randrange(1, 5))]
        tokens, samples = draw.randrange(2, 10), draw.choice([1, 2, 3])
        load.append((text, Sampling(max_tokens=tokens, n=samples, seed=seed, temperature=1.0)))
    engine = Engine(saved("llama-gqa"), kv_tokens=30, admission="grow", prompt_tokens=3)
    assert play(engine, load) == play(Engine(saved("llama-gqa"), kv_tokens=2000), load)
    engine.check_integrity()


@pytest.mark.long(but=["requests"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_workers(layout: str, load: Load, expected_tokens: list[list[list[int]]], start: Start) -> None:
    engine = start(LAYOUTS[layout], prompt_tokens=FEW)
    assert play(engine, load) == expected_tokens
    sound(engine)
    assert not engine.faults


@pytest.mark.long(but=["model 0"])
@pytest.mark.parametrize("victim", ["model 0", "attention 0"])
def test_workers_killed_while_parts_are_computed(
    victim: str, load: Load, expected_tokens: list[list[list[int]]], start: Start
) -> None:
    """What was computed in parts is computed anew, in parts too."""
    engine = start(LAYOUTS["rotational"], prompt_tokens=FEW)
    most = 0

    def between(step: int) -> None:
        at(6, engine.inject_fault, victim)(step)

    step_of = engine.step

    def step() -> object:
        nonlocal most
        reported = step_of()
        most = max(most, reported.prompt_tokens)
        return reported

    engine.step = step  # type: ignore[method-assign, assignment]
    assert play(engine, load, between) == expected_tokens
    assert most <= FEW
    (fault,) = engine.faults
    assert victim in fault.workers
    sound(engine)


def test_cancelled_between_two_parts(start: Start) -> None:
    """Its memory is for others at once."""
    long, short = prompts(60, 5)
    engine = start(LAYOUTS["rotational"], prompt_tokens=FEW, kv_tokens=80)
    for _ in range(2):
        number = engine.submit(long, Sampling(max_tokens=3))
        engine.step()
        engine.cancel(number)
        assert engine.result(number).completions[0].tokens == ()
    assert len(play(engine, [(short, Sampling(max_tokens=70, ignore_eos=True))])[0][0]) == 70
    sound(engine)


# What workers do with prompts of some lengths.

Harmed = Callable[..., Engine]
ALONE = shared(1, 1, pipelining="serial")
PREFILL = shared(1, 1, prefill_workers=1)
TIMEOUT_S = 2.0  # in which a machine that others use computes a chunk of a small model, too
WISH = Sampling(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def harmful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedMachine]:
    with ScriptedMachine(HARMFUL, tmp_path_factory.mktemp("harm") / "lengths") as machine:
        yield machine


@pytest.fixture
def harmed(harmful: ScriptedMachine, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harmed]:
    started: list[Engine] = []
    monkeypatch.setattr(prompt_calls, "CHUNK", 16)  # as its workers have it

    def make(layout: Layout, harms: dict[int, str], **options: object) -> Engine:
        harmful.file.write_text("".join(f"{tokens - 1} {what}\n" for tokens, what in harms.items()))
        layout = replace(layout, timeout_s=TIMEOUT_S)
        engine = Engine(
            saved("llama-gqa"),
            layout=layout,
            machine=harmful,
            **{"kv_tokens": 2000, "prompt_tokens": 16} | options,
        )
        started.append(engine)
        return engine

    yield make
    for engine in started:
        engine.close()


@pytest.mark.long(but=["all-at-once"])
@pytest.mark.parametrize(
    ("layout", "at_once"),
    [(ALONE, 16), (ALONE, 2000), (PREFILL, 16)],
    ids=["in-parts", "all-at-once", "prefill"],
)
def test_a_worker_that_gets_on_is_not_lost(layout: Layout, at_once: int, harmed: Harmed) -> None:
    """However long it takes, also in one iteration: each chunk renews the deadline."""
    long, short = prompts(16 * 13, 5)
    engine = harmed(layout, {len(long): "slow"}, prompt_tokens=at_once)
    result = play(engine, [(long, WISH), (short, WISH)])
    assert [len(one[0]) for one in result] == [WISH.max_tokens] * 2
    assert not engine.faults
    sound(engine)


def test_a_worker_that_stands_still_is_lost_and_its_prompt_fails_alone(harmed: Harmed) -> None:
    long, short = prompts(40, 5)
    engine = harmed(ALONE, {len(long): "rest"})
    numbers = [engine.submit(short, WISH), engine.submit(long, WISH)]
    engine.run()
    assert len(tokens_of(engine.result(numbers[0]))[0]) == WISH.max_tokens
    assert f"nothing came of it in {TIMEOUT_S:g} s" in str(engine.result(numbers[1]).error)
    assert len(engine.faults) == 2
    sound(engine)


@pytest.mark.long(but=["alone-10-fail", "prefill-60-fail"])
@pytest.mark.parametrize(("how", "losses"), [("fail", 2), ("kill", 8)], ids=["fail", "kill"])
@pytest.mark.parametrize("tokens", [10, 60])
@pytest.mark.parametrize("layout", [ALONE, PREFILL], ids=["alone", "prefill"])
def test_a_prompt_that_workers_are_lost_over_fails_alone(
    layout: Layout, tokens: int, how: str, losses: int, harmed: Harmed
) -> None:
    """Other prompts of its group go on: computed alone, the one at fault shows."""
    harm, *others = prompts(tokens, 9, 35, 4, 50)
    engine = harmed(layout, {tokens: how})
    first = engine.submit(others[0], Sampling(max_tokens=60, ignore_eos=True))
    engine.step()
    numbers = [engine.submit(text, WISH) for text in (others[1], harm, *others[2:])]
    engine.run()
    harmful = numbers.pop(1)
    why = str(engine.result(harmful).error)
    assert why.startswith("its prompt could not be computed: workers were lost each time that it was tried")
    assert len(tokens_of(engine.result(first))[0]) == 60
    assert [len(tokens_of(engine.result(number))[0]) for number in numbers] == [WISH.max_tokens] * 3
    assert len(engine.faults) in range(losses, losses + 2)
    sound(engine)


def test_a_worker_killed_for_want_of_memory_counts_against_its_prompt(
    harmed: Harmed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's count of such kills goes up with each loss, so it was not killed from outside."""
    monkeypatch.setattr(host_memory, "killed", itertools.count().__next__)
    (harm,) = prompts(10)
    engine = harmed(ALONE, {len(harm): "kill"})
    number = engine.submit(harm, WISH)
    engine.run()
    assert "workers were lost each time" in str(engine.result(number).error)
    assert len(engine.faults) == 2


# Memory.


@pytest.mark.long(but=["one-process"])
@pytest.mark.parametrize("layout", [None, ALONE], ids=["one-process", "workers"])
def test_a_prompt_that_memory_cannot_hold_is_refused_before_it_is_computed(
    layout: Layout | None, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("llama-gqa", layers=2, positions=40_000)
    with Engine(folder, layout=layout, kv_tokens=100_000) as engine:
        long, short = prompts(30_000, 5)
        free_bytes = engine.facts.prompt_bytes(20_000)
        monkeypatch.setattr(engine.core, "_spare_bytes", free_bytes)
        with pytest.raises(RequestError, match="a prompt of 30,000 tokens takes"):
            engine.submit(long, WISH)
        monkeypatch.setattr(engine.core, "_spare_bytes", 1 << 60)
        number = engine.submit(long, WISH)
        monkeypatch.setattr(engine.core, "_spare_bytes", free_bytes)  # others have taken it meanwhile
        (other,) = engine.generate([short], WISH)
        assert len(tokens_of(other)[0]) == WISH.max_tokens
        assert "a prompt of 29,999 tokens takes" in str(engine.result(number).error)
        engine.check_integrity()
