"""Workers in processes make the tokens that transformers makes, however they share the work."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_support import (
    Check,
    Reference,
    Start,
    combined,
    every_combination,
    prompts,
    shared,
    sound,
    tokens_of,
)

from lamina import Sampling
from lamina.model.prefill import CHUNK

LATENT = ("deepseek-v2", "deepseek-v3")


@pytest.mark.long(
    but=[
        "serial-heads-in-turn-1-1",
        "fixed-requests-overlap-1-2",
        "rotational-3-heads-overlap-2-2",
    ]
)
@every_combination
def test_every_combination(
    check: Check, turns: str, partition: Any, overlap: bool, attention: int, ranks: int
) -> None:
    check(combined(turns, partition, attention, ranks), overlap=overlap)


# Each layout with one family; the others in the long suite.
@pytest.mark.long(but=["gemma2-1-2-*", "mixtral-2-1-*"])
@pytest.mark.parametrize(("model_workers", "attention_workers", "overlap"), [(1, 2, False), (2, 1, True)])
def test_every_family(
    family: str, model_workers: int, attention_workers: int, overlap: bool, check: Check
) -> None:
    check(shared(model_workers, attention_workers, batches=2), family, overlap=overlap)


@pytest.mark.long(but=["2-replicas-deepseek-v3"])
@pytest.mark.parametrize("family", [*LATENT, "gpt-oss"])
@pytest.mark.parametrize(
    "more",
    [{"batches": 3}, {"pipeline_parallel": 2, "stream_chunks": 2}, {"batches": 3, "prefill_workers": 1}],
    ids=["2-replicas", "2-stages-streamed", "prefill-worker"],
)
def test_models_of_today_on_two_and_two(family: str, more: dict[str, Any], check: Check) -> None:
    """One vector a token is stored and sent; or sinks and windows: by requests."""
    check(shared(2, 2, partition="requests", **more), family)


@pytest.mark.long(but=["requests-ep-deepseek-v3"])
@pytest.mark.parametrize("family", LATENT)
@pytest.mark.parametrize("experts", ["tp", "ep"])
@pytest.mark.parametrize(
    "more",
    [
        {"partition": "requests"},
        {"partition": "heads"},
        {"attention_workers": 1, "stream_chunks": 3, "stream_along": "heads"},
        {"attention_workers": 4, "prefill_workers": 1},
    ],
    ids=["requests", "heads", "streamed", "prefill-worker"],
)
def test_ranks_share_the_heads_of_a_latent(
    more: dict[str, Any], experts: Any, family: str, check: Check
) -> None:
    """Each has its queries, all the latent, which attention workers store once for all that they serve."""
    check(shared(**({"model_workers": 2, "attention_workers": 2, "experts": experts} | more)), family)


@pytest.mark.long(but=["prefill-worker-deepseek-v3"])
@pytest.mark.parametrize("family", LATENT)
@pytest.mark.parametrize(
    "more",
    [
        {"partition": "requests"},
        {"partition": "heads", "experts": "ep"},
        {"pipeline_parallel": 2, "stream_chunks": 2},
        {"batches": 3, "prefill_workers": 1, "partition": "requests"},
    ],
    ids=["ranks", "ranks-heads", "2-stages-streamed", "prefill-worker"],
)
def test_attention_workers_absorb(more: dict[str, Any], family: str, check: Check) -> None:
    """Queries and outputs of the model's own width travel."""
    check(shared(2, 2, **more), family, absorb="attention")


@pytest.mark.long(but=["mixtral-rotational-3"])
@pytest.mark.parametrize(
    "more",
    [{"batches": 3}, {"pipeline_parallel": 2, "partition": "requests"}],
    ids=["rotational-3", "stages"],
)
@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "glm4-moe", "minimax-m2"])
def test_experts_distributed(family: str, more: dict[str, Any], check: Check) -> None:
    check(shared(4, 2, experts="ep", timeout_s=20, **more), family, overlap=True)


@pytest.mark.long(but=["jamba-stages"])
@pytest.mark.parametrize(
    ("model_workers", "more"),
    [
        (1, {"pipelining": "serial"}),
        (1, {"partition": "requests"}),
        (2, {"pipelining": "fixed"}),
        (2, {"pipeline_parallel": 2, "timeout_s": 20}),
    ],
    ids=["serial", "rotational-2", "fixed", "stages"],
)
@pytest.mark.parametrize("family", ["jamba", "qwen3-next"])
def test_recurrent_layers(family: str, model_workers: int, more: dict[str, Any], check: Check) -> None:
    """Their state stays on the model worker that runs them."""
    check(shared(model_workers, 2, **more), family)


@pytest.mark.long(but=["llama4"])
@pytest.mark.parametrize("family", ["gemma2", "mistral", "qwen2", "gemma3", "gpt-oss", "llama4"])
def test_windows_and_caps_by_requests(family: str, check: Check) -> None:
    """Layers that see the last few tokens only, each request in one memory."""
    check(shared(2, 3, batches=3, partition="requests", stream_chunks=2), family)


