"""Everything a request may ask, through workers; requests that come and go at any moment."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import transformers
from cluster_support import Reference, Saved, Start, prompts, shared, sound, tokens_of

from lamina import Engine, Sampling
from lamina.cluster import ClusterCore, Layout, Machine, messages
from lamina.serve.requests import Result

Alone = Callable[[tuple[int, ...], Sampling], list[Result]]
LAYOUTS = {
    "rotational-2": shared(1, 1),
    "rotational-3-by-requests": shared(2, 2, batches=3, partition="requests"),
    "fixed-in-2-ranks": shared(4, 2, pipelining="fixed"),
    "stages": shared(2, 1, pipeline_parallel=2),
}
anywhere = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@pytest.fixture(scope="module")
def alone(saved: Saved) -> Alone:
    """What an engine without workers makes of prompts of these lengths."""

    @functools.cache
    def make(lengths: tuple[int, ...], wish: Sampling) -> list[Result]:
        return Engine(saved("llama-gqa"), kv_tokens=4000).generate(prompts(*lengths), wish)

    return make


# Each wish once, and in each layout samples or beams.
@pytest.mark.long(
    but=[
        *("samples-fixed-in-2-ranks", "samples-stages", "stops-rotational-2"),
        *("3-beams-rotational-2", "4-beams-fixed-in-2-ranks", "2-beams-rotational-3-by-requests"),
    ]
)
@anywhere
@pytest.mark.parametrize(
    "wish",
    [
        Sampling(max_tokens=18, n=3, temperature=1.2, top_k=40, top_p=0.9, seed=5, logprobs=2),
        Sampling(max_tokens=18, beams=4, n=4),
        Sampling(max_tokens=18, beams=3, length_penalty=2.0, stop_tokens=(7, 11, 19)),
        Sampling(max_tokens=18, beams=2, early_stopping=True, stop_tokens=tuple(range(0, 120, 9))),
        Sampling(max_tokens=30, n=4, temperature=2.0, seed=3, stop_tokens=tuple(range(0, 120, 9))),
    ],
    ids=["samples", "4-beams", "3-beams", "2-beams", "stops"],
)
def test_wishes_are_fulfilled_as_in_one_process(
    shared_engine: Start, alone: Alone, layout: Layout, wish: Sampling
) -> None:
    lengths = (12, 3, 25, 7, 1)
    engine = shared_engine(layout)
    made = engine.generate(prompts(*lengths), wish)
    sound(engine)
    for own, theirs in zip(made, alone(lengths, wish), strict=True):
        for one, other in zip(own.completions, theirs.completions, strict=True):
            assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
            # Ranks add up in another order.
            assert other.score is None or one.score == pytest.approx(other.score, rel=1e-4)
            for a, b in zip(one.logprobs or (), other.logprobs or (), strict=True):
                assert a.chosen == pytest.approx(b.chosen, abs=1e-4)
                assert [token for token, _ in a.top] == [token for token, _ in b.top]


@pytest.mark.long(but=["beams-rotational-3-2-pools", "greedy-rotational-3-2-pools"])
@pytest.mark.parametrize(
    ("layout", "kv_tokens"),
    [
        (shared(1, 1), 120),
        (shared(1, 2, partition="requests"), 240),
        (shared(2, 2, batches=3, partition="requests"), 240),
        (shared(2, 1, pipeline_parallel=2), 120),
    ],
    ids=["rotational-2", "2-pools", "rotational-3-2-pools", "stages"],
)
@pytest.mark.parametrize(
    "wish",
    [
        Sampling(max_tokens=40),
        Sampling(max_tokens=25, n=3, temperature=0.9, seed=5),
        Sampling(max_tokens=25, beams=3, n=3),
    ],
    ids=["greedy", "samples", "beams"],
)
def test_preempted_requests_generate_the_same_tokens(
    shared_engine: Start, alone: Alone, layout: Layout, kv_tokens: int, wish: Sampling
) -> None:
    lengths = (20, 25, 18, 30, 12, 16, 22, 9)
    roomy = alone(lengths, wish)
    engine = shared_engine(layout, kv_tokens=kv_tokens, admission="grow")
    numbers = [engine.submit(text, wish) for text in prompts(*lengths)]
    while not engine.idle:
        engine.step()
        engine.check_integrity()
    tight = [engine.result(number) for number in numbers]
    assert sum(result.preemptions for result in tight) > 0
    assert [tokens_of(result) for result in tight] == [tokens_of(result) for result in roomy]
    sound(engine)


@pytest.mark.long(but=["rotational-3-by-requests", "stages"])
@anywhere
def test_decode_only(start: Start, layout: Layout) -> None:
    """Prompts by length, KV made up: as many tokens as were asked for, the same each time."""
    observed = []
    for _ in range(2):
        engine = start(layout, decode_only=True)
        made = engine.generate([200, 17, 1, 50, 240], Sampling(max_tokens=11))
        assert [len(result.completions[0].tokens) for result in made] == [11] * 5
        sound(engine)
        observed.append([result.completions[0].tokens for result in made])
    assert observed[0] == observed[1]


@pytest.mark.parametrize("partition", ["heads", "requests"])
def test_batches_are_counted_in_a_memory_of_few_tokens(start: Start, partition: str) -> None:
    """What is run to find their number needs no more than there is."""
    layout = shared(1, 2, batches="auto", partition=partition)  # type: ignore[arg-type]
    engine = start(layout, kv_tokens=100, max_sequences=64)
    assert isinstance(engine.core, ClusterCore)
    assert [trial.batches for trial in engine.core.trials] == [1, 2]
    assert engine.core.batches in (1, 2)
    engine.generate([[5, 17, 99]], Sampling(max_tokens=4))
    sound(engine)


@anywhere
def test_streams_give_every_token_once(shared_engine: Start, layout: Layout) -> None:
    engine = shared_engine(layout)
    texts = prompts(6, 13)
    other = engine.submit(texts[0], Sampling(max_tokens=5))
    number = engine.submit(texts[1], Sampling(max_tokens=9, n=2, temperature=1.0, seed=0))
    observed: dict[int, list[int]] = {0: [], 1: []}
    for piece in engine.stream(number):
        observed[piece.sample] += piece.tokens
    assert tokens_of(engine.result(number)) == [observed[0], observed[1]]
    engine.run()
    assert len(tokens_of(engine.result(other))[0]) == 5
    sound(engine)


# In flight is cancelled after one step and more: each number of them in one layout.
@pytest.mark.long(
    but=["0-rotational-2", "1-rotational-3-by-requests", "2-stages", "3-fixed-in-2-ranks", "7-stages"]
)
@anywhere
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_cancelling_at_every_stage(
    shared_engine: Start, reference: Reference, layout: Layout, steps: int
) -> None:
    """In flight, just joined, waiting: the rest makes the same tokens, and all memory comes back."""
    engine = shared_engine(layout, kv_tokens=200 * (2 if layout.partition == "requests" else 1))
    texts = prompts(10, 20, 30, 11, 21, 31, 12, 22, 32)
    wishes = [Sampling(max_tokens=20), Sampling(max_tokens=20, n=2, temperature=1.0, seed=1)]
    wishes.append(Sampling(max_tokens=20, beams=2))
    numbers = [engine.submit(text, wishes[i % 3]) for i, text in enumerate(texts)]
    for _ in range(steps):
        engine.step()
    stays = [0, 3]
    for i in (4, 1, 2, 8, 7, 6, 5):
        engine.cancel(numbers[i])
        engine.check_integrity()
        engine.cancel(numbers[i])
        ended = engine.result(numbers[i])
        assert {done.finish_reason for done in ended.completions} <= {"cancelled"}
    # What the cancelled have had is others'.
    late = [engine.submit(text, Sampling(max_tokens=8)) for text in texts[:4]]
    engine.run()
    for i in stays:
        assert tokens_of(engine.result(numbers[i])) == [reference("llama-gqa", tuple(texts[i]), 20)]
    for number, text in zip(late, texts, strict=False):
        assert tokens_of(engine.result(number)) == [reference("llama-gqa", tuple(text), 8)]
    sound(engine)


def test_the_last_one_cancelled_leaves_nothing(shared_engine: Start) -> None:
    engine = shared_engine(LAYOUTS["rotational-3-by-requests"])
    for steps in range(5):
        numbers = [engine.submit(text, Sampling(max_tokens=20)) for text in prompts(5, 9, 2, 7)]
        for _ in range(steps):
            engine.step()
        for number in numbers:
            engine.cancel(number)
        engine.run()
        assert not any(engine.core.kv_used())
    engine.generate(prompts(5, 9), Sampling(max_tokens=3))
    sound(engine)


@pytest.mark.long(but=["grow-0"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("admission", ["reserve", "grow"])
def test_coming_and_going_at_random(
    shared_engine: Start, reference: Reference, seed: int, admission: str
) -> None:
    layout = LAYOUTS["rotational-3-by-requests"]
    engine = shared_engine(layout, kv_tokens=260, max_sequences=12, admission=admission)
    draws = random.Random(seed)
    lengths = (3, 8, 15, 24, 40)
    texts = prompts(*lengths)
    here: dict[int, tuple[int, Sampling]] = {}
    checked = 0

    def wish() -> Sampling:
        kind = draws.randrange(6)
        tokens = draws.randint(1, 14)
        if kind == 0:
            return Sampling(max_tokens=tokens, beams=draws.randint(2, 3))
        if kind == 1:
            return Sampling(max_tokens=tokens, n=draws.randint(1, 3), temperature=1.0, logprobs=1)
        return Sampling(max_tokens=tokens)

    for step in range(100):
        for _ in range(draws.choice([0, 0, 1, 2])):
            which, requested = draws.randrange(len(texts)), wish()
            here[engine.submit(texts[which], requested)] = (which, requested)
        if here and draws.random() < 0.3:
            lost = draws.choice(list(here))
            del here[lost]
            engine.cancel(lost)
            engine.result(lost)
        for number in engine.step().ended:
            which, requested = here.pop(number)
            made = engine.result(number).completions
            if requested == Sampling(max_tokens=requested.max_tokens):
                expected = reference("llama-gqa", tuple(texts[which]), requested.max_tokens)
                assert list(made[0].tokens) == expected
                checked += 1
        if step % 10 == 9:
            engine.check_integrity()
    engine.run()
    assert checked > 5
    sound(engine)


def test_requests_are_distributed_by_length_and_not_by_number(start: Start) -> None:
    """One long request takes as much of an attention worker as many short ones."""
    layout = shared(1, 2, partition="requests", batches=1)
    engine = start(layout, decode_only=True, kv_tokens=4000)
    engine.submit(240, Sampling(max_tokens=10))
    for _ in range(8):
        engine.submit(30, Sampling(max_tokens=10))
    for _ in range(4):
        engine.step()
    assert isinstance(engine.core, ClusterCore)
    one, other = engine.core.kv_used()
    assert abs(one - other) < 60
    assert min(one, other) > 200
    engine.run()


def test_records_are_available_at_any_time(start: Start) -> None:
    engine = start(LAYOUTS["rotational-3-by-requests"])
    for text in prompts(5, 9, 2, 7):
        engine.submit(text, Sampling(max_tokens=12))
    observed = [0]
    while not engine.idle:
        engine.step()
        records = engine.core.records()
        observed.append(len(records))
    assert observed == sorted(observed)
    assert observed[1] > 0
    sound(engine)


def test_more_than_a_control_message_holds(saved: Saved, machine: Machine) -> None:
    """Log-probabilities of a large vocabulary for many, told in parts."""
    config = transformers.AutoConfig.from_pretrained(saved("llama-gqa"))
    config.vocab_size = 30_000
    rows = 30
    assert rows * config.vocab_size * 12 > messages.PART_BYTES
    options: dict[str, Any] = {"load_format": "dummy", "kv_tokens": 1000, "machine": machine}
    with Engine(config, layout=shared(pipelining="serial"), **options) as engine:
        made = engine.generate([[5]] * rows, Sampling(max_tokens=1, logprobs=config.vocab_size))
        sound(engine)
    first, *others = (result.completions[0].logprobs for result in made)
    assert first is not None
    assert len({token for token, _ in first[0].top}) == config.vocab_size
    assert others == [first] * (rows - 1)
