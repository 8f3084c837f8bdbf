"""Several engines in this process used like one: routing, and that nothing is lost with an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import transformers

from lamina import Engine, Fleet, Sampling
from lamina.serve import EngineError, RequestError, Step
from lamina.serve.fleet import MOST_DEATHS
from lamina.serve.front import PREFIX_BLOCK, prefix_blocks

SmallModel = Callable[..., transformers.PreTrainedModel]
Make = Callable[..., Fleet]
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.9},
    {"n": 3, "temperature": 0.8, "seed": 4},
    {"beams": 3},
    {"logprobs": 2},
)
LOAD = [
    (
        [7 + 3 * i, 40, 2 * i + 1, 9][: 2 + i % 3],
        Sampling(max_tokens=6 + i % 5, ignore_eos=True, **KINDS[i % 6]),
    )
    for i in range(18)
]
SEEDED = [
    (prompt, sampling) for prompt, sampling in LOAD if sampling.temperature == 0 or sampling.seed is not None
]
DEADLINE_S = 60


class BrokenError(Exception):
    """What no engine expects."""


@pytest.fixture(scope="module")
def model(small_model: SmallModel) -> transformers.PreTrainedModel:
    return small_model("llama-gqa")


@pytest.fixture
def fleet(model: Any) -> Iterator[Make]:
    """Engines of this process."""
    made: list[Fleet] = []

    def make(count: int = 2, *, engine: dict[str, Any] | None = None, **options: Any) -> Fleet:
        given = {"kv_tokens": 400, "max_sequences": 4} | (engine or {})
        made.append(Fleet([lambda: Engine(model, **given)] * count, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def breaks(fleet: Fleet, instance: int, at: int) -> None:
    """An engine's step raises from so many steps on."""
    engine, steps = fleet.instances[instance].engine, iter(range(10**6))
    step = engine.step

    def stepping() -> Step:
        if next(steps) >= at:
            raise BrokenError("it is broken")
        return step()

    engine.step = stepping  # type: ignore[method-assign]


def tokens_of(result: Any) -> list[tuple[int, ...]]:
    assert result.error is None
    return [done.tokens for done in result.completions]


def served(where: Any, load: Any = SEEDED, deed: Callable[[int], object] = lambda step: None) -> Any:
    """Return all tokens of a load; reports of running requests are consistent."""
    numbers = [where.submit(*request) for request in load]
    running: set[int] = set()
    reported_tokens: list[int] = []
    step = 0
    while not where.idle:
        deed(step)
        reported = where.step()
        left = {*reported.preempted, *reported.moved}
        assert running >= left
        running -= left
        assert running.isdisjoint(reported.joined)
        running |= set(reported.joined)
        assert running.issuperset(reported.ended)
        running -= set(reported.ended)
        reported_tokens += reported.ended
        step += 1
    assert not running
    assert sorted(reported_tokens) == sorted(numbers)
    return [tokens_of(where.result(number)) for number in numbers]


@pytest.fixture(scope="module")
def expected_tokens(model: Any) -> Any:
    """What one engine makes of it."""
    return served(Engine(model, kv_tokens=400, max_sequences=4))


@pytest.mark.parametrize("queue", ["each", "global"])
@pytest.mark.parametrize("router", ["round-robin", "least-requests", "least-kv", "prefix", "fit"])
def test_a_fleet_makes_the_tokens_of_one_engine(
    router: str, queue: str, fleet: Make, expected_tokens: Any
) -> None:
    three = fleet(3, router=router, queue=queue)
    assert served(three) == expected_tokens
    assert three.idle
    assert three.used_kv_tokens == 0
    three.check_integrity()


@pytest.mark.parametrize("queue", ["each", "global"])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_an_engine_that_fails_loses_nothing(at: int, queue: str, fleet: Make, expected_tokens: Any) -> None:
    two = fleet(queue=queue)
    breaks(two, 1, at)
    assert served(two) == expected_tokens
    assert two.states == ["open", "lost"]
    assert [fault.workers for fault in two.faults] == [("instance 1",)]
    assert two.faults[0].noticed_s <= two.faults[0].resumed_s
    two.check_integrity()


@pytest.mark.parametrize("finish", [False, True])
def test_one_that_is_drained_loses_nothing(*, finish: bool, fleet: Make, expected_tokens: Any) -> None:
    two = fleet()

    def drain(step: int) -> None:
        if step == 4:
            two.drain(0, finish=finish)
            assert two.states[0] == ("draining" if finish else "drained")

    assert served(two, deed=drain) == expected_tokens
    assert two.states == ["drained", "open"]
    two.check_integrity()
    two.drain(1, finish=True)
    with pytest.raises(EngineError) as caught:
        two.submit([1, 2])
    assert caught.value.code == "fleet-lost"
    two.reopen(0)
    two.generate([[1, 2]])