@pytest.mark.long(but=["gpt-oss-10-by-requests"])
@pytest.mark.parametrize(
    "more",
    [{"batches": 3, "partition": "requests"}, {"batches": 2, "stream_chunks": 2}, {"prefill_workers": 1}],
    ids=["by-requests", "by-heads-streamed", "prefill-worker"],
)
@pytest.mark.parametrize(("family", "observed"), {"gpt-oss": 10, "gemma2": 11, "llama4": 12}.items(), ids=str)
def test_slots_out_of_sight_are_given_back(
    start: Start, reference: Reference, family: str, observed: int, more: dict[str, Any]
) -> None:
    """Longer than several windows, samples of prompts that they share."""
    engine = start(shared(2, 2, **more), family, max_sequences=6)
    texts = prompts(40, 7, 25)
    numbers = [engine.submit(text, Sampling(max_tokens=50, n=2, temperature=0.0)) for text in texts]
    most = 0
    while not engine.idle:
        engine.step()
        used = engine.core.kv_used()
        most = max(most, sum(used) if engine.core.pools > 1 else max(used))
    tokens = sum(map(len, texts)) + 6 * 50
    assert tokens - 3 * 6 <= most <= tokens + 6 * observed, "layers without a window keep all"
    for number, text in zip(numbers, texts, strict=True):
        assert tokens_of(engine.result(number)) == [reference(family, tuple(text), 50)] * 2
    sound(engine)


@pytest.mark.long(
    but=[
        "in-turn-stream_chunks=2-stream_along=heads-partition=requests-model_workers=2",
        "in-turn-attention_workers=4-partition=requests-stream_chunks=7",
        "in-turn-network=*",
    ]
)
@pytest.mark.parametrize(
    "more",
    [
        {"stream_chunks": 2},
        {"stream_chunks": 3},
        {"stream_chunks": 2, "stream_along": "heads"},
        {"stream_chunks": 3, "stream_along": "heads", "attention_workers": 1},
        {"stream_chunks": 3, "partition": "requests"},
        {"stream_chunks": 2, "stream_along": "heads", "partition": "requests", "model_workers": 2},
        {"attention_workers": 3, "partition": "requests"},
        {"attention_workers": 4, "partition": "requests", "stream_chunks": 7},
        {"network": "gloo"},
        {"network": "softnic"},
        {"model_workers": 3, "batches": 4},
        {"model_workers": 4, "batches": 5},
    ],
    ids=lambda more: "-".join(f"{name}={value}" for name, value in more.items()),
)
@pytest.mark.parametrize("overlap", [False, True], ids=["in-turn", "overlap"])
def test_other_layouts(check: Check, more: dict[str, Any], overlap: bool) -> None:
    check(shared(**({"attention_workers": 2} | more)), overlap=overlap)


# Every pair of them.
@pytest.mark.long(but=["heads-2-2", "requests-1-3"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("partition", ["heads", "requests"])
def test_stages(check: Check, stages: int, ranks: int, partition: Any) -> None:
    check(shared(stages * ranks, 2, pipeline_parallel=stages, partition=partition, timeout_s=20))


@pytest.mark.long(but=["5-3"])
@pytest.mark.parametrize(("layers", "stages"), [(1, 1), (2, 2), (5, 2), (5, 3), (6, 2), (6, 5)])
def test_stages_of_other_sizes(check: Check, layers: int, stages: int) -> None:
    """Some have fewer slices than others."""
    check(shared(stages, 1, pipeline_parallel=stages, batches=stages, timeout_s=20), layers=layers)


@pytest.mark.long(but=["rotational-3-in-2-ranks-overlap"])
@pytest.mark.parametrize("overlap", [False, True], ids=["in-turn", "overlap"])
@pytest.mark.parametrize(
    ("model_workers", "more"),
    [
        (2, {"pipeline_parallel": 2}),
        (3, {"pipeline_parallel": 3, "stream_chunks": 2}),
        (2, {"batches": 3}),
        (4, {"batches": 3, "partition": "requests", "attention_workers": 2}),
    ],
    ids=["2-stages", "3-stages", "rotational-3", "rotational-3-in-2-ranks"],
)
def test_many_prompts_at_once(
    start: Start, reference: Reference, model_workers: int, more: dict[str, Any], overlap: bool
) -> None:
    """More than channels have slots for: there is no deadlock."""
    engine = start(shared(model_workers, timeout_s=20, **more), layers=6, overlap=overlap)
    texts = prompts(*range(1, 61))
    wish = Sampling(max_tokens=6)
    numbers = [engine.submit(text, wish) for text in texts[:20]]
    for _ in range(5):
        engine.step()
    numbers += [engine.submit(text, wish) for text in texts[20:]]
    engine.run()
    for number, text in list(zip(numbers, texts, strict=True))[::6]:
        made = engine.result(number).completions[0].tokens
        assert list(made) == reference("llama-gqa", tuple(text), 6, 6)
    sound(engine)


@pytest.mark.long(but=["streamed"])
@pytest.mark.parametrize(
    "more",
    [
        {"model_workers": 3, "pipeline_parallel": 3},
        {"model_workers": 4, "batches": 3, "partition": "requests"},
        {"attention_workers": 2, "stream_chunks": 2},
    ],
    ids=["stages", "rotational-3-in-2-ranks", "streamed"],
)
def test_prompts_of_several_chunks(start: Start, reference: Reference, more: dict[str, Any]) -> None:
    """Longer than what goes through the slices at once, some of them by one token."""
    engine = start(shared(**more), layers=4, positions=2048, kv_tokens=20000)
    texts = prompts(CHUNK + 1, 3 * CHUNK + 7, 2, CHUNK + 2, 2 * CHUNK)
    made = engine.generate(texts, Sampling(max_tokens=5))
    for result, text in zip(made, texts, strict=True):
        assert list(result.completions[0].tokens) == reference("llama-gqa", tuple(text), 5, 4, 2048)
    twice = engine.generate(texts[:2], Sampling(max_tokens=5, n=2, temperature=0.0))
    for result, same in zip(twice, made, strict=False):
        assert [done.tokens for done in result.completions] == [same.completions[0].tokens] * 2
    sound(engine)
