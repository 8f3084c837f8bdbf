"""An engine that was warmed up is as one that was not, but for what it has loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import transformers

from lamina import Engine, Sampling
from lamina.pipeline import EngineError

SmallModel = Callable[..., transformers.PreTrainedModel]
PROMPTS = [[5, 17, 99, 3], [7, 7, 8]]


def _engine(model: transformers.PreTrainedModel, kv_tokens: int = 200) -> Engine:
    return Engine(model, kv_tokens=kv_tokens, max_sequences=4)


def test_nothing_of_it_is_counted(small_model: SmallModel) -> None:
    model = small_model("llama-gqa")
    cold, warm = _engine(model), _engine(model)
    warm.warm_up(9, prompt_tokens=150)
    # Three of one request, and three of as many as may run at once.
    assert warm.warm_up_iterations == 6
    assert warm.idle
    assert (warm.peak_kv_tokens, warm.used_kv_tokens) == (0, 0)
    for prompt in PROMPTS:
        warm.submit(prompt, Sampling(max_tokens=5))
    assert [warm.step().iteration for _ in range(3)] == [0, 1, 2]
    warm.run()
    assert warm.peak_kv_tokens == sum(map(len, PROMPTS)) + 2 * 5
    again = [result.completions[0].tokens for result in warm.generate(PROMPTS, Sampling(max_tokens=5))]
    assert again == [
        result.completions[0].tokens for result in cold.generate(PROMPTS, Sampling(max_tokens=5))
    ]
    warm.check_integrity()


def test_warm_up_without_room_for_kv_does_nothing(small_model: SmallModel) -> None:
    engine = _engine(small_model("llama-gqa"), kv_tokens=3)
    engine.warm_up(4, prompt_tokens=1000)
    assert engine.idle
    assert engine.warm_up_iterations == 0


def test_not_while_others_are_served(small_model: SmallModel) -> None:
    engine = _engine(small_model("llama-gqa"))
    engine.submit(PROMPTS[0], Sampling(max_tokens=2))
    with pytest.raises(EngineError) as refused:
        engine.warm_up(1)
    assert refused.value.code == "engine-busy"