def test_a_stream_has_each_token_once_across_engine_loss(fleet: Make, expected_tokens: Any) -> None:
    for place, (prompt, sampling) in enumerate(SEEDED[:5]):
        two = fleet()
        breaks(two, 0, 3)
        number = two.submit(prompt, sampling)
        got: dict[int, list[int]] = {}
        for piece in two.stream(number):
            got.setdefault(piece.sample, []).extend(piece.tokens)
        assert [tuple(got[sample]) for sample in sorted(got)] == expected_tokens[place]
        assert two.states == ["lost", "open"]
        two.result(number)


def test_preemptions_and_seeds_go_along(fleet: Make) -> None:
    """A request without a seed draws the same elsewhere, as what it has made is gone on with."""
    two = fleet(engine={"kv_tokens": 30, "admission": "grow"})
    numbers = [
        two.submit([5, 6, 7], Sampling(max_tokens=20, temperature=1.0, ignore_eos=True)) for _ in range(6)
    ]
    made: dict[int, tuple[int, ...]] = {}
    preempted, drained = 0, 0
    while not two.idle:
        if max(map(len, made.values()), default=0) > 8 * (1 + drained) and drained < 2:
            two.reopen(1 - drained)
            two.drain(drained)
            drained += 1
        reported = two.step()
        preempted += len(reported.preempted)
        for number in numbers:
            if number not in reported.ended and number in two._requests:
                now = two.made(number)
                assert now[: len(made.get(number, ()))] == made.get(number, ())
                made[number] = now
    results = [two.result(number) for number in numbers]
    assert sum(result.preemptions for result in results) == preempted > 0
    for number, result in zip(numbers, results, strict=True):
        assert len(result.completions[0].tokens) == 20
        assert result.completions[0].tokens[: len(made[number])] == made[number]


def test_requests_that_likely_kill_engines_are_not_retried(fleet: Make) -> None:
    three = fleet(3, engine={"max_sequences": 1}, router=lambda *_: three.states.index("open"))
    for instance in range(MOST_DEATHS):
        breaks(three, instance, 2)
    bad, waits = (three.submit([1, 2], Sampling(max_tokens=9, ignore_eos=True)) for _ in range(2))
    three.run()
    assert three.result(waits).error is None
    result = three.result(bad)
    assert result.error is not None
    assert "2 engines have died" in result.error
    assert result.completions[0].finish_reason == "failed"
    assert three.states == ["lost", "lost", "open"]
    assert three.generate([[1, 2]], Sampling(max_tokens=3))[0].error is None


def test_what_ran_on_a_lost_engine_is_next_elsewhere(fleet: Make) -> None:
    two = fleet(engine={"max_sequences": 1})
    first, second, *_ = (two.submit([1, 2], Sampling(max_tokens=9, ignore_eos=True)) for _ in range(4))
    breaks(two, 0, 3)
    ended: list[int] = []
    while not two.idle:
        ended += two.step().ended
    assert ended[:2] == [second, first]


def test_a_fleet_without_engines_refuses_until_it_gets_a_new_one(
    fleet: Make, model: Any, expected_tokens: Any
) -> None:
    one = fleet(1)
    breaks(one, 0, 2)
    numbers = [one.submit(*request) for request in SEEDED]
    with pytest.raises(EngineError) as caught:
        one.run()
    assert caught.value.code == "fleet-lost"
    with pytest.raises(EngineError) as caught:
        one.submit([1, 2])
    assert caught.value.code == "fleet-lost"
    assert one.add(Engine(model, kv_tokens=400, max_sequences=4)) == 1
    one.run()
    assert [tokens_of(one.result(number)) for number in numbers] == expected_tokens
    assert one.states == ["lost", "open"]


def test_all_engines_make_progress_at_once(fleet: Make) -> None:
    """Each of two steps waits for the other's: one after the other they would wait in vain."""
    two, both = fleet(), threading.Barrier(2)
    for each in two.instances:
        step = each.engine.step

        def stepping(step: Callable[[], Step] = step) -> Step:
            both.wait(DEADLINE_S)
            return step()

        each.engine.step = stepping  # type: ignore[method-assign]
    sampling = Sampling(max_tokens=5, ignore_eos=True)
    assert [len(result.completions[0].tokens) for result in two.generate([[1, 2], [3, 4]], sampling)] == [
        5,
        5,
    ]


def test_a_global_queue_gives_an_engine_no_more_than_it_has_room_for(fleet: Make) -> None:
    two = fleet(queue="global", engine={"max_sequences": 2, "kv_tokens": 40})
    numbers = [two.submit([1, 2], Sampling(max_tokens=8, ignore_eos=True)) for _ in range(9)]
    assert two.waiting == 9
    while not two.idle:
        two.step()
        for each in two.instances:
            assert len(each.requests) + len(each.coming) <= 2
    assert all(two.result(number).error is None for number in numbers)


