"""Prompts through the slices: the K and V that the original model computes, however they are cut up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import transformers

from lamina.convert import BoundSlice, Conversion, StateMemory, convert
from lamina.convert.prompt import prompt_source
from lamina.model import Prefill, PromptRun, PromptTokens
from lamina.model.prefill import Passed, causal

# Of a layer: keys and values; or one tensor, where values are part of keys.
KV = dict[int, tuple[torch.Tensor, ...]]
SmallModel = Callable[..., transformers.PreTrainedModel]
LENGTH = 37


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(1, 120, (LENGTH,), generator=torch.Generator().manual_seed(3))


def original(conversion: Conversion, model: transformers.PreTrainedModel, tokens: torch.Tensor) -> KV:
    cache = transformers.DynamicCache()
    with torch.inference_mode():
        model(input_ids=tokens[None], past_key_values=cache, use_cache=True)
    pairs = [tuple(one[0].transpose(0, 1) for one in (kv.keys, kv.values)) for kv in cache.layers]
    # A latent vector and its rotated part are two in transformers' cache, and one of ours.
    latent = [op.latent for op in conversion.attentions]
    return {layer: (torch.cat(pair, dim=-1),) if latent[layer] else pair for layer, pair in enumerate(pairs)}


class Collected:
    """What is delivered, put together."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[torch.Tensor, ...]]] = {}

    def __call__(self, layer: int, *kv: torch.Tensor) -> None:
        self._parts.setdefault(layer, []).append(tuple(one.clone() for one in kv))

    @property
    def kv(self) -> KV:
        return {
            layer: tuple(map(torch.cat, zip(*parts, strict=True))) for layer, parts in self._parts.items()
        }


def prefill_of(conversion: Conversion, model: transformers.PreTrainedModel, layers: slice) -> Prefill:
    return Prefill(conversion.bind(model)[layers], conversion.attended(model).of(slice(None), layers))


def through(
    layers: Prefill,
    tokens: torch.Tensor,
    chunk: int,
    deliver: Collected,
    passed: Iterator[Passed] | None = None,
) -> Iterator[Passed]:
    """A prompt by itself, so many tokens a call."""
    alone = PromptRun(len(tokens))
    for some in tokens.split(chunk):
        yield layers.call([PromptTokens(alone, some)], next(passed) if passed else None, deliver)


def run(
    conversion: Conversion, model: transformers.PreTrainedModel, tokens: torch.Tensor, chunk: int = LENGTH
) -> KV:
    collected = Collected()
    with torch.inference_mode():
        whole = prefill_of(conversion, model, slice(len(conversion.attentions)))
        for _ in through(whole, tokens, chunk, collected):
            pass
    return collected.kv


