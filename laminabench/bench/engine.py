"""One iteration of the engine beside what it is made of: its matrix products alone, its KV read once."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from lamina.attention.worker import TensorWorker
from lamina.convert.codegen import linear
from lamina.serve import Engine, Sampling, Step
from laminabench.bench.frame import QUIET, Cell, Report, Spread, Table, Watcher, ms_text, spread
from laminabench.bench.mini import mini_config, users_load

TARGET_RATIO = 1.25
TARGET_HOST_S = 1e-3
TARGET_HOST_S_PER_REQUEST = 5e-6
STEPS_PER_ROUND = 3


@dataclass(frozen=True)
class Options:
    """Of the engine."""

    threads: int  # of the attention worker; 0: one a core
    backend: Literal["python", "aot"]
    overlap: bool


@dataclass
class Rounds:
    """What the alternating run measured, one number a round."""

    iteration_s: list[float] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    model_s: list[float] = field(default_factory=list)
    attention_s: list[float] = field(default_factory=list)
    sampling_s: list[float] = field(default_factory=list)
    gemm_s: list[float] = field(default_factory=list)
    kv_read_s: list[float] = field(default_factory=list)
    bandwidth: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)


def run(*, batch: int, context: int, rounds: int, options: Options, watcher: Watcher = QUIET) -> Report:
    """Iterations, their GEMMs alone and the memory's bandwidth, measured in turn.

    Judged is iteration / (GEMMs + KV bytes / bandwidth), round by round, so that a noisy moment of the
    machine falls on both sides of the ratio.
    """
    with users_load(f"batch {batch:,}, context {context:,}, {rounds:,} rounds"):
        engine = _engine(batch, context, rounds, options)
        gemms = Gemms(engine, batch)
        measured = Rounds()
        engine.step()  # admits all requests, and touches all memory once
        gemms.seconds()
        for round_ in range(rounds):
            watcher.progress(round_, rounds)
            bandwidth = _read_bandwidth(engine)
            gemm_s = gemms.seconds()
            steps = [_timed_step(engine) for _ in range(STEPS_PER_ROUND)]
            _record(measured, engine, steps, gemm_s, bandwidth)
        watcher.progress(rounds, rounds)
    return _report(measured, engine, batch, context, gemms, options)


def _engine(batch: int, context: int, rounds: int, options: Options) -> Engine:
    steps = 1 + STEPS_PER_ROUND * rounds
    engine = Engine(
        mini_config(),
        max_sequences=batch,
        dtype=torch.bfloat16,
        load_format="dummy",
        decode_only=True,
        kv_tokens=batch * (context + steps),
        threads=options.threads,
        backend=options.backend,
        overlap=options.overlap,
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
    rounds: Rounds, engine: Engine, steps: Sequence[tuple[float, Step]], gemm_s: float, bandwidth: float
) -> None:
    iteration_s = statistics.median(took for took, _ in steps)
    kv_read_s = steps[len(steps) // 2][1].kv_tokens * engine.core.arena.shape.token_bytes / bandwidth
    rounds.iteration_s.append(iteration_s)
    for name in ("host_s", "model_s", "attention_s", "sampling_s"):
        getattr(rounds, name).append(statistics.median(getattr(step, name) for _, step in steps))
    rounds.gemm_s.append(gemm_s)
    rounds.kv_read_s.append(kv_read_s)
    rounds.bandwidth.append(bandwidth)
    rounds.ratio.append(iteration_s / (gemm_s + kv_read_s))


def _report(
    rounds: Rounds, engine: Engine, batch: int, context: int, gemms: Gemms, options: Options
) -> Report:
    host_target = TARGET_HOST_S + batch * TARGET_HOST_S_PER_REQUEST
    ratio, host = spread(rounds.ratio), spread(rounds.host_s)
    parts = {"model": spread(rounds.model_s), "attention": spread(rounds.attention_s)}
    parts["sampling"] = spread(rounds.sampling_s)
    iteration, gemms_s, kv_read = spread(rounds.iteration_s), spread(rounds.gemm_s), spread(rounds.kv_read_s)
    bandwidth, layers = spread(rounds.bandwidth), len(engine.core.conversion.attentions)
    kv_bytes = batch * context * engine.core.arena.shape.token_bytes
    threads = {"model": torch.get_num_threads(), "attention": _worker(engine).native.threads}
    ratio_met, host_met = ratio.median <= TARGET_RATIO, host.median <= host_target
    facts = {
        "benchmark": "engine",
        "batch": batch,
        "context": context,
        "layers": layers,
        "gemm_parameters": gemms.parameters,
        "kv_bytes": kv_bytes,
        "threads": threads,
        "options": options,
        "gomp_spincount": os.environ.get("GOMP_SPINCOUNT"),
        "rounds": len(rounds.ratio),
        "iteration_s": iteration,
        "of_which": {f"{name}_s": took for name, took in (parts | {"host": host}).items()},
        "gemms_alone_s": gemms_s,
        "kv_read_s": kv_read,
        "read_bandwidth_bytes_per_s": bandwidth,
        "ratio": ratio,
        "target_ratio": TARGET_RATIO,
        "target_host_s": host_target,
        "ratio_met": ratio_met,
        "host_met": host_met,
        "met": ratio_met and host_met,
    }
    setting = (
        f"{layers} layers, {gemms.parameters / 1e6:,.0f} M parameters in matrix products, batch {batch}, "
        f"context {context:,}, {len(rounds.ratio)} rounds; threads: {threads['model']} for the model, "
        f"{threads['attention']} for attention; slices by {options.backend}, "
        f"{'with' if options.overlap else 'no'} overlap"
    )
    cells = [
        _cells("iteration", iteration),
        *(_cells(f"  {name}", took) for name, took in parts.items()),
        ("  host", *host.cells(ms_text), ms_text(host_target), host_met),
        _cells("the same GEMMs alone", gemms_s),
        _cells(f"{kv_bytes / 1e9:.2f} GB of KV at {bandwidth.median / 1e9:.1f} GB/s", kv_read),
        ("iteration / (GEMMs + KV)", *ratio.cells("{:.2f}".format), f"{TARGET_RATIO:.2f}", ratio_met),
    ]
    return Report(facts, [setting, Table(("<what", "median", "min to max", "target", ""), cells)])


def _cells(what: str, took: Spread) -> tuple[Cell, ...]:
    return (what, *took.cells(ms_text), "", "")
