"""Requests through the engine: what they may ask, how they end, and what goes wrong with one alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lamina import Engine, Sampling
from lamina.cuda_library import CudaError
from lamina.model import CheckpointError
from lamina.pipeline import prompt_calls
from lamina.serve import EngineError, RequestError

SmallModel = Callable[..., transformers.PreTrainedModel]
PROMPT = [5, 17, 99, 3]


@pytest.fixture(scope="module")
def model(small_model: SmallModel) -> transformers.PreTrainedModel:
    return small_model("llama-gqa")


def tokens_of(engine: Engine, number: int) -> list[tuple[int, ...]]:
    return [done.tokens for done in engine.result(number).completions]


def test_a_stop_token_ends_a_request_early_and_frees_its_memory(model: Any) -> None:
    engine = Engine(model, kv_tokens=100)
    whole = engine.generate([PROMPT], Sampling(max_tokens=20))[0].completions[0]
    assert whole.finish_reason == "length"
    stop = whole.tokens[7]
    cut = engine.generate([PROMPT], Sampling(max_tokens=20, stop_tokens=(stop,)))[0].completions[0]
    assert cut.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
    assert cut.finish_reason == "stop"
    engine.check_integrity()
    assert engine.core.arena.used == 0


def test_the_models_end_token_counts_unless_ignored(small_model: SmallModel) -> None:
    model = small_model("llama-gqa")
    plain = Engine(model, kv_tokens=100).generate([PROMPT], Sampling(max_tokens=20))[0].completions[0].tokens
    # What transformers' generate goes by; the config may say otherwise.
    model.generation_config.eos_token_id = plain[4]
    model.config.eos_token_id = plain[2]
    engine = Engine(model, kv_tokens=100)
    ended, ignored = (
        engine.generate([PROMPT], Sampling(max_tokens=20, ignore_eos=ignore))[0].completions[0]
        for ignore in (False, True)
    )
    assert ended.tokens == plain[: plain.index(plain[4]) + 1]
    assert ignored.tokens == plain


def test_samples_share_their_prompt_and_differ(model: Any) -> None:
    engine = Engine(model, kv_tokens=400)
    long_prompt = list(range(100))
    number = engine.submit(long_prompt, Sampling(max_tokens=10, n=4, temperature=1.5, seed=1))
    engine.step()
    assert engine.core.arena.used == 99 + 4, "the prompt is there once"
    engine.run()
    four = tokens_of(engine, number)
    assert len(set(four)) == 4
    alone = engine.generate([long_prompt], Sampling(max_tokens=10, temperature=1.5, seed=1))[0].completions[0]
    assert four[0] == alone.tokens, "the first of n samples is the sample of that seed"
    engine.check_integrity()


def test_samples_begin_again_where_their_prompt_is_longer_than_what_goes_through_at_once(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_calls, "CHUNK", 3)
    wish, observed = Sampling(max_tokens=12, n=3, temperature=1.0, seed=3), []
    for tokens, admission in ((500, "reserve"), (60, "grow")):
        engine = Engine(model, kv_tokens=tokens, admission=admission)
        results = engine.generate([list(range(10, 21))] * 2, wish)
        assert [result.error for result in results] == [None, None]
        assert any(result.preemptions for result in results) == (admission == "grow")
        observed.append([result.completions for result in results])
        engine.check_integrity()
    assert observed[0] == observed[1]


def test_a_seed_gives_the_same_tokens_in_any_batch(model: Any) -> None:
    wish = Sampling(max_tokens=12, temperature=1.2, top_k=50, top_p=0.9, seed=77)
    alone = Engine(model, kv_tokens=500).generate([PROMPT], wish)[0].completions
    engine = Engine(model, kv_tokens=500)
    others = [
        engine.submit([7, 8, 9], Sampling(max_tokens=30, temperature=float(i), seed=i)) for i in range(4)
    ]
    engine.step()
    number = engine.submit(PROMPT, wish)
    engine.run()
    assert engine.result(number).completions == alone
    assert len({engine.result(other).completions for other in others[1:]}) == 3


def test_samples_of_one_request_end_each_in_its_time(model: Any) -> None:
    engine = Engine(model, kv_tokens=400)
    wish = Sampling(max_tokens=40, n=5, temperature=2.0, seed=3, stop_tokens=tuple(range(0, 120, 9)))
    done = engine.generate([PROMPT], wish)[0].completions
    lengths = {len(one.tokens) for one in done}
    assert len(lengths) > 1
    for one in done:
        assert one.finish_reason == ("stop" if one.tokens[-1] % 9 == 0 else "length")
        assert all(token % 9 for token in one.tokens[:-1])
    engine.check_integrity()


def test_logprobs_name_the_chosen_and_the_likeliest(model: Any) -> None:
    engine = Engine(model, kv_tokens=100)
    requested, plain = Sampling(max_tokens=6, logprobs=3), Sampling(max_tokens=6)
    numbers = [engine.submit(PROMPT, wish) for wish in (plain, requested)]
    engine.run()
    silent, reported = (engine.result(number).completions[0] for number in numbers)
    assert silent.logprobs is None
    assert reported.logprobs is not None
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, *reported.tokens]])).logits[0, len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits, -1)
    for i, (token, entry) in enumerate(zip(reported.tokens, reported.logprobs, strict=True)):
        assert entry.chosen == pytest.approx(float(expected[i, token]), abs=1e-4)
        assert [name for name, _ in entry.top] == expected[i].topk(3).indices.tolist()


def test_streams_give_every_token_once_and_serve_the_others(model: Any) -> None:
    engine = Engine(model, kv_tokens=500)
    other = engine.submit([1, 2, 3], Sampling(max_tokens=5))
    number = engine.submit(PROMPT, Sampling(max_tokens=9, n=2, temperature=1.0, seed=0))
    observed: dict[int, list[int]] = {0: [], 1: []}
    pieces = 0
    for piece in engine.stream(number):
        observed[piece.sample] += piece.tokens
        pieces += 1
    assert pieces == 18, "token by token, sample by sample"
    assert tokens_of(engine, number) == [tuple(observed[0]), tuple(observed[1])]
    assert len(tokens_of(engine, other)[0]) == 5


def test_a_beam_search_streams_at_its_end(model: Any) -> None:
    engine = Engine(model, kv_tokens=500)
    number = engine.submit(PROMPT, Sampling(max_tokens=5, beams=3))
    pieces = list(engine.stream(number))
    assert [piece.tokens for piece in pieces] == tokens_of(engine, number)


def test_cancelling_at_every_stage(model: Any) -> None:
    engine = Engine(model, kv_tokens=60, max_sequences=3)
    running, searching, waiting = (
        engine.submit(PROMPT, Sampling(max_tokens=20)),
        engine.submit(PROMPT, Sampling(max_tokens=10, beams=2)),
        engine.submit(PROMPT, Sampling(max_tokens=20, n=2, temperature=1.0)),
    )
    for _ in range(3):
        engine.step()
    for number, made in ((running, 3), (waiting, None), (searching, 3)):
        engine.cancel(number)
        engine.check_integrity()
        done = engine.result(number).completions
        if made is None:
            assert done == (), "it had not begun"
        else:
            assert len(done) == 1
            assert (len(done[0].tokens), done[0].finish_reason) == (made, "cancelled")
            assert (done[0].score is not None) == (number == searching)
    assert engine.idle
    assert engine.core.arena.used == 0
    for call in (engine.cancel, engine.result, lambda number: next(engine.stream(number))):
        with pytest.raises(KeyError, match="no request 99 is here: it never existed"):
            call(99)


def test_cancelling_an_ended_request_changes_nothing(model: Any) -> None:
    engine = Engine(model, kv_tokens=60)
    number = engine.submit(PROMPT, Sampling(max_tokens=2))
    with pytest.raises(RequestError, match="request-unfinished"):
        engine.result(number)
    engine.run()
    engine.cancel(number)
    assert engine.result(number).completions[0].finish_reason == "length"


def test_shortest_first_and_a_policy_of_ones_own(model: Any) -> None:
    def order(policy: Any) -> list[int]:
        engine = Engine(model, kv_tokens=100, max_sequences=1, policy=policy)
        for tokens in (6, 2, 4):
            engine.submit(PROMPT * (7 - tokens), Sampling(max_tokens=tokens))
        ended: list[int] = []
        while not engine.idle:
            ended += engine.step().ended
        return ended

    assert order("fifo") == [0, 1, 2]
    assert order("sjf") == [1, 2, 0]
    assert order(lambda sampling, prompt_tokens: prompt_tokens) == [0, 2, 1]
    assert order(lambda sampling, prompt_tokens: -prompt_tokens) == [1, 2, 0]
    with pytest.raises(EngineError, match="engine-priority-invalid"):
        order(lambda sampling, prompt_tokens: 0.5)


def test_decode_only_starts_with_the_prompts_length(model: Any) -> None:
    engine = Engine(model, kv_tokens=300, decode_only=True)
    number = engine.submit(np.int64(200), Sampling(max_tokens=5))
    assert engine.step().kv_tokens == 200
    assert engine.step().kv_tokens == 201
    engine.run()
    assert len(tokens_of(engine, number)[0]) == 5
    with pytest.raises(RequestError, match="request-prompt-empty"):
        engine.submit(0)
    with pytest.raises(RequestError, match="request-not-whole"):
        engine.submit(True)


@pytest.mark.parametrize(
    ("prompt", "wish", "code"),
    [
        ([], {}, "request-prompt-empty"),
        ([[1, 2]], {}, "request-prompt-shape"),
        (torch.tensor([[1, 2]]), {}, "request-prompt-shape"),
        ([[1], [2, 3]], {}, "request-prompt-shape"),
        ([1.5, 2.5], {}, "request-prompt-type"),
        ("hello", {}, "request-prompt-shape"),
        (None, {}, "request-prompt-shape"),
        ([5, 120], {}, "request-prompt-token"),
        ([-1], {}, "request-prompt-token"),
        ([1] * 250, {"max_tokens": 8}, "request-too-long"),
        ([1] * 250, {"max_tokens": 7}, "request-exceeds-kv"),
        ([1] * 90, {"max_tokens": 12}, "request-exceeds-kv"),
        ([1] * 10, {"max_tokens": 30, "n": 4}, "request-exceeds-kv"),
        (7, {}, "request-prompt-length-only"),
        ([1], {"n": 9, "max_tokens": 2}, "request-too-wide"),
        ([1], {"seed": "7"}, "request-not-whole"),
        ([1], {"seed": 1.5}, "request-not-whole"),
        ([1], {"max_tokens": 5.0}, "request-not-whole"),
        ([1], {"logprobs": True}, "request-not-whole"),
        ([1], {"stop_tokens": 3}, "sampling-value-invalid"),
        ([1], {"stop_tokens": (5.5,)}, "request-not-whole"),
        ([1], {"stop_tokens": tuple(range(65))}, "sampling-value-invalid"),
        ([1], {"top_k": 2**70}, "sampling-value-invalid"),
        ([1], {"beams": 2, "length_penalty": 2000.0}, "sampling-value-invalid"),
        ([1], {"beams": 2, "early_stopping": "sometimes"}, "sampling-value-invalid"),
        ([1], {"max_tokens": 0}, "sampling-value-invalid"),
        ([1], {"temperature": -1.0}, "sampling-value-invalid"),
        ([1], {"temperature": float("nan")}, "sampling-value-invalid"),
        ([1], {"temperature": 1e308}, "sampling-value-invalid"),
        ([1], {"top_p": 0.0}, "sampling-value-invalid"),
        ([1], {"top_k": -1}, "sampling-value-invalid"),
        ([1], {"n": 0}, "sampling-value-invalid"),
        ([1], {"beams": 2, "n": 3}, "sampling-value-invalid"),
        ([1], {"beams": 2, "temperature": 1.0}, "sampling-value-invalid"),
        ([1], {"stop_tokens": (500,)}, "sampling-value-invalid"),
        ([1], {"logprobs": 121}, "sampling-value-invalid"),
    ],
)
def test_refused_requests_do_not_stop_others(
    prompt: Any, wish: dict[str, Any], code: str, model: Any
) -> None:
    engine = Engine(model, kv_tokens=100, max_sequences=8)
    unharmed = engine.submit(PROMPT, Sampling(max_tokens=5))
    engine.step()
    with pytest.raises(RequestError, match=code):
        engine.submit(prompt, Sampling(**wish))
    with pytest.raises(RequestError, match=code):
        engine.generate([PROMPT, prompt], Sampling(**wish))
    engine.run()
    assert len(tokens_of(engine, unharmed)[0]) == 5
    engine.check_integrity()


def test_a_failed_prompt_fails_only_its_request(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(model, kv_tokens=200)
    call, calls = engine.core._prefill.call, []

    def unlucky(some: Any, *rest: Any) -> Any:
        calls.append([one.run.tokens for one in some])
        if 8 in calls[-1]:
            raise MemoryError("no memory left")
        return call(some, *rest)

    monkeypatch.setattr(engine.core._prefill, "call", unlucky)
    good = engine.submit(PROMPT, Sampling(max_tokens=6))
    bad = engine.submit([1] * 9, Sampling(max_tokens=6, n=2))
    assert engine.step().ended == [bad]
    assert calls == [[3, 8], [3], [8]], "together, and then each by itself"
    failed = engine.result(bad)
    assert failed.error == "its prompt could not be computed: no memory left"
    with pytest.raises(RequestError, match="request-failed"):
        list(engine.stream(engine.submit([1] * 9)))
    engine.run()
    assert len(tokens_of(engine, good)[0]) == 6
    engine.check_integrity()


def test_a_stream_ends_when_its_request_is_taken_away(model: Any) -> None:
    engine = Engine(model, kv_tokens=200)
    number = engine.submit(PROMPT, Sampling(max_tokens=9))
    stream = engine.stream(number)
    next(stream)
    engine.cancel(number)
    engine.result(number)
    assert list(stream) == []


def test_numbers_of_any_kind_are_taken(model: Any) -> None:
    engine = Engine(model, kv_tokens=200)
    tokens = np.array(PROMPT, np.int32)
    numpy_wish = Sampling(
        max_tokens=np.int64(6), temperature=np.float32(1.0), seed=np.int64(-5), top_k=np.int32(9)
    )
    number = engine.submit(tokens, numpy_wish)
    tokens[:] = 5000  # the engine has its own copy
    engine.run()
    plain = Sampling(max_tokens=6, temperature=1.0, seed=-5, top_k=9)
    for prompt in (PROMPT, tuple(PROMPT), torch.tensor(PROMPT)):
        assert (
            engine.generate([prompt], plain)[0].completions == engine.generate([PROMPT], plain)[0].completions
        )
    assert tokens_of(engine, number)[0] == engine.generate([PROMPT], plain)[0].completions[0].tokens


def test_extreme_but_lawful_wishes(model: Any) -> None:
    engine = Engine(model, kv_tokens=200)
    greedy = engine.generate([PROMPT], Sampling(max_tokens=8))[0].completions[0].tokens
    for wish in (
        {"temperature": 1e-40},
        {"temperature": 1e-4},
        {"temperature": 1.0, "top_p": 1e-50},
        {"temperature": 1.0, "top_k": 1},
    ):
        assert engine.generate([PROMPT], Sampling(max_tokens=8, **wish))[0].completions[0].tokens == greedy
    assert engine.generate([PROMPT], Sampling(max_tokens=8, temperature=1e30, seed=1))[0].completions


def test_the_callers_model_is_left_as_it_was(small_model: SmallModel) -> None:
    model = small_model("opt")
    model.train()
    engine = Engine(model, kv_tokens=200)
    made = engine.generate([PROMPT * 4], Sampling(max_tokens=20))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.eval()
    assert made == Engine(model, kv_tokens=200).generate([PROMPT * 4], Sampling(max_tokens=20))


def test_many_logprobs_at_once_and_after_each_other(model: Any) -> None:
    engine = Engine(model, kv_tokens=900)
    wishes = [Sampling(max_tokens=3 + i, logprobs=i % 4 if i % 3 else None) for i in range(12)]
    numbers = [engine.submit(PROMPT, wish) for wish in wishes]
    engine.run()
    alone = engine.generate([PROMPT], Sampling(max_tokens=20, logprobs=5))[0].completions[0].logprobs
    assert alone is not None
    for number, wish in zip(numbers, wishes, strict=True):
        reported = engine.result(number).completions[0].logprobs
        if wish.logprobs is None:
            assert reported is None
            continue
        assert reported is not None
        assert len(reported) == wish.max_tokens
        for ours, theirs in zip(reported, alone, strict=False):
            assert len(ours.top) == wish.logprobs
            assert ours.chosen == pytest.approx(theirs.chosen, abs=1e-4)
            assert [name for name, _ in ours.top] == [name for name, _ in theirs.top[: wish.logprobs]]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"policy": "lifo"}, "engine-policy-unknown"),
        ({"max_sequences": 0}, "engine-count-invalid"),
        ({"kv_tokens": 10, "kv_bytes": 10}, "engine-kv-twice"),
        ({"kv_tokens": 10.5}, "engine-count-invalid"),
        ({"max_sequences": 2.5}, "engine-count-invalid"),
        ({"admission": "hope"}, "engine-admission-unknown"),
        ({"load_format": "pickle"}, "engine-load-format-unknown"),
        ({"dtype": "float16"}, "engine-dtype-unknown"),
        ({"threads": -1}, "engine-count-invalid"),
        ({"device": "abacus"}, "engine-device-unknown"),
        ({"overcommit": -1.0}, "engine-overcommit-invalid"),
        ({"kv_dtype": "fp4"}, "engine-kv-dtype-unknown"),
        ({"kv_dtype": "fp8", "device": "cuda"}, "engine-kv-dtype-gpu"),
        ({"kv_bytes": 100}, "engine-kv-too-small"),
        ({"dtype": torch.bfloat16}, "model-dtype-differs"),
    ],
)
def test_engines_that_cannot_be_made(options: dict[str, Any], code: str, model: Any) -> None:
    with pytest.raises(EngineError, match=code):
        Engine(model, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_an_engine_on_one_says_so(model: Any) -> None:
    with pytest.raises(CudaError, match=r"^(there is no CUDA device|this torch|the CUDA kernels)"):
        Engine(model, kv_tokens=100, device="cuda")


def test_memory_in_bytes(model: Any) -> None:
    engine = Engine(model, kv_bytes=1_000_000)
    assert engine.core.arena.capacity == 1_000_000 // (2 * 3 * 2 * 8 * 4)


def test_a_folder_is_served_like_the_model_saved_in_it(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    wish = Sampling(max_tokens=20)
    saved, here = (Engine(source, kv_tokens=100).generate([PROMPT], wish) for source in (tmp_path, model))
    assert saved == here


def test_a_config_alone_needs_dummy_weights(model: Any, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match="a config alone has no weights"):
        Engine(config, kv_tokens=100)
    first, second = (
        Engine(config, kv_tokens=100, load_format="dummy").generate([PROMPT], Sampling(max_tokens=9))
        for _ in range(2)
    )
    assert first == second


def test_a_batch_beyond_its_memory_waits_and_is_served(model: Any) -> None:
    engine = Engine(model, kv_tokens=64, max_sequences=8)
    numbers = [engine.submit(PROMPT, Sampling(max_tokens=20)) for _ in range(9)]
    largest = 0
    while not engine.idle:
        largest = max(largest, engine.step().size)
        engine.check_integrity()
    assert largest == 2, "24 tokens each"
    results = [tokens_of(engine, number)[0] for number in numbers]
    assert len(set(results)) == 1
    assert len(results[0]) == 20


def test_many_requests_reuse_rows_and_slots(model: Any) -> None:
    engine = Engine(model, kv_tokens=500, max_sequences=16)
    draw = np.random.default_rng(0)
    live: list[int] = []
    for _ in range(150):
        if draw.random() < 0.5:
            wish = Sampling(max_tokens=int(draw.integers(1, 12)), n=int(draw.integers(1, 4)), temperature=1.0)
            live.append(engine.submit(draw.integers(0, 120, draw.integers(1, 20)).tolist(), wish))
        if live and draw.random() < 0.1:
            engine.cancel(live.pop(int(draw.integers(len(live)))))
        engine.step()
        engine.check_integrity()
    engine.run()
    engine.check_integrity()
    for number in live:
        result = engine.result(number)
        assert {done.finish_reason for done in result.completions} == {"length"}
