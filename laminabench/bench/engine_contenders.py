"""What `bench engine --compare` lets take turns: layouts of our engine, one process of it, and vLLM."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers

from lamina.cluster import Layout, Machine
from lamina.pipeline import Records, Schedule, check_schedule
from lamina.serve import Engine, Sampling, Step
from laminabench.baselines.environment import environment_of, find
from laminabench.bench.mini import MODEL, mini_config
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.errors import UserError
from laminabench.sim.simulate import Offered
from laminabench.systems.live.vllm.process import VllmEndedError
from laminabench.systems.live.vllm.runner import Received, launch
from laminabench.systems.live.vllm.setup import CPU_BLOCK, VllmSetup
from laminabench.traces.table import Trace, TraceMeta

LAYOUTS: dict[str, Layout | None] = {
    "serial": Layout(pipelining="serial"),
    "rotational": Layout(pipelining="rotational", batches=2),
    "one-process": None,
}
# Of the requests whose bookkeeping is measured; as long as an answer of the Azure trace on average.
PROMPT, OUTPUT = 200, 200
THREADS = 2


@dataclass(frozen=True)
class Load:
    """What all contenders decode: requests that begin together, with prompts and outputs of equal lengths."""

    batch: int
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        return self.batch * self.output

    @property
    def kv_tokens(self) -> int:
        return self.batch * (self.prompt + self.output)


@dataclass(frozen=True)
class Turn:
    """The load decoded once."""

    seconds: float
    parts: Mapping[str, float] = field(
        default_factory=dict
    )  # of an iteration, by name, as far as they are known


class Contender(Protocol):
    """What takes turns."""

    name: str

    def round(self) -> Turn:
        """Decode the load once."""

    def close(self) -> None:
        """Give back what it holds."""


class OurContender:
    """The engine: slices on one core and attention on another, or all in one process on both."""

    def __init__(self, name: str, load: Load, machine: Machine) -> None:
        self.name, self._load = name, load
        self._engine = Engine(
            mini_config(),
            layout=LAYOUTS[name],
            machine=machine,
            max_sequences=load.batch,
            dtype=torch.bfloat16,
            load_format="dummy",
            decode_only=True,
            kv_tokens=load.kv_tokens,
        )
        self._known = 0

    def round(self) -> Turn:
        """All requests from their first token to their last."""
        load, engine = self._load, self._engine
        sampling = Sampling(max_tokens=load.output, ignore_eos=True)
        numbers = [engine.submit(load.prompt, sampling) for _ in range(load.batch)]
        steps: list[Step] = []
        started = time.monotonic()
        while not engine.idle:
            steps.append(engine.step())
        seconds = steps[-1].ended_s - started
        for number in numbers:
            engine.result(number)
        parts = {"host_s": statistics.median(step.host_s for step in steps)}
        records = engine.records()
        if records is not None:
            return Turn(seconds, self._of_workers(records) | parts)
        parts["model_s"] = statistics.median(step.model_s for step in steps)
        parts["attention_s"] = statistics.median(step.attention_s for step in steps)
        return Turn(seconds, parts)

    def _of_workers(self, records: Records) -> dict[str, float]:
        problems = check_schedule(records, self._engine.schedule)
        if problems:
            raise RuntimeError(f"the workers of {self.name} left their schedule: {problems[0]}")
        of = records.of_iterations
        fresh = of.iteration >= self._known
        self._known += self._load.output
        return {
            "model_s": float(np.median(of.model_s[fresh])),
            "attention_s": float(np.median(of.attention_s[fresh])),
            "boundary_s": boundary_s(records, self._engine.schedule),
        }

    def close(self) -> None:
        """End the workers."""
        self._engine.close()


def boundary_s(records: Records, schedule: Schedule) -> float:
    """From a batch's last slice to its next first one where nothing else is between them: what it takes to
    tell the front end of the tokens, decide what comes next, and tell the workers. The median.
    """
    model = records.where((np.array(records.replica_of)[records.worker] >= 0) & (records.batch == 0))
    last, first = model.slice == schedule.slices - 1, model.slice == 0
    ends, starts = model.end_ns[last], model.start_ns[first]
    began, ended = model.iteration[first], model.iteration[last]
    both = np.intersect1d(ended + 1, began)
    gaps = starts[np.isin(began, both)] - ends[np.isin(ended + 1, both)]
    return float(np.median(gaps)) / 1e9


class VllmContender:
    """vLLM's CPU build, prefill stripped out, which replays a saturated trace of equal requests."""

    name = "vllm"

    def __init__(self, load: Load, python: Path | None) -> None:
        environment = environment_of(python, "cpu", f"--vllm is {python}") if python else find("cpu")
        self._load = load
        # One token more of each: that of the first step, which admits the requests, is not in the time.
        output = load.output + 1
        prompts, outputs = (np.full(load.batch, tokens, np.int32) for tokens in (load.prompt, output))
        self._trace = Trace(np.zeros(load.batch), prompts, outputs, TraceMeta("equal requests"))
        cores = min(THREADS, len(os.sched_getaffinity(0)))
        setup = VllmSetup(
            model(MODEL),
            MODEL,
            parse_deployment(f"{cores}xcpu"),
            max_num_seqs=load.batch,
            max_model_len=load.prompt + output,
        )
        blocks = load.batch * -(-(load.prompt + output) // CPU_BLOCK)
        self._ready: dict[str, Any] | None = None
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="laminabench-vllm-", ignore_cleanup_errors=True)
            )
            self._process = stack.enter_context(
                launch(self._trace, setup, Offered(), environment, blocks * CPU_BLOCK, Path(folder))
            )
            self._stack = stack.pop_all()
        self._lines = self._process.lines()

    def round(self) -> Turn:
        """As many tokens, by its own clock around its own steps."""
        if self._ready is not None:
            self._process.again()
        received = Received(self._trace)
        received.ready = self._ready
        try:
            for line in self._lines:
                received.take(line)
                if received.done is not None:
                    break
        except VllmEndedError as error:
            raise UserError("bench-vllm-failed", f"vLLM cannot take part: {error}") from error
        self._ready = received.ready
        steps = received.tables.iterations()
        if steps["size"].tolist() != [self._load.batch] * (self._load.output + 1):
            why = received.why_refused or "not all requests decoded in every step"
            raise UserError("bench-vllm-failed", f"vLLM cannot take part: {why}")
        return Turn(float(steps["duration_s"][1:].sum()))

    def close(self) -> None:
        """End it."""
        self._stack.close()


def bookkeeping(requests: int, iterations: int) -> Callable[[], float]:
    """What scheduler, slots and bookkeeping take in an iteration of so many requests: the host's time of an
    engine whose model is next to nothing.

    Requests make OUTPUT tokens and began at different times, so that in each iteration some come and some go,
    as many as in a steady state.
    """
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=128,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    engine = Engine(
        config,
        max_sequences=requests,
        kv_tokens=requests * (PROMPT + OUTPUT),
        load_format="dummy",
        decode_only=True,
    )

    def measure() -> float:
        tokens = [1 + OUTPUT * number // requests for number in range(requests)] + [OUTPUT] * requests
        numbers = [engine.submit(PROMPT, Sampling(max_tokens=count, ignore_eos=True)) for count in tokens]
        steps = [engine.step() for _ in range(iterations + 1)]
        full = [step.host_s for step in steps[1:] if step.size == requests]
        for number in numbers:
            engine.cancel(number)
            engine.result(number)
        return statistics.median(full)

    return measure
