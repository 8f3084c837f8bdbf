"""A fleet of engines with workers: one of them killed in the middle, and the tokens are one engine's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_support import Saved, Start, mixed, prompts, shared, tokens_of

from lamina import Engine, Fleet, Sampling
from lamina.cluster import Machine
from lamina.serve import EngineError

Make = Callable[..., Fleet]
LAYOUTS = (shared(1, 1), shared(1, 2, partition="requests"))
SEEDED = [
    (text, sampling) for text, sampling in mixed(20) if sampling.temperature == 0 or sampling.seed is not None
]


@pytest.fixture
def fleet(saved: Saved, machine: Machine) -> Iterator[Make]:
    """Two engines of different layouts on this machine."""
    with contextlib.ExitStack() as made:

        def make(**options: Any) -> Fleet:
            folder = saved("llama-gqa")
            return made.enter_context(
                Fleet(
                    [
                        lambda each=each: Engine(folder, layout=each, machine=machine, kv_tokens=2000)
                        for each in LAYOUTS
                    ],
                    **options,
                )
            )

        yield make


def served(where: Fleet, deed: Callable[[int], object] = lambda step: None) -> list[list[list[int]]]:
    numbers = [where.submit(*request) for request in SEEDED]
    step = 0
    while not where.idle:
        deed(step)
        where.step()
        step += 1
    results = [where.result(number) for number in numbers]
    assert [result.error for result in results] == [None] * len(results)
    return [tokens_of(result) for result in results]


@pytest.fixture(scope="module")
def expected_tokens(shared_engine: Start) -> list[list[list[int]]]:
    engine = shared_engine(LAYOUTS[0])
    numbers = [engine.submit(*request) for request in SEEDED]
    engine.run()
    return [tokens_of(engine.result(number)) for number in numbers]


@pytest.mark.parametrize("queue", ["each", "global"])
def test_one_of_two_killed_in_the_middle(queue: str, fleet: Make, expected_tokens: Any) -> None:
    two = fleet(queue=queue, router="least-requests")

    def kill(step: int) -> None:
        if step == 9:
            assert two.instances[1].requests
            two.inject_fault("instance 1")

    assert served(two, kill) == expected_tokens
    assert two.states == ["open", "lost"]
    # A busy machine's workers may be replaced for being silent too.
    (fault,) = (each for each in two.faults if each.workers == ("instance 1",))
    assert "SIGKILL" in fault.why
    assert fault.requests > 0
    assert fault.noticed_s < fault.resumed_s
    assert two.workers == ["instance 0", "0/model 0", "0/attention 0"]
    with pytest.raises(EngineError) as caught:
        two.inject_fault("1/model 0")
    assert caught.value.code == "engine-worker-unknown"
    two.check_integrity()
    assert two.records()[1] is None


def test_a_worker_that_is_lost_is_replaced_by_its_own_engine(fleet: Make, expected_tokens: Any) -> None:
    two = fleet()

    def kill(step: int) -> None:
        if step in (5, 12):
            two.inject_fault(f"{step % 2}/attention 0")

    assert served(two, kill) == expected_tokens
    assert two.states == ["open", "open"]
    assert {("0/attention 0",), ("1/attention 0",)} <= {fault.workers for fault in two.faults}
    result = two.records()
    assert [records.workers for records in result if records] == [
        ("model 0", "attention 0"),
        ("model 0", "attention 0", "attention 1"),
    ]
    assert set(two.worked_s()) == {name for name in two.workers if "/" in name}


def test_an_engine_killed_while_idle_is_lost(fleet: Make) -> None:
    """Its last tokens are there; what comes next goes elsewhere."""
    two = fleet()
    sampling = Sampling(max_tokens=4, ignore_eos=True)
    one, other = prompts(5, 6)
    first, second = two.submit(one, sampling), two.submit(other, sampling)
    two.run()
    two.inject_fault("instance 0")
    third = two.submit(one, sampling)
    two.run()
    assert two.states == ["lost", "open"]
    assert tokens_of(two.result(third)) == tokens_of(two.result(first))
    assert len(tokens_of(two.result(second))[0]) == 4
