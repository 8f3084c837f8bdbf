"""An engine in one process on a GPU, which is emulated here: tokens are those of one on CPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import seeded, tiny

from lamina.serve import Engine, EngineError, Sampling

FAMILIES = ["Llama", "Gemma2", "DeepseekV3", "GptOss", "Qwen3", "Llama4Text"]


def tokens(engine: Engine) -> list[Any]:
    """Of requests that come and go, and branch."""
    wishes: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "seed": 4},
        {"n": 3, "temperature": 0.7, "seed": 1},
    ]
    numbers = []
    for number, wish in enumerate([*wishes, {"beams": 2}]):
        prompt = list(range(2 + number, 9 + 4 * number))
        numbers.append(engine.submit(prompt, Sampling(max_tokens=4 + 3 * number, **wish)))
        engine.step()
    engine.run()
    engine.check_integrity()
    return [[one.tokens for one in engine.result(number).completions] for number in numbers]


@pytest.mark.usefixtures("emulated")
@pytest.mark.long(but=["Gemma2-True"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_cpus(family: str, overlap: bool) -> None:
    model = seeded(tiny(family))
    options: dict[str, Any] = {"kv_tokens": 600, "overlap": overlap}
    assert tokens(Engine(model, device="cuda", **options)) == tokens(Engine(model, **options))


@pytest.mark.usefixtures("emulated")
def test_tokens_in_numbers_of_16_bits() -> None:
    """By matrix instructions: rounded otherwise than on CPUs, and sound all the same."""
    model = seeded(tiny("Llama")).to(torch.bfloat16)
    made = tokens(Engine(model, kv_tokens=600, device="cuda"))
    assert [len(one) for one in made] == [1, 1, 3, 1]
    first, other = made[0][0], tokens(Engine(model, kv_tokens=600))[0][0]
    assert first[0] == other[0]


@pytest.mark.usefixtures("emulated")
def test_heads_that_its_kernels_do_not_have_are_refused() -> None:
    with pytest.raises(EngineError, match="engine-gpu-heads"):
        Engine(seeded(tiny("Llama", head_dim=24)), kv_tokens=100, device="cuda")
