"""More KV than attention workers have room for on their devices: pages move, tokens stay what they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from cluster_support import KINDS, Load, Saved, Start, play, prompts, shared, sound

from lamina import Engine, Sampling
from lamina.cluster import Machine
from lamina.kv import Faults
from lamina.kv.arena import PAGE_TOKENS

# Of all devices together, and as many beside them.
PAGES, OVERCOMMIT = 6, 9.0
HEADS, REQUESTS = shared(2, 2, batches=3), shared(2, 2, batches=3, partition="requests")
ExpectedTokens = Callable[[str], list[list[list[int]]]]


@pytest.fixture(scope="module")
def load() -> Load:
    """Texts of more than a page. The first ones soon make room on the device."""
    return [
        (text, Sampling(max_tokens=4 if number < 2 else 12, ignore_eos=True, **KINDS[number % len(KINDS)]))
        for number, text in enumerate(prompts(150, 100, 60, 90, 110, 70, 80, 30))
    ]


@pytest.fixture(scope="module")
def expected_tokens(saved: Saved, machine: Machine, load: Load) -> ExpectedTokens:
    """What an engine with memory enough makes of it."""

    @functools.cache
    def make(family: str) -> list[list[list[int]]]:
        with Engine(saved(family), layout=shared(1, 1), machine=machine, kv_tokens=4000) as engine:
            return play(engine, load)

    return make


@pytest.fixture
def small(start: Start) -> Start:
    """An engine whose devices are too small."""
    return functools.partial(start, kv_tokens=PAGES * PAGE_TOKENS, overcommit=OVERCOMMIT)


def faults(engine: Engine) -> Faults:
    return sum(engine.paging().values(), Faults())


@pytest.mark.long(but=["heads", "requests-prefill-worker", "windows"])
@pytest.mark.parametrize(
    ("layout", "family", "options"),
    [
        pytest.param(shared(1, 1, pipelining="serial"), "llama-gqa", {}, id="serial"),
        pytest.param(HEADS, "llama-gqa", {"overlap": True}, id="heads"),
        pytest.param(REQUESTS, "llama-gqa", {}, id="requests"),
        pytest.param(shared(2, 2, pipeline_parallel=2, stream_chunks=2), "llama-gqa", {}, id="stages"),
        pytest.param(shared(1, 2, prefill_workers=1), "llama-gqa", {}, id="prefill-worker"),
        pytest.param(
            shared(1, 2, prefill_workers=1, partition="requests"),
            "llama-gqa",
            {},
            id="requests-prefill-worker",
        ),
        pytest.param(HEADS, "gpt-oss", {"max_sequences": 8}, id="windows"),
        pytest.param(REQUESTS, "gpt-oss", {}, id="paged-windows"),
        pytest.param(HEADS, "llama4", {}, id="paged-chunks"),
        pytest.param(HEADS, "deepseek-v3", {"absorb": "attention"}, id="latent"),
        pytest.param(
            shared(1, 2, prefill_workers=1, partition="requests"), "deepseek-v3", {}, id="latent-requests"
        ),
    ],
)
def test_tokens_are_those_of_memory_enough(
    layout: Any,
    family: str,
    options: dict[str, Any],
    load: Load,
    expected_tokens: ExpectedTokens,
    small: Start,
) -> None:
    engine = small(layout, family, **options)
    assert engine.kv_tokens == (1 + OVERCOMMIT) * PAGES * PAGE_TOKENS
    assert play(engine, load) == expected_tokens(family)
    assert engine.paging().keys() == {name for name in engine.workers if name.startswith("attention")}
    assert faults(engine).moved > 0
    assert faults(engine).in_place > 0
    sound(engine)


@pytest.mark.long(but=["requests-llama-gqa"])
@pytest.mark.parametrize(
    ("layout", "family"),
    [(REQUESTS, "llama-gqa"), (HEADS, "llama-gqa"), (REQUESTS, "gpt-oss"), (HEADS, "deepseek-v3")],
    ids=["requests-llama-gqa", "heads-llama-gqa", "requests-gpt-oss", "heads-deepseek-v3"],
)
def test_workers_that_are_lost_begin_with_empty_pages(
    layout: Any, family: str, load: Load, expected_tokens: ExpectedTokens, small: Start
) -> None:
    engine = small(layout, family)

    def inject_fault(step: int) -> None:
        if step % 7 == 3:
            engine.inject_fault(engine.workers[-1 - step // 7 % len(engine.workers)])

    assert play(engine, load, inject_fault) == expected_tokens(family)
    assert any(fault.kv_tokens for fault in engine.faults)
    sound(engine)
    engine.inject_fault("attention 1")
    assert engine.paging()["attention 1"] == Faults()
    assert play(engine, load) == expected_tokens(family)
    assert faults(engine).in_place > 0


def test_more_attention_workers_with_as_many_pages_each(
    load: Load, expected_tokens: ExpectedTokens, small: Start
) -> None:
    engine = small(shared(1, 1))

    def scale(step: int) -> None:
        if step == 4:
            engine.scale(attention_workers=2)

    assert play(engine, load, scale) == expected_tokens("llama-gqa")
    assert engine.kv_tokens == 2 * (1 + OVERCOMMIT) * PAGES * PAGE_TOKENS
    assert len(engine.paging()) == 2
    sound(engine)


def test_without_overcommit_there_is_no_paging(shared_engine: Start) -> None:
    assert shared_engine(shared(1, 1)).paging() == {}
