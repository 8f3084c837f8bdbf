"""One iteration of the engine beside what it is made of: its matrix products alone, its KV read once."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lamina.attention.worker import TensorWorker
from lamina.convert.packed import linear
from lamina.serve import Engine, Sampling, Step
from laminabench.bench.mini import mini_config
from laminabench.bench.timing import spread

TARGET_RATIO = 1.25
TARGET_HOST_S = 1e-3
TARGET_HOST_S_PER_REQUEST = 5e-6
STEPS_PER_ROUND = 3


@dataclass
class Rounds:
    """What each round of the alternating run measured, one number a round."""

    iteration_s: list[float] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    model_s: list[float] = field(default_factory=list)
    attention_s: list[float] = field(default_factory=list)
    sampling_s: list[float] = field(default_factory=list)
    gemm_s: list[float] = field(default_factory=list)
    kv_read_s: list[float] = field(default_factory=list)
    bandwidth: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)


def run(
    *,
    batch: int = 64,
    context: int = 1024,
    rounds: int = 7,
    options: dict[str, Any],
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> dict[str, object]:
    """Iterations, their GEMMs alone and the memory's bandwidth, measured in turn; the answer is ready for
    JSON.

    Judged is iteration / (GEMMs + KV bytes / bandwidth), round by round, so that a noisy moment of the
    machine falls on both sides of the ratio.
    """
    engine = _engine(batch, context, rounds, options)
    gemms = Gemms(engine, batch)
    found = Rounds()
    engine.step()  # joins everybody, and touches all memory once
    gemms.seconds()
    for round_ in range(rounds):
        progress(round_, rounds)
        bandwidth = _read_bandwidth(engine)
        gemm_s = gemms.seconds()
        steps = [_timed_step(engine) for _ in range(STEPS_PER_ROUND)]
        _record(found, engine, steps, gemm_s, bandwidth)
    progress(rounds, rounds)
    return _report(found, engine, batch, context, gemms, options)


def _engine(batch: int, context: int, rounds: int, options: dict[str, Any]) -> Engine:
    steps = 1 + STEPS_PER_ROUND * rounds
    engine = Engine(
        mini_config(),
        max_sequences=batch,
        dtype=torch.bfloat16,
        load_format="dummy",
        decode_only=True,
        kv_tokens=batch * (context + steps),
        **options,
    )
    # The contexts pass through the one asked for in the middle of the run.
    for _ in range(batch):
        engine.submit(max(1, context - steps // 2), Sampling(max_tokens=steps))
    return engine


class Gemms:
    """The matrix products of an iteration, each with its own weight, without anything between them."""

    def __init__(self, engine: Engine, batch: int) -> None:
        config = engine.core.conversion.config
        head = config.vocab_size
        self._weights = [
            weight
            for piece in engine.core.slices
            for weight in piece.weights
            # The embedding is looked up, not multiplied; the head is a product of the same shape.
            if weight.dim() == 2 and not (weight.shape[0] == head and piece.index == 0)
        ]
        self._inputs = {
            size: torch.randn(batch, size).to(torch.bfloat16) for size in {w.shape[1] for w in self._weights}
        }
        self.parameters = sum(weight.numel() for weight in self._weights)

    @torch.inference_mode()
    def seconds(self) -> float:
        started = time.perf_counter()
        for weight in self._weights:
            linear(self._inputs[weight.shape[1]], weight)
        return time.perf_counter() - started


def _read_bandwidth(engine: Engine) -> float:
    """How fast the attention worker's threads can read the KV arena when they do nothing else."""
    storage = engine.core.arena.storage
    nbytes = storage.numel() * storage.element_size()
    return _worker(engine).native.read_bandwidth(storage.data_ptr(), nbytes)


def _worker(engine: Engine) -> TensorWorker:
    worker = engine.core.attention
    assert isinstance(worker, TensorWorker)
    return worker


def _timed_step(engine: Engine) -> tuple[float, Step]:
    started = time.perf_counter()
    step = engine.step()
    return time.perf_counter() - started, step


def _record(
    found: Rounds, engine: Engine, steps: list[tuple[float, Step]], gemm_s: float, bandwidth: float
) -> None:
    shape = engine.core.arena.shape
    iteration_s = statistics.median(took for took, _ in steps)
    middle = steps[len(steps) // 2][1]
    kv_read_s = middle.kv_tokens * shape.token_bytes / bandwidth
    found.iteration_s.append(iteration_s)
    for name in ("host_s", "model_s", "attention_s", "sampling_s"):
        getattr(found, name).append(statistics.median(getattr(step, name) for _, step in steps))
    found.gemm_s.append(gemm_s)
    found.kv_read_s.append(kv_read_s)
    found.bandwidth.append(bandwidth)
    found.ratio.append(iteration_s / (gemm_s + kv_read_s))


def _report(
    found: Rounds, engine: Engine, batch: int, context: int, gemms: Gemms, options: dict[str, Any]
) -> dict[str, object]:
    host_target = TARGET_HOST_S + batch * TARGET_HOST_S_PER_REQUEST
    ratio, host = spread(found.ratio), spread(found.host_s)
    return {
        "benchmark": "engine",
        "batch": batch,
        "context": context,
        "layers": len(engine.core.conversion.attentions),
        "gemm_parameters": gemms.parameters,
        "kv_bytes": batch * context * engine.core.arena.shape.token_bytes,
        "threads": {"model": torch.get_num_threads(), "attention": _worker(engine).native.threads},
        "options": options,
        "gomp_spincount": os.environ.get("GOMP_SPINCOUNT"),
        "rounds": len(found.ratio),
        "iteration_s": spread(found.iteration_s),
        "of_which": {
            "model_s": spread(found.model_s),
            "attention_s": spread(found.attention_s),
            "sampling_s": spread(found.sampling_s),
            "host_s": host,
        },
        "gemms_alone_s": spread(found.gemm_s),
        "kv_read_s": spread(found.kv_read_s),
        "read_bandwidth_bytes_per_s": spread(found.bandwidth),
        "ratio": ratio,
        "target_ratio": TARGET_RATIO,
        "target_host_s": host_target,
        "ratio_met": ratio["median"] <= TARGET_RATIO,
        "host_met": host["median"] <= host_target,
        "met": ratio["median"] <= TARGET_RATIO and host["median"] <= host_target,
    }
