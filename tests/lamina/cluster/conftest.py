"""Models in folders, one machine to start workers on, and what processes there are."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lamina import Engine, Sampling
from lamina.cluster import ClusterCore, Layout, Machine
from lamina.pipeline import check_schedule
from lamina.serve.requests import Result

SmallModel = Callable[..., transformers.PreTrainedModel]
Saved = Callable[..., Path]
Load = list[tuple[list[int], Sampling]]
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"n": 3, "temperature": 0.8, "seed": 4},
    {"beams": 3},
    {"logprobs": 2},
)
DEADLINE_S = 60.0  # for what takes a moment, on a machine that others use too


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
def reference(saved: Saved) -> Callable[..., list[int]]:
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
        found: list[int] = made[0, len(prompt) :].tolist()
        return found

    return make


@pytest.fixture
def start(saved: Saved, machine: Machine) -> Iterator[Callable[..., Engine]]:
    """Make an engine with workers; at the end all is as it should be, and nobody is left."""
    started: list[Engine] = []
    before = set(left_of(machine))

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
    assert set(left_of(machine)) <= before


@pytest.fixture(scope="module")
def kept(saved: Saved, machine: Machine) -> Iterator[Callable[..., Engine]]:
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
    assert not left_of(machine)


@pytest.fixture(scope="session")
def sound() -> Callable[[Engine], None]:
    """Fail unless an idle engine's workers have kept the schedule and hold nothing."""

    def check(engine: Engine) -> None:
        assert engine.idle
        assert isinstance(engine.core, ClusterCore)
        records = engine.records()
        assert records is not None
        assert len(records) > 0
        assert check_schedule(records, engine.schedule) == []
        engine.check_integrity()
        assert not any(engine.core.kv_used())

    return check


@pytest.fixture(scope="session")
def prompts() -> Callable[..., list[list[int]]]:
    """Random prompts of these lengths, the same every time."""

    def make(*lengths: int, vocab: int = 120) -> list[list[int]]:
        generator = torch.Generator().manual_seed(sum(lengths))
        return [torch.randint(1, vocab, (n,), generator=generator).tolist() for n in lengths]

    return make


@pytest.fixture(scope="session")
def tokens_of() -> Callable[[Result], list[list[int]]]:
    """A result's tokens, completion by completion."""
    return lambda result: [list(done.tokens) for done in result.completions]


@pytest.fixture(scope="session")
def kinds() -> tuple[dict[str, Any], ...]:
    """Wishes of requests: drawn, several samples, beams, logprobs."""
    return KINDS


@pytest.fixture(scope="session")
def mixed(prompts: Callable[..., list[list[int]]]) -> Callable[[int], Load]:
    """So many requests of all kinds, of all lengths."""

    def make(count: int) -> Load:
        draw = random.Random(1)
        texts = prompts(*(draw.randrange(1, 50) for _ in range(count)))
        return [
            (text, Sampling(max_tokens=draw.randrange(3, 20), ignore_eos=True, **KINDS[i % len(KINDS)]))
            for i, text in enumerate(texts)
        ]

    return make


@pytest.fixture(scope="session")
def play(tokens_of: Callable[[Result], list[list[int]]]) -> Callable[..., list[list[list[int]]]]:
    """Serve all requests of a load; what comes between two steps, and the tokens."""

    def serve(
        engine: Engine, load: Load, between: Callable[[int], None] = lambda step: None
    ) -> list[list[list[int]]]:
        numbers = [engine.submit(*request) for request in load]
        step = 0
        while not engine.idle:
            between(step)
            engine.step()
            step += 1
        return [tokens_of(engine.result(number)) for number in numbers]

    return serve


@pytest.fixture(scope="session")
def harassed() -> Callable[..., contextlib.AbstractContextManager[None]]:
    """Meanwhile an engine's workers are killed and stopped, by somebody who looks at nothing."""

    @contextlib.contextmanager
    def strike(engine: Engine, seed: int) -> Iterator[None]:
        draw, enough = random.Random(seed), threading.Event()

        def blows() -> None:
            for _ in range(6):
                if enough.wait(draw.uniform(0.1, 0.6)):
                    return
                pids = list(engine.core._workers._pids.values())
                if pids:
                    os.kill(draw.choice(pids), draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))

        thread = threading.Thread(target=blows)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()

    return strike


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until something holds."""

    def wait(holds: Callable[[], bool], what: str = "what was waited for has not come") -> None:
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < end, what
            time.sleep(0.005)

    return wait


def left_of(machine: Machine) -> list[int]:
    """A machine's workers that have not ended, or that nobody has asked how they did."""
    process = machine._process
    return [] if process is None else children(process.pid)


@pytest.fixture(scope="session")
def workers_of() -> Callable[[Machine], list[int]]:
    return left_of


@pytest.fixture(scope="session")
def children_of() -> Callable[[int], list[int]]:
    return children


def children(parent: int) -> list[int]:
    """Processes begun by another one and not reaped."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(folder.name))
    return found
