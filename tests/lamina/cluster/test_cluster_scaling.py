"""Other numbers of attention workers on an engine that runs: every token is the one it would have been."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_support import Load, Saved, Start, play, prompts, shared, sound

from lamina import Engine, Sampling
from lamina.serve import EngineError

LAYOUTS = {
    "heads": shared(1, 1),
    "requests": shared(2, 1, batches=3, partition="requests"),
    "stages": shared(2, 1, pipeline_parallel=2),
    "ranks": shared(2, 1, pipelining="serial"),
}
KV_TOKENS = 700


@pytest.fixture(scope="module")
def load() -> Load:
    """More than has room at once."""
    kinds = ({}, {"temperature": 1.0, "seed": 3}, {"n": 3, "temperature": 0.8, "seed": 4}, {"beams": 2})
    texts = prompts(*(7 + 11 * number % 43 for number in range(16)))
    return [
        (text, Sampling(max_tokens=8 + number % 13, ignore_eos=True, **kinds[number % 4]))
        for number, text in enumerate(texts)
    ]


@pytest.mark.long(but=["stages-*"])
@pytest.mark.parametrize(
    ("layout", "admission"), [*((name, "reserve") for name in LAYOUTS), ("requests", "grow")]
)
def test_out_and_in_again(layout: str, admission: str, load: Load, start: Start) -> None:
    expected = play(start(LAYOUTS[layout], kv_tokens=KV_TOKENS, admission=admission), load)
    engine = start(LAYOUTS[layout], kv_tokens=KV_TOKENS, admission=admission)
    wishes = {4: 2, 11: 1, 17: 2}

    def scale(step: int) -> None:
        if step in wishes:
            engine.scale(attention_workers=wishes[step])
            assert sum(name.startswith("attention") for name in engine.workers) == wishes[step]
            assert engine.kv_tokens == wishes[step] * KV_TOKENS
            engine.check_integrity()

    assert play(engine, load, scale) == expected
    assert engine.core.layout.attention_workers == 2
    assert engine.faults == []
    sound(engine)


def test_requests_are_spread_over_all(load: Load, start: Start) -> None:
    engine = start(LAYOUTS["requests"], kv_tokens=KV_TOKENS)

    def scale(step: int) -> None:
        if step == 4:
            engine.scale(attention_workers=2)
        if step == 8:
            assert all(engine.core.kv_used())

    play(engine, load, scale)


def test_workers_killed_before_and_after(load: Load, start: Start) -> None:
    """So that some are found lost while the last iterations end, or while all meet."""
    expected = play(start(LAYOUTS["requests"], kv_tokens=KV_TOKENS), load)
    engine = start(LAYOUTS["requests"], kv_tokens=KV_TOKENS)
    wishes = {4: (2, "attention 0"), 8: (1, "model 1"), 12: (2, "model 0")}

    def scale(step: int) -> None:
        if step in wishes:
            engine.inject_fault(wishes[step][1])
            engine.scale(attention_workers=wishes[step][0])
            engine.inject_fault(engine.workers[-1])

    assert play(engine, load, scale) == expected
    assert len(engine.faults) >= len(wishes)
    sound(engine)


def test_one_kv_head_is_stored_by_all_who_share_its_queries(load: Load, start: Start) -> None:
    """More of them have room for as many tokens as before, and take over from each other."""
    token_bytes = 3 * (32 + 8) * 4  # layers, latent and rotated part, float32
    layout = shared(2, 2, pipelining="serial")
    engine = start(layout, "deepseek-v3", kv_tokens=None, kv_bytes=2 * 300 * token_bytes)
    assert engine.kv_tokens == 300
    expected = play(engine, load)

    def change(step: int) -> None:
        if step == 4:
            engine.inject_fault("attention 1")
        if step == 9:
            engine.scale(attention_workers=4)
            assert engine.kv_tokens == 300

    assert play(engine, load, change) == expected
    assert len(engine.faults) == 1
    sound(engine)


def test_an_idle_engine(load: Load, start: Start) -> None:
    engine = start(LAYOUTS["heads"], kv_tokens=KV_TOKENS)
    engine.scale(attention_workers=2)
    assert engine.idle
    first = play(engine, load)
    engine.scale(attention_workers=1)
    assert play(engine, load) == first
    sound(engine)


def test_invalid_scaling_is_refused(saved: Saved, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what runs goes on."""
    engine = start(LAYOUTS["heads"], kv_tokens=100)
    engine.scale(attention_workers=2)
    number = engine.submit([1, 2, 3], Sampling(max_tokens=150, ignore_eos=True))
    engine.step()
    for wish, code in {
        3: "layout-heads-uneven",
        0: "engine-count-invalid",
        1: "engine-scale-request-too-large",
    }.items():
        with pytest.raises(EngineError, match=code):
            engine.scale(attention_workers=wish)
    with monkeypatch.context() as patch:
        patch.setattr(engine.core._machine, "free_bytes", lambda: 0)
        patch.setattr(engine.core, "layout", LAYOUTS["heads"])
        with pytest.raises(EngineError, match="engine-out-of-memory"):
            engine.scale(attention_workers=2)
    with monkeypatch.context() as patch:
        patch.setattr(engine.core, "layout", replace(LAYOUTS["heads"], oversubscribe=False))
        patch.setattr("os.sched_getaffinity", lambda _: {0, 1})
        with pytest.raises(EngineError, match="layout-cores-too-few"):
            engine.scale(attention_workers=2)
    engine.run()
    assert len(engine.result(number).completions[0].tokens) == 150
    with pytest.raises(EngineError, match="engine-no-workers"):
        Engine(saved("llama-gqa"), kv_tokens=100).scale(attention_workers=2)
    engine.close()
    with pytest.raises(EngineError, match="engine-closed"):
        engine.scale(attention_workers=2)
