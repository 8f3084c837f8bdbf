"""Models with recurrent layers, whose state stays beside the slices: in one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers

from lamina import Engine, Sampling, host_memory
from lamina.pipeline import EngineError

SmallModel = Callable[..., transformers.PreTrainedModel]
GREEDY = Sampling(max_tokens=24, ignore_eos=True)
PROMPTS = [[5, 17, 3, 88, 41, 9, 60], [7], [2, 3], list(range(10, 40))]


def generated(model: transformers.PreTrainedModel, prompt: list[int], **how: int) -> list[int]:
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=GREEDY.max_tokens,
            do_sample=False,
            **how,
        )
    results: list[int] = made[0, len(prompt) :].tolist()
    return results


# The short tests of conversions and of workers have jamba, those of prompts granite-hybrid.
@pytest.mark.long(but=["qwen3-next"])
@pytest.mark.parametrize("family", ["jamba", "qwen3-next", "granite-hybrid", "lfm2"])
def test_tokens_are_those_of_the_model(family: str, small_model: SmallModel) -> None:
    """Some come while others run, and rows change places as they leave."""
    model = small_model(family)
    engine = Engine(model, kv_tokens=600)
    numbers = [engine.submit(PROMPTS[0], Sampling(max_tokens=3, ignore_eos=True))]
    numbers += [engine.submit(prompt, GREEDY) for prompt in PROMPTS[1:3]]
    for _ in range(5):
        engine.step()
    numbers += [engine.submit(prompt, GREEDY) for prompt in (PROMPTS[3], PROMPTS[0])]
    engine.run()
    for number, prompt in zip(numbers, [*PROMPTS, PROMPTS[0]], strict=True):
        tokens = list(engine.result(number).completions[0].tokens)
        assert tokens == generated(model, prompt)[: len(tokens)]
    engine.check_integrity()


def test_samples_and_beams_have_states_of_their_own(small_model: SmallModel) -> None:
    model = small_model("jamba")
    engine = Engine(model, kv_tokens=600)
    drawn = Sampling(max_tokens=12, ignore_eos=True, temperature=1.0, seed=3)
    several = Sampling(max_tokens=12, ignore_eos=True, temperature=1.0, seed=3, n=3)
    alone, together = (engine.generate([PROMPTS[0]], one)[0] for one in (drawn, several))
    assert together.completions[0].tokens == alone.completions[0].tokens
    assert len({done.tokens for done in together.completions}) == 3
    searched = Sampling(max_tokens=GREEDY.max_tokens, ignore_eos=True, beams=3)
    (best,) = engine.generate([PROMPTS[0]], searched)[0].completions
    assert list(best.tokens) == generated(model, PROMPTS[0], num_beams=3)


def test_a_request_that_made_room_begins_again(small_model: SmallModel) -> None:
    model = small_model("qwen3-next")
    engine = Engine(model, kv_tokens=70, admission="grow")
    results = engine.generate([PROMPTS[3], PROMPTS[0], PROMPTS[2]], GREEDY)
    assert any(result.preemptions for result in results)
    for result, prompt in zip(results, (PROMPTS[3], PROMPTS[0], PROMPTS[2]), strict=True):
        assert list(result.completions[0].tokens) == generated(model, prompt)


def test_states_need_memory_besides_the_kv(small_model: SmallModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Jamba: 3 convolutions of 128 x 4 and recurrences of 128 x 8 numbers; KV of 2 x 2 x 2 x 8 a token."""
    state, token = 3 * (512 + 1024) * 4, 64 * 4
    model = small_model("jamba")
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 4 * (5 * state + 100 * token))
    engine = Engine(model, max_sequences=5)
    assert (engine.facts.state_bytes, engine.kv_tokens) == (state, 100)
    for how in ({"max_sequences": 7}, {"max_sequences": 26, "kv_tokens": 1}):
        with pytest.raises(EngineError, match="engine-states-too-large"):
            Engine(model, **how)