def test_cancelled_wherever_it_is(fleet: Make) -> None:
    two = fleet(queue="global", engine={"max_sequences": 1})
    sampling = Sampling(max_tokens=30, ignore_eos=True)
    running, also, waiting = (two.submit([1, 2 + i], sampling) for i in range(3))
    while len(two.made(running)) < 4:
        two.step()
    two.cancel(waiting)
    assert two.result(waiting).completions == ()
    two.cancel(running)
    ended = two.result(running).completions[0]
    assert ended.finish_reason == "cancelled"
    assert 4 <= len(ended.tokens) < 30
    observed: list[int] = []
    while not two.idle:
        reported = two.step()
        observed += [*reported.joined, *reported.ended, *reported.preempted, *reported.moved]
    assert running not in observed
    assert waiting not in observed
    assert len(two.result(also).completions[0].tokens) == 30
    with pytest.raises(KeyError):
        two.cancel(also)
    two.check_integrity()


def test_batches_are_numbered_over_all(fleet: Make) -> None:
    two = fleet()
    two.submit([1, 2])
    two.submit([1, 2])
    batches = set()
    while not two.idle:
        batches.add(two.step().batch)
    assert batches == {0, 1}


def test_a_custom_router_gets_each_engines_load(fleet: Make) -> None:
    observed: list[tuple[Any, ...]] = []

    def last(prompt: int, output: int, prefix: Any, requests: Any, kv_tokens: Any) -> int:
        observed.append((prompt, output, len(prefix), requests.tolist(), kv_tokens.tolist()))
        return 1

    two = fleet(router=last, engine={"kv_tokens": 3000})
    two.submit([1, 2], Sampling(max_tokens=5))
    two.submit([3] * 100, Sampling(max_tokens=5, n=2, temperature=1.0))
    assert observed == [(2, 5, 0, [0, 0], [0, 0]), (100, 10, 0, [0, 1], [0, 7])]
    two.run()
    two.submit([1, 2])
    assert observed[-1][3:] == ([0, 0], [0, 0])
    wrong = fleet(router=lambda *_: 2)
    with pytest.raises(EngineError) as caught:
        wrong.submit([1, 2])
    assert caught.value.code == "fleet-router-invalid"
    assert wrong.idle
    assert wrong.waiting == 0


def test_a_prompt_goes_to_the_engine_with_its_prefix(fleet: Make) -> None:
    two = fleet(router="prefix", engine={"kv_tokens": 4000})
    ids = prefix_blocks(np.arange(2 * PREFIX_BLOCK + 5))
    longer = prefix_blocks(np.arange(3 * PREFIX_BLOCK))
    assert len(ids) == 2
    assert longer[:2].tolist() == ids.tolist()
    assert prefix_blocks(np.arange(2 * PREFIX_BLOCK) + 1)[0] != ids[0]
    where = []
    for prefix in ([1, 2], [7], [1, 2, 3], [7, 8], [1]):
        number = two.submit([1, 2], Sampling(max_tokens=2), prefix=prefix)
        where.append(two._requests[number].instance)
    assert where == [0, 1, 0, 1, 0]
    two.run()


def test_refused_requests_leave_nothing(fleet: Make, model: Any) -> None:
    two = fleet(engine={"kv_tokens": 40})
    for prompt, sampling in (([], Sampling()), ([1], Sampling(max_tokens=60)), ([1], Sampling(n=9))):
        with pytest.raises(RequestError):
            two.submit(prompt, sampling)
    assert two.idle
    for code, make in (
        ("fleet-empty", lambda: Fleet([])),
        ("fleet-queue-unknown", lambda: fleet(queue="none")),
        ("fleet-router-unknown", lambda: fleet(router="best")),
        ("fleet-last-instance", lambda: fleet(1).drain(0)),
        ("fleet-instance-unknown", lambda: two.drain(2)),
        ("engine-worker-unknown", lambda: two.inject_fault("instance 2")),
        (
            "fleet-models-differ",
            lambda: Fleet([Engine(model, kv_tokens=50), Engine(model, kv_tokens=50, decode_only=True)]),
        ),
    ):
        with pytest.raises(EngineError) as caught:
            make()
        assert caught.value.code == code


def test_requests_by_length_go_on_elsewhere_too(fleet: Make) -> None:
    two = fleet(engine={"decode_only": True})
    breaks(two, 1, 4)
    numbers = [two.submit(9, Sampling(max_tokens=8)) for _ in range(6)]
    two.run()
    assert [len(two.result(number).completions[0].tokens) for number in numbers] == [8] * 6
