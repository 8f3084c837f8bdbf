"""Layers with a window or chunks: tokens are transformers', and what no later token sees is given back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from cluster_support import prompts, tokens_of

from lamina import Engine, Sampling
from lamina.operators import Sight

SmallModel = Callable[..., transformers.PreTrainedModel]
LIMITED = {
    "gpt-oss": Sight(window=10),
    "gemma2": Sight(window=11),
    "gemma3": Sight(window=10),
    "mistral": Sight(window=12),
    "llama4": Sight(chunk=12),
}
SEQUENCES, TOKENS = 5, 50  # at once, and that each makes
# One alone and two that share their prompt, twice.
KINDS = [{}, {"n": 2, "temperature": 0.9, "seed": 5}, {"n": 2, "temperature": 0.9, "seed": 6}]
LOAD = [
    (text, Sampling(max_tokens=TOKENS, **kind)) for text, kind in zip(prompts(40, 7, 25), KINDS, strict=True)
]


def reference(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    whole, mask = torch.tensor([prompt]), torch.ones(1, len(prompt), dtype=torch.int64)
    with torch.inference_mode():
        made = model.generate(whole, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


def played(engine: Engine) -> tuple[dict[Sight, int], list[list[list[int]]]]:
    """The most slots that were taken at once, by space, and all tokens."""
    arena, numbers = engine.core.arena, [engine.submit(*request) for request in LOAD]
    most = dict.fromkeys(arena.shape.spaces, 0)
    while not engine.idle:
        engine.step()
        engine.check_integrity()
        for sight, space in zip(most, arena.spaces, strict=True):
            most[sight] = max(most[sight], space.slab.used)
    assert arena.used == 0
    return most, [tokens_of(engine.result(number)) for number in numbers]


# Workers give back those of gpt-oss.
@pytest.mark.long(but=["llama4"])
@pytest.mark.parametrize("family", LIMITED)
def test_slots_out_of_sight_are_given_back(family: str, small_model: SmallModel) -> None:
    model, sight = small_model(family), LIMITED[family]
    engine = Engine(model, kv_tokens=400, max_sequences=SEQUENCES)
    arena = engine.core.arena
    capacity = {of: space.slab.capacity for of, space in zip(arena.shape.spaces, arena.spaces, strict=True)}
    assert capacity.pop(sight) == SEQUENCES * (sight.most + 1)
    assert capacity == ({} if family in ("gemma3", "mistral") else {Sight(): 400})
    assert engine.kv_tokens == 400
    most, tokens = played(engine)
    assert tokens[0] == [reference(model, LOAD[0][0])]
    # All run at once, each as far as it goes.
    # Samples of one prompt are at the same place of their chunks, others are not.
    assert SEQUENCES * sight.most // (2 if sight.chunk else 1) <= most.pop(sight) <= SEQUENCES * sight.most
    assert all(slots > 5 * TOKENS for slots in most.values())

    # Elsewhere they make room for each other, and what they had is computed again.
    tight = Engine(model, kv_tokens=220, max_sequences=SEQUENCES, admission="grow")
    numbers = [tight.submit(*request) for request in LOAD]
    tight.run()
    results = [tight.result(number) for number in numbers]
    assert sum(result.preemptions for result in results) > 0
    assert [tokens_of(result) for result in results] == tokens


@pytest.mark.long(but=["gpt-oss"])
@pytest.mark.parametrize("family", ["gpt-oss", "llama4"])
def test_windows_stay_on_the_device_of_an_overcommitted_arena(family: str, small_model: SmallModel) -> None:
    model, sight = small_model(family), LIMITED[family]
    _, expected = played(Engine(model, kv_tokens=400, max_sequences=SEQUENCES))
    engine = Engine(model, kv_tokens=128, max_sequences=SEQUENCES, overcommit=2.0)
    pagers = {
        of: space.pager
        for of, space in zip(engine.core.arena.shape.spaces, engine.core.arena.spaces, strict=True)
    }
    assert pagers[sight] is None
    assert played(engine)[1] == expected
    assert pagers[Sight()].faults.moved + pagers[Sight()].faults.in_place > 0


def test_the_same_bytes_hold_more_tokens(small_model: SmallModel) -> None:
    """Two of gpt-oss's three layers have a window, of which so many sequences fill so much at most."""
    layer_bytes = 2 * 2 * 16 * 4
    model, kv_bytes = small_model("gpt-oss"), 3 * 1000 * layer_bytes
    engine = Engine(model, kv_bytes=kv_bytes, max_sequences=SEQUENCES)
    assert engine.kv_tokens == 3000 - 2 * SEQUENCES * 11
    many = Engine(model, kv_bytes=kv_bytes, max_sequences=1000)
    assert many.kv_tokens == 1000, "as many may be in the window of one sequence each"
    # All that there could ever be, where every layer has a window.
    mistral = small_model("mistral")
    assert Engine(mistral, kv_bytes=kv_bytes, max_sequences=SEQUENCES).kv_tokens == SEQUENCES * 256
