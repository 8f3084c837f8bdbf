"""Models in folders, and engines with workers on one machine."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cluster_support import (
    Check,
    Reference,
    Saved,
    Start,
    prompts,
    sound,
    tokens_of,
    workers_of,
)

from lamina import Engine, Sampling
from lamina.cluster import Layout, Machine

# Prompt lengths, and how many tokens each makes. Answers after short prompts pass windows of 9 to 12 tokens.
# First, second and third chunks of 12 end in answers, two of them in that after 9.
FIRST, THEIRS = (9, 1, 26, 14), (20, 7, 13, 18)
LATER, OTHERS = (5, 17), (20, 3)

SmallModel = Callable[..., transformers.PreTrainedModel]


@pytest.fixture(scope="session")
def saved(small_model: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A family's small model as a folder, or a deeper one."""

    @functools.cache
    def save(
        family: str,
        dtype: torch.dtype = torch.float32,
        layers: int | None = None,
        positions: int | None = None,
    ) -> Path:
        folder = tmp_path_factory.mktemp(family)
        model = small_model(family, dtype)
        if layers:
            model.config.num_hidden_layers = layers
            model.config.max_position_embeddings = positions or model.config.max_position_embeddings
            with torch.random.fork_rng():
                torch.manual_seed(layers)
                model = transformers.AutoModelForCausalLM.from_config(model.config, dtype=dtype)
        model.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def reference(saved: Saved) -> Reference:
    """What transformers makes of a prompt, greedily."""

    @functools.cache
    def load(family: str, layers: int | None, positions: int | None) -> transformers.PreTrainedModel:
        folder = saved(family, layers=layers, positions=positions)
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @functools.cache
    def make(
        family: str,
        prompt: tuple[int, ...],
        tokens: int,
        layers: int | None = None,
        positions: int | None = None,
    ) -> list[int]:
        with torch.inference_mode():
            made = load(family, layers, positions).generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=tokens,
                do_sample=False,
            )
        results: list[int] = made[0, len(prompt) :].tolist()
        return results

    return make


@pytest.fixture
def start(saved: Saved, machine: Machine) -> Iterator[Start]:
    """Make engines with workers; they are closed at the end, and none of their workers is left."""
    started: list[Engine] = []
    before = set(workers_of(machine))

    def make(
        layout: Layout,
        family: str = "llama-gqa",
        *,
        layers: int | None = None,
        positions: int | None = None,
        **options: object,
    ) -> Engine:
        folder = saved(family, layers=layers, positions=positions)
        engine = Engine(folder, layout=layout, machine=machine, **({"kv_tokens": 2000} | options))
        started.append(engine)
        return engine

    yield make
    for engine in started:
        engine.close()
    assert set(workers_of(machine)) <= before


@pytest.fixture
def check(start: Start, reference: Reference) -> Check:
    """Some are there from the start, some join while others run, and they leave at different times."""

    def run(
        layout: Layout,
        family: str = "llama-gqa",
        layers: int | None = None,
        share: float = 1.0,
        **options: Any,
    ) -> None:
        """`share` of the tokens are made, of each answer."""
        engine = start(layout, family, layers=layers, **options)
        counts = [math.ceil(share * count) for count in THEIRS + OTHERS]
        load = list(zip(prompts(*FIRST) + prompts(*LATER), counts, strict=True))
        numbers = []
        for number, (prompt, tokens) in enumerate(load):
            for _ in range(5 if number == len(FIRST) else 0):
                engine.step()
            numbers.append(engine.submit(prompt, Sampling(max_tokens=tokens)))
        engine.run()
        for number, (prompt, tokens) in zip(numbers, load, strict=True):
            assert tokens_of(engine.result(number)) == [reference(family, tuple(prompt), tokens, layers)]
        sound(engine)

    return run


@pytest.fixture(scope="module")
def shared_engine(saved: Saved, machine: Machine) -> Iterator[Start]:
    """An engine with workers for all tests that ask for the same one, and that leave it idle."""
    made: dict[str, Engine] = {}

    def give(layout: Layout, **options: object) -> Engine:
        key = repr((layout, sorted(options.items())))
        if key in made and not made[key].idle:  # the test that had it has failed
            made.pop(key).close()
        if key not in made:
            given = {"kv_tokens": 2000} | options
            made[key] = Engine(saved("llama-gqa"), layout=layout, machine=machine, **given)
        return made[key]

    yield give
    for engine in made.values():
        engine.close()
    assert not workers_of(machine)
