"""What `bench engine --compare` lets take turns: layouts of our engine, one process of it, and vLLM."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
import transformers

import laminabench.baselines
from lamina.cluster import Layout, Machine
from lamina.pipeline import Records, Schedule, check_schedule
from lamina.serve import Engine, Sampling, Step
from laminabench.baselines.vllm_environment import find
from laminabench.bench.mini import mini_config
from laminabench.errors import UserError

LAYOUTS: dict[str, Layout | None] = {
    "serial": Layout(pipelining="serial"),
    "rotational": Layout(pipelining="rotational", batches=2),
    "one-process": None,
}
# Of the requests whose bookkeeping is measured; as long as an answer of the Azure trace on average.
PROMPT, OUTPUT = 200, 200
THREADS = 2
RUNNER = Path(laminabench.baselines.__file__).parent / "vllm" / "decode_steps.py"


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
    """vLLM's CPU build, prefill stripped out, in an environment of its own."""

    name = "vllm"

    def __init__(self, load: Load, python: Path | None) -> None:
        python = python or find("cpu").python
        if not python.exists():
            raise UserError(
                "baseline-python-unusable",
                f"vLLM cannot take part: there is no {python}; `laminabench baseline setup vllm` builds one",
            )
        self._load = load
        self._folder = tempfile.TemporaryDirectory(prefix="laminabench-")
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        config = mini_config().to_dict() | {"architectures": ["LlamaForCausalLM"]}
        (Path(self._folder.name) / "config.json").write_text(json.dumps(config, default=str))
        token_bytes = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2
        # Its blocks have 128 tokens, and one is its own.
        blocks = load.batch * (-(-(load.prompt + load.output + 1) // 128) + 1) + 1
        self._process = subprocess.Popen(
            [
                *(str(python), str(RUNNER), self._folder.name),
                *("--batch-max", str(load.batch), "--max-model-len", str(load.prompt + load.output + 1)),
                *("--kv-bytes", str(blocks * 128 * token_bytes), "--threads", str(THREADS)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            self.ready = self._heard()
        except BaseException:
            self.close()  # or it would go on compiling, for minutes
            raise

    def round(self) -> Turn:
        """As many tokens, by its own clock around its own steps."""
        order = {
            "batch": self._load.batch,
            "prompt_tokens": self._load.prompt,
            "output_tokens": self._load.output,
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return Turn(float(self._heard()["seconds"]))

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended without a word"}
        if "error" in answer:
            raise UserError("bench-vllm-failed", f"vLLM cannot take part: {answer['error']}")
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        self._folder.cleanup()


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