def assert_same(result: KV, expected: KV) -> None:
    assert result.keys() == expected.keys()
    for layer, stored in expected.items():
        for ours, theirs in zip(result[layer], stored, strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


@pytest.mark.long(but=["gemma2-*", "mixtral-*"])
@pytest.mark.parametrize("chunk", [512, 10])
def test_every_family_has_the_kv_of_the_original(
    family: str, chunk: int, small_model: SmallModel, tokens: torch.Tensor
) -> None:
    model = small_model(family)
    conversion = convert(model)
    result = run(conversion, model, tokens, chunk)
    expected = original(conversion, model, tokens)
    # A windowed layer's own cache keeps what the window sees; a prefill hands everything over.
    observed = {layer: len(stored[0]) for layer, stored in expected.items()}
    result = {layer: tuple(one[-observed[layer] :] for one in kv) for layer, kv in result.items()}
    assert_same(result, expected)


@pytest.mark.long(but=["llama-gqa", "gpt-oss"])
def test_prompts_together_have_the_kv_of_each_alone(family: str, small_model: SmallModel) -> None:
    """Whole ones, and one of which this is neither the first nor the last call."""
    model = small_model(family)
    conversion = convert(model)
    if conversion.states:
        pytest.skip("its layers keep state, and have one prompt a call")
    torch.manual_seed(5)
    texts = [torch.randint(1, 120, (length,)) for length in (23, 1, 17, 40)]
    layers = prefill_of(conversion, model, slice(len(conversion.attentions)))
    runs = [PromptRun(len(text)) for text in texts]
    first, second, last = Collected(), Collected(), Collected()
    with torch.inference_mode():
        layers.call([PromptTokens(runs[3], texts[3][:9])], None, first)
        parts = [texts[0], texts[1], texts[3][9:31], texts[2]]
        order = [runs[0], runs[1], runs[3], runs[2]]
        layers.call(list(map(PromptTokens, order, parts)), None, second)
        layers.call([PromptTokens(runs[3], texts[3][31:])], None, last)
    assert [run.done for run in runs] == [23, 1, 17, 40]
    for layer, result in second.kv.items():
        of_each = [one.split([len(part) for part in parts]) for one in result]
        begun, ended = first.kv[layer], last.kv[layer]
        for text, place in zip(texts, (0, 1, 3, 2), strict=True):
            own = tuple(one[place] for one in of_each)
            if text is texts[3]:
                own = tuple(map(torch.cat, zip(begun, own, ended, strict=True)))
            assert_same({layer: own}, {layer: run(conversion, model, text)[layer]})


def test_a_call_that_failed_is_made_again(small_model: SmallModel, tokens: torch.Tensor) -> None:
    """With fewer prompts; of one that is computed in parts nothing has changed."""
    model = small_model("llama-gqa")
    conversion = convert(model)
    layers = prefill_of(conversion, model, slice(len(conversion.attentions)))
    alone, other, collected = PromptRun(LENGTH), PromptRun(3), Collected()

    def fail(layer: int, *_: torch.Tensor) -> None:
        if layer == 1:
            raise MemoryError("no more")

    with torch.inference_mode():
        layers.call([PromptTokens(alone, tokens[:20])], None, collected)
        with pytest.raises(MemoryError):
            layers.call([PromptTokens(other, tokens[:3]), PromptTokens(alone, tokens[20:])], None, fail)
        layers.call([PromptTokens(alone, tokens[20:])], None, collected)
    assert_same(collected.kv, run(conversion, model, tokens))


def test_stages_pass_a_prompt_on(small_model: SmallModel, tokens: torch.Tensor) -> None:
    model = small_model("gemma2")
    conversion = convert(model)
    collected = Collected()
    with torch.inference_mode():
        passed: Iterator[Passed] | None = None
        for stage in (slice(0, 1), slice(1, 3)):
            passed = through(prefill_of(conversion, model, stage), tokens, 8, collected, passed)
        assert passed is not None
        last = list(passed)
    assert [len(each.context[0]) for each in last] == [8, 8, 8, 8, 5]
    whole = run(conversion, model, tokens)
    assert_same(collected.kv, whole)


RECURRENT = ["jamba", "qwen3-next", "granite-hybrid", "olmo-hybrid", "lfm2"]


def begun(slices: list[BoundSlice]) -> StateMemory:
    """The states of a sequence of which no token has been seen."""
    memory = next(piece.states for piece in slices if piece.states)
    memory.begin(0)
    memory.selected = memory.rows([0])
    return memory


def by_token(conversion: Conversion, slices: list[BoundSlice], tokens: torch.Tensor) -> KV:
    """As a request is decoded, one token after the other."""
    stored: dict[int, list[torch.Tensor]] = {}
    for at in range(len(tokens)):
        context, attended = (tokens[at : at + 1], torch.tensor([at])), None
        for op, piece in zip(conversion.attentions, slices, strict=False):
            q, state = piece.query(context, attended)
            *kv, state = piece.keyvalue(state)
            context = piece.rest(state)
            old = stored.get(op.layer, [one[:0] for one in kv])
            stored[op.layer] = [torch.cat(pair) for pair in zip(old, kv, strict=True)]
            attended = causal(q, *stored[op.layer], op)
        slices[-1].logits(context, attended)
    return {layer: tuple(kv) for layer, kv in stored.items()}


@pytest.mark.long(but=["granite-hybrid"])
@pytest.mark.parametrize("family", RECURRENT)
def test_states_after_a_prompt_are_those_of_its_tokens(
    family: str, small_model: SmallModel, tokens: torch.Tensor
) -> None:
    model = small_model(family)
    conversion = convert(model)
    with torch.inference_mode():
        slices = conversion.bind(model)
        memory, collected = begun(slices), Collected()
        layers = Prefill(slices[:-1], conversion.attended(model), slices[-1])
        list(through(layers, tokens, 10, collected))
        results = [memory.read(number) for number in range(len(conversion.states))]
        memory = begun(slices)
        assert_same(collected.kv, by_token(conversion, slices, tokens))
        for number, one in enumerate(results):
            torch.testing.assert_close(one, memory.read(number), atol=2e-4, rtol=2e-4)
    # Weights are multiplied with all tokens of a chunk; only what needs the token before runs by itself.
    for kind in conversion.classes:
        if kind.program.bound:
            steps = [line for line in prompt_source(kind.program).text.splitlines() if line[:12].isspace()]
            assert 0 < len(steps) < 60
            assert not any("linear(" in line for line in steps)
