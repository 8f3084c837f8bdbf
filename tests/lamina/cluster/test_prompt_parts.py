"""Prompts that are computed in parts beside decoding: the same tokens, whoever computes them and whatever happens
meanwhile.
"""

from __future__ import annotations

import pytest
from cluster_support import Load, Saved, Start, mixed, play, shared, sound, tokens_of

from lamina import Engine

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
def wanted(load: Load, saved: Saved) -> list[list[list[int]]]:
    return play(Engine(saved("llama-gqa"), kv_tokens=2000), load)


@pytest.mark.parametrize(("admission", "kv_tokens"), [("reserve", 2000), ("grow", 260)])
def test_in_one_process(
    admission: str, kv_tokens: int, load: Load, wanted: list[list[list[int]]], saved: Saved
) -> None:
    engine = Engine(saved("llama-gqa"), kv_tokens=kv_tokens, admission=admission, prompt_tokens=FEW)
    numbers = [engine.submit(*request) for request in load]
    steps = []
    while not engine.idle:
        steps.append(engine.step())
    assert [tokens_of(engine.result(number)) for number in numbers] == wanted
    assert max(step.prompt_tokens for step in steps) <= FEW
    assert any(step.prompt_tokens and not step.joined and step.size for step in steps), (
        "a part, beside decoding"
    )
    engine.check_integrity()


@pytest.mark.long(but=["rotational", "requests"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_workers(layout: str, load: Load, wanted: list[list[list[int]]], start: Start) -> None:
    engine = start(LAYOUTS[layout], prompt_tokens=FEW)
    assert play(engine, load) == wanted
    sound(engine)
    assert not engine.faults
