"""KV in fp8 and int8: the same tokens on any worker, in any order, and after recomputing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from cluster_support import Load, Saved, Start, mixed, play, prompts, shared, sound, tokens_of

from lamina import Engine, Sampling
from lamina.cluster import Layout
from lamina.kv.stored import KvDtype, as_stored

SmallModel = Callable[..., transformers.PreTrainedModel]
ROUND: tuple[KvDtype, ...] = ("fp8", "int8")
TEXTS = prompts(5, 1, 30, 17)


class RoundingCache(transformers.DynamicCache):
    """Of transformers: what is attended to, the newest token's too, is what comes out of an arena."""

    def __init__(self, kv_dtype: KvDtype, config: transformers.PretrainedConfig) -> None:
        super().__init__(config=config)
        self._kv_dtype = kv_dtype

    def update(self, key_states: Any, value_states: Any, *more: Any, **others: Any) -> Any:
        rounded = (as_stored(one, self._kv_dtype) for one in (key_states, value_states))
        return super().update(*rounded, *more, **others)


def reference(
    model: transformers.PreTrainedModel, kv_dtype: KvDtype, text: list[int], tokens: int
) -> list[int]:
    with torch.inference_mode():
        made = model.generate(
            torch.tensor([text]),
            attention_mask=torch.ones(1, len(text), dtype=torch.int64),
            max_new_tokens=tokens,
            do_sample=False,
            past_key_values=RoundingCache(kv_dtype, model.config),
        )
    return made[0, len(text) :].tolist()


@pytest.mark.long(but=["fp8-llama-gqa", "int8-gemma2"])
@pytest.mark.parametrize("family", ["llama-gqa", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("kv_dtype", ROUND)
def test_tokens_are_those_of_transformers_with_rounded_kv(
    family: str, kv_dtype: KvDtype, small_model: SmallModel
) -> None:
    model = small_model(family)
    expected = [reference(model, kv_dtype, text, 40) for text in TEXTS]
    for options in ({}, {"prompt_tokens": 7, "overlap": True}, {"kv_tokens": 128, "overcommit": 2.0}):
        engine = Engine(model, kv_dtype=kv_dtype, **({"kv_tokens": 1000} | options))
        results = engine.generate(TEXTS, Sampling(max_tokens=40))
        engine.check_integrity()
        assert [tokens_of(result)[0] for result in results] == expected


@pytest.mark.parametrize("kv_dtype", ROUND)
def test_rounding_shows(kv_dtype: KvDtype, small_model: SmallModel) -> None:
    """Or the other tests would show nothing; and it is small."""
    model = small_model("llama-gqa")
    observed = []
    for which in ("auto", kv_dtype):
        engine = Engine(model, kv_tokens=1000, kv_dtype=which)
        done = engine.generate([TEXTS[2]], Sampling(max_tokens=1, logprobs=0))[0].completions[0]
        assert done.logprobs is not None
        observed.append(done.logprobs[0].chosen)
    assert 0 < abs(observed[0] - observed[1]) < 0.05


@pytest.mark.parametrize("kv_dtype", ROUND)
def test_preempted_requests_make_the_same_tokens(kv_dtype: KvDtype, small_model: SmallModel) -> None:
    model, load = small_model("llama-gqa"), mixed(8)
    expected = play(Engine(model, kv_tokens=2000, kv_dtype=kv_dtype), load)
    engine = Engine(model, kv_tokens=150, admission="grow", kv_dtype=kv_dtype)
    assert play(engine, load) == expected
    engine.check_integrity()


@pytest.fixture(scope="module")
def load() -> Load:
    return mixed(12)


LAYOUTS = {
    "heads": (shared(2, 2, batches=3), "llama-gqa", "fp8"),
    "requests": (shared(2, 2, batches=3, partition="requests"), "llama-gqa", "int8"),
    "streamed": (shared(1, 2, stream_chunks=2), "llama-gqa", "int8"),
    "windows": (shared(1, 2, partition="requests"), "gpt-oss", "int8"),
    "latent": (shared(1, 2), "deepseek-v3", "fp8"),
    "prefill": (shared(1, 1, prefill_workers=1), "llama-gqa", "int8"),
}


@pytest.mark.long(but=["heads", "latent"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_workers_make_the_tokens_of_one_process(layout: str, load: Load, start: Start, saved: Saved) -> None:
    """Also when each of them is lost, and KV is computed again."""
    of, family, kv_dtype = LAYOUTS[layout]
    expected = play(Engine(saved(family), kv_tokens=2000, kv_dtype=kv_dtype), load)
    engine = start(of, family, kv_dtype=kv_dtype)

    def inject_fault(step: int) -> None:
        if step % 6 == 4:
            engine.inject_fault(engine.workers[step // 6 % len(engine.workers)])

    assert play(engine, load, inject_fault) == expected
    assert engine.faults
    sound(engine)


@pytest.mark.parametrize("kv_dtype", ROUND)
def test_dividing_heads_changes_no_bit(kv_dtype: KvDtype, start: Start) -> None:
    wish = Sampling(max_tokens=12, logprobs=2)
    observed = []
    for workers, partition in ((1, "heads"), (2, "heads"), (2, "requests")):
        layout: Layout = shared(1, workers, partition=partition)
        engine = start(layout, dtype=torch.bfloat16, kv_dtype=kv_dtype)
        observed.append([result.completions for result in engine.generate(TEXTS, wish)])
    assert observed[0] == observed[1] == observed[2]


@pytest.mark.parametrize("kv_dtype", ROUND)
def test_more_tokens_fit_in_the_same_memory(kv_dtype: KvDtype, small_model: SmallModel) -> None:
    model = small_model("llama-gqa", torch.bfloat16)
    wide = Engine(model, kv_bytes=1 << 20)
    narrow = Engine(model, kv_bytes=1 << 20, kv_dtype=kv_dtype)
    dim = wide.core.facts.head_dim
    each = dim if kv_dtype == "fp8" else dim + 4
    assert narrow.core.facts.token_bytes == wide.core.facts.token_bytes * each // (2 * dim)
    assert narrow.kv_tokens == (1 << 20) // narrow.core.facts.token_bytes
