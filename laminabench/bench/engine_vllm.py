"""vLLM as a contender of the engine: it decodes a load repeatedly, timed by its own clock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.baselines.environment import Environment, environment_of, find
from laminabench.calibrate.models import MODEL
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.find_model import model
from laminabench.sim.simulate import Offered
from laminabench.systems.live.local import in_dtype
from laminabench.systems.live.vllm.process import VllmEndedError
from laminabench.systems.live.vllm.runner import session
from laminabench.systems.live.vllm.setup import CPU_BLOCK, VllmSetup
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError

VLLM_THREADS = 2
GPU_BLOCK = 16  # vLLM's default there


@dataclass(frozen=True)
class Load:
    """The load of all contenders: requests that begin together, with equal prompts and equal outputs."""

    batch: int
    prompt: int
    output: int
    model: str = MODEL


@dataclass(frozen=True)
class Turn:
    """One decoding of the load, and parts of an iteration by name, as far as they are known."""

    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)


Contender = Callable[[], Turn]


@contextlib.contextmanager
def vllm(load: Load, python: Path | None, dtype: str) -> Iterator[Contender]:
    """Yield vLLM's CPU build as a contender; on a processor without bfloat16 it is faster in fp32."""
    environment = environment_of(python, "cpu", f"--vllm is {python}") if python else find("cpu")
    cores = parse_deployment(f"{min(VLLM_THREADS, len(os.sched_getaffinity(0)))}xcpu")
    with decoding([load], cores, environment, dtype) as decode:
        yield partial(decode, load)


@contextlib.contextmanager
def decoding(
    loads: Sequence[Load],
    deployment: Deployment,
    environment: Environment,
    dtype: str | None = None,
    **choices: Any,
) -> Iterator[Callable[[Load], Turn]]:
    """Start vLLM with room for each of these loads and prefill stripped out, to replay equal requests.

    The traces are saturated. Turns are timed by vLLM's clock around its steps.
    """
    # One token more of each: the first step, which admits the requests, is not counted.
    longest = max(load.prompt + load.output + 1 for load in loads)
    name = loads[0].model
    setup = VllmSetup(
        in_dtype(model(name), dtype),
        name,
        deployment,
        max_num_seqs=max(load.batch for load in loads),
        max_model_len=longest,
        **choices,
    )
    block = CPU_BLOCK if setup.kind == "cpu" else GPU_BLOCK
    kv_tokens = max(load.batch * -(-(load.prompt + load.output + 1) // block) * block for load in loads)

    def turn(load: Load) -> Turn:
        try:
            if replays.ready is None and load != loads[0]:
                replays.replay()  # it was started with the first load
            received = replays.replay(_equal(load))
        except VllmEndedError as error:
            raise UserError("bench-vllm-failed", f"vLLM cannot take part: {error}") from error
        steps = received.tables.iterations()
        if steps["size"].tolist() != [load.batch] * (load.output + 1):
            why = received.why_refused or "not all requests decoded in every step"
            raise UserError("bench-vllm-failed", f"vLLM cannot take part: {why}")
        return Turn(float(steps["duration_s"][1:].sum()))

    with session(_equal(loads[0]), setup, Offered(), environment, kv_tokens) as replays:
        yield turn


def _equal(load: Load) -> Trace:
    prompts, outputs = (np.full(load.batch, tokens, np.int32) for tokens in (load.prompt, load.output + 1))
    return Trace(np.zeros(load.batch), prompts, outputs, TraceMeta("equal requests"))
