"""Long prompts alongside requests that decode: their effect on these, with and without prefill workers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.tally import Tally
from lamina.cluster import Layout, Machine
from lamina.serve import Engine, Sampling

_VOCABULARY = 256
_OTHERS = 64  # prompts of requests that decode are shorter
# So small that a core computes 130,000 tokens in minutes, mostly in attention.
_MODEL: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a session."""

    decoding: int = 20
    one: int = 130_000  # tokens of the long prompt
    many: int = 40
    each: int = 2_048  # tokens of each of the many
    alone: int = 2_000  # iterations without long prompts
    made: int = 200  # tokens of each request that decodes; when it ends, another one comes


@dataclass
class _Observed:
    """The times observed by requests that decode."""

    tbt_s: list[float] = field(default_factory=list)  # of each token
    weights: list[int] = field(default_factory=list)  # requests with this gap
    most_prompt_tokens: int = 0

    def percentile_ms(self, percent: float) -> float:
        return 1e3 * float(np.percentile(np.repeat(self.tbt_s, self.weights), percent))


def long_prompts(seeds: Sequence[int], sizes: Sizes | None = None) -> Tally:
    """Run requests that decode alone, then alongside one long prompt or many; a case is a session."""
    tally, size = Tally("long prompts"), sizes or Sizes()
    with Machine() as machine:
        for seed in seeds:
            prefill, many = bool(seed % 2), bool(seed // 2 % 2)
            what = f"{size.many} of {size.each}" if many else f"one of {size.one}"
            name = f"{what}, {'with' if prefill else 'without'} prefill workers"
            try:
                facts, wrong = _session(machine, random.Random(seed), size, prefill=prefill, many=many)
            except Exception as error:
                tally.add("crashed", name, seed, repr(error))
                continue
            tally.add("lost" if wrong else None, name, seed, wrong)
            for fact, value in facts.items():
                key = f"{name}: {fact}"
                tally.facts[key] = max(value, tally.facts.get(key, value))
    return tally


def _session(
    machine: Machine, drawn: random.Random, size: Sizes, *, prefill: bool, many: bool
) -> tuple[dict[str, float], str]:
    lengths = [size.each] * size.many if many else [size.one]
    layout = Layout(pipelining="serial", prefill_workers=int(prefill), oversubscribe=True)
    model = _MODEL | {"max_position_embeddings": max(lengths) + size.made}
    room = sum(lengths) + (size.decoding + len(lengths)) * (_OTHERS + size.made)
    with Engine(model, layout=layout, machine=machine, load_format="dummy", kv_tokens=room) as engine:
        decoding = _Decoding(engine, drawn, size)
        decoding.go_on(20 + size.made)  # memory is touched, and requests end at different times
        alone, loaded = _Observed(), _Observed()
        decoding.go_on(size.alone, alone)
        wish = Sampling(max_tokens=4, ignore_eos=True)
        numbers = {engine.submit(_text(drawn, length), wish) for length in lengths}
        left = set(numbers)
        while left:
            left.difference_update(decoding.step(loaded).ended)
        results = [engine.result(number) for number in numbers]
        made = [len(done.tokens) for result in results for done in result.completions]
        complaint = next((result.error for result in results if result.error), "")
        if made != [wish.max_tokens] * len(numbers):
            complaint = complaint or f"{made} tokens"
        if engine.faults:
            complaint = f"workers were lost: {engine.faults[0].why}"
        decoding.end()
        engine.check_integrity()
        complaint = complaint or decoding.complaint
    ratio = loaded.percentile_ms(99) / alone.percentile_ms(99)
    facts = {
        "p99 TBT over that alone": ratio,
        "most prompt tokens of an iteration": loaded.most_prompt_tokens,
    }
    for observed, when in ((alone, "alone"), (loaded, "beside")):
        facts |= {f"p{p} TBT {when}, ms": observed.percentile_ms(p) for p in (50, 99)}
    facts["prompt tokens/s"] = sum(lengths) / sum(loaded.tbt_s)
    return facts, complaint


class _Decoding:
    """Requests that decode: a constant number, each of which must get its tokens."""

    def __init__(self, engine: Engine, drawn: random.Random, size: Sizes) -> None:
        self._engine, self._drawn, self._made = engine, drawn, size.made
        self._running: set[int] = set()
        self._last_s: float | None = None
        self.complaint = ""
        # The first ones end one after the other.
        for turn in range(size.decoding):
            self._begin(1 + size.made * (turn + 1) // size.decoding)

    def _begin(self, tokens: int) -> None:
        text = _text(self._drawn, self._drawn.randrange(8, _OTHERS))
        self._running.add(self._engine.submit(text, Sampling(max_tokens=tokens, ignore_eos=True)))

    def go_on(self, iterations: int, observed: _Observed | None = None) -> None:
        for _ in range(iterations):
            self.step(observed or _Observed())

    def step(self, observed: _Observed) -> Any:
        step = self._engine.step()
        observed.most_prompt_tokens = max(observed.most_prompt_tokens, step.prompt_tokens)
        if self._last_s is not None and step.size:
            observed.tbt_s.append(step.ended_s - self._last_s)
            observed.weights.append(step.size - len(step.joined))
        if step.size:
            self._last_s = step.ended_s
        for number in self._running.intersection(step.ended):
            self._take(number)
            self._begin(self._made)
        return step

    def _take(self, number: int) -> None:
        self._running.remove(number)
        error = self._engine.result(number).error
        if error and not self.complaint:
            self.complaint = f"one that decoded: {error}"

    def end(self) -> None:
        while self._running:
            for number in self._running.intersection(self._engine.step().ended):
                self._take(number)


def _text(drawn: random.Random, tokens: int) -> list[int]:
    return [drawn.randrange(1, _VOCABULARY) for _ in range(tokens)]
