"""Benchmark of one iteration of the engine, compared with its matrix products and reading its KV once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from lamina import threads
from lamina.attention.cpu import TensorWorker
from lamina.convert.packing import is_matrix, linear, sizes
from lamina.convert.slices import BoundSlice
from lamina.kv.stored import KvDtype
from lamina.serve import Engine, Sampling
from laminabench.bench.frame import QUIET, Cell, Report, Table, Watcher, in_turns, ms_text, spread
from laminabench.calibrate.models import mini_config, users_load

TARGET_RATIO = 1.25
TARGET_HOST_S = 1e-3
TARGET_HOST_S_PER_REQUEST = 5e-6
STEPS_PER_ROUND = 3
PARTS = ("model", "attention", "sampling")


@dataclass(frozen=True)
class Options:
    threads: int  # of the attention worker; 0: one per core
    backend: Literal["python", "torch", "aot"]
    overlap: bool
    kv_dtype: KvDtype = "auto"


def run(*, batch: int, context: int, rounds: int, options: Options, watcher: Watcher = QUIET) -> Report:
    """Measure iterations, their GEMMs alone and the memory's bandwidth, in turns.

    The target is for iteration / (GEMMs + KV bytes / bandwidth), round by round, so that noise affects both
    sides of the ratio.
    """
    with users_load(f"batch {batch:,}, context {context:,}, {rounds:,} rounds"):
        engine = _engine(batch, context, rounds, options)
        gemms = Gemms(engine.core.slices, engine.core.conversion.vocab_size, batch)
        engine.step()  # admits all requests, and touches all memory once
        gemms.seconds()
        measured = in_turns({"round": lambda: _round(engine, gemms)}, rounds, watcher.progress)["round"]
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
        kv_dtype=options.kv_dtype,
    )
    # The contexts reach the requested length in the middle of the run.
    for _ in range(batch):
        engine.submit(max(1, context - steps // 2), Sampling(max_tokens=steps))
    return engine


class Gemms:
    """The matrix products of slices, each with its own weight, with nothing between them."""

    def __init__(self, slices: Sequence[BoundSlice], vocab_size: int, rows: int) -> None:
        self._weights = [
            weight
            for piece in slices
            for weight in piece.weights
            # The embedding is looked up, not multiplied; the head is a product of the same shape.
            if is_matrix(weight) and not (sizes(weight)[0] == vocab_size and piece.index == 0)
        ]
        inputs = {sizes(weight)[1] for weight in self._weights}
        self._inputs = {size: torch.randn(rows, size).to(torch.bfloat16) for size in inputs}
        self.parameters = sum(weight.numel() for weight in self._weights)

    @torch.inference_mode()
    def seconds(self) -> float:
        started = time.perf_counter()
        for weight in self._weights:
            linear(self._inputs[sizes(weight)[1]], weight)
        return time.perf_counter() - started


def _worker(engine: Engine) -> TensorWorker:
    worker = engine.core.attention
    assert isinstance(worker, TensorWorker)
    return worker


def _round(engine: Engine, gemms: Gemms) -> dict[str, float]:
    """Return one round's measurements by name: seconds, the bandwidth of attention's threads, the ratio."""
    storage, steps, took = engine.core.arena.spaces[0].storage, [], []
    nbytes = storage.numel() * storage.element_size()
    bandwidth = _worker(engine).native.read_bandwidth(storage.data_ptr(), nbytes)
    gemm_s = gemms.seconds()
    for _ in range(STEPS_PER_ROUND):
        started = time.perf_counter()
        steps.append(engine.step())
        took.append(time.perf_counter() - started)
    iteration_s = statistics.median(took)
    kv_read_s = steps[len(steps) // 2].kv_tokens * engine.core.arena.shape.token_bytes / bandwidth
    return {
        **{
            part: statistics.median(getattr(step, f"{part}_s") for step in steps) for part in (*PARTS, "host")
        },
        "iteration": iteration_s,
        "gemms": gemm_s,
        "kv_read": kv_read_s,
        "bandwidth": bandwidth,
        "ratio": iteration_s / (gemm_s + kv_read_s),
    }


def _report(
    rounds: Sequence[Mapping[str, float]],
    engine: Engine,
    batch: int,
    context: int,
    gemms: Gemms,
    options: Options,
) -> Report:
    host_target = TARGET_HOST_S + batch * TARGET_HOST_S_PER_REQUEST
    took = {name: spread([each[name] for each in rounds]) for name in rounds[0]}
    ratio, host, bandwidth = took["ratio"], took["host"], took["bandwidth"]
    layers = len(engine.core.conversion.attentions)
    kv_bytes = batch * context * engine.core.arena.shape.token_bytes
    counts = {"model": torch.get_num_threads(), "attention": _worker(engine).native.threads}
    ratio_met, host_met = ratio.median <= TARGET_RATIO, host.median <= host_target
    facts = {
        "benchmark": "engine",
        "batch": batch,
        "context": context,
        "layers": layers,
        "gemm_parameters": gemms.parameters,
        "kv_bytes": kv_bytes,
        "threads": counts,
        "options": options,
        "gomp_spincount": threads.spins,
        "rounds": len(rounds),
        "iteration_s": took["iteration"],
        "of_which": {f"{name}_s": took[name] for name in (*PARTS, "host")},
        "gemms_alone_s": took["gemms"],
        "kv_read_s": took["kv_read"],
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
        f"context {context:,}, {len(rounds)} rounds; threads: {counts['model']} for the model, "
        f"{counts['attention']} for attention; slices by {options.backend}, "
        f"{'with' if options.overlap else 'no'} overlap"
    )
    kind = "" if options.kv_dtype == "auto" else f" in {options.kv_dtype}"
    reading = f"{kv_bytes / 1e9:.2f} GB of KV{kind} at {bandwidth.median / 1e9:.1f} GB/s"
    cells: list[tuple[Cell, ...]] = [
        ("iteration", *took["iteration"].cells(ms_text), "", ""),
        *((f"  {part}", *took[part].cells(ms_text), "", "") for part in PARTS),
        ("  host", *host.cells(ms_text), ms_text(host_target), host_met),
        ("the same GEMMs alone", *took["gemms"].cells(ms_text), "", ""),
        (reading, *took["kv_read"].cells(ms_text), "", ""),
        ("iteration / (GEMMs + KV)", *ratio.cells("{:.2f}".format), f"{TARGET_RATIO:.2f}", ratio_met),
    ]
    return Report(facts, [setting, Table(("<what", "median", "min to max", "target", ""), cells)])
