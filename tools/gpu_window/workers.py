"""Attention separate from the model, on a GPU and on CPU cores: the same load by different layouts."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

import torch
import transformers

from lamina.cluster import Layout
from lamina.serve import Engine, Sampling
from laminabench.bench.frame import QUIET, Report, Row, Table, Watcher, spread
from laminabench.calibrate.models import config_of
from laminabench.util.child_environment import child_environment

# A model whose attention is a part that counts at the batches that a layout takes, and that loads in seconds.
MODEL = "llama-mini"
BATCHES, CONTEXT = (8, 64), 2048
WARM_UP = 4  # steps that are not counted
ROUNDS = 3
STARTED_S = 10.0  # for a daemon
MOST_CORES = 8  # for attention


def layouts(cores: int, device: str = "cuda", *, together: bool = False) -> Mapping[str, Layout | None]:
    """Return layouts by name; None is one process, the baseline, which comes first."""
    both = Layout(1, 1, model_on=device, attention_on=device, together=together, oversubscribe=True)
    attention = max(1, min(MOST_CORES, cores - 1))
    shared = Layout(1, attention, model_on=device, partition="requests", oversubscribe=True)
    return {
        "one process": None,
        f"model on the GPU, attention on {attention} cores": shared,
        "two on the GPU, in turn": replace(both, pipelining="serial", batches=None),
        "two on the GPU, rotational": both,
    }


def run(
    *,
    batches: Sequence[int] = BATCHES,
    context: int = CONTEXT,
    steps: int = 30,
    config: transformers.PreTrainedConfig | None = None,
    device: str = "cuda",
    seconds: float = math.inf,
    watcher: Watcher = QUIET,
) -> Report:
    """Measure decoding alone, with made-up weights and KV, each layout in an engine of its own.

    Two batches that take turns are measured twice: as many requests in all as of one batch, which gives each
    operator half the work a launch, and as many in each, which is what the paper compares.
    Two workers on the GPU are processes under MPS, which is started for this where it is there; without it,
    threads of one process.
    """
    config, until_s = config or config_of(MODEL), time.monotonic() + seconds
    rows: list[Row] = []
    refused: dict[str, str] = {}
    with mps() as shared:
        ways = layouts(len(os.sched_getaffinity(0)), device, together=not shared)
        for done, (way, layout) in enumerate(ways.items()):
            watcher.progress(done, len(ways))
            why = "no time was left" if time.monotonic() > until_s else ""
            if not why:
                try:
                    rows += _measured(config, way, layout, batches, context, steps, device)
                except Exception as error:  # whatever it is: the others are still worth having
                    refused[way] = f"{type(error).__name__}: {error}"
                    why = refused[way].partition("\n")[0]
            if why:
                rows.append(Row({"layout": way, "skipped": why}, (way, "-", why, "-")))
    facts = {"benchmark": "gpu-workers", "context": context, "mps": shared, "refused": refused, "rows": rows}
    head = f"context {context:,}; two on the GPU are {'processes, under MPS' if shared else 'threads of one'}"
    table = Table(("<layout", "batch", "tokens/s", "min to max"), [row.cells for row in rows])
    return Report(facts, [head, table])


def _measured(
    config: transformers.PreTrainedConfig,
    way: str,
    layout: Layout | None,
    batches: Sequence[int],
    context: int,
    steps: int,
    device: str,
) -> list[Row]:
    sizes = sorted({*batches, *(2 * batch for batch in batches if layout and layout.batches != 1)})
    engine = Engine(
        config,
        layout=layout,
        max_sequences=max(sizes),
        dtype=torch.bfloat16,
        load_format="dummy",
        decode_only=True,
        kv_tokens=max(sizes) * (context + steps),
        device="cpu" if layout else device,
        backend="cudagraph" if device == "cuda" else "python",
    )
    rows = []
    with engine:
        for batch in sizes:
            rate = spread([_rate(engine, batch, context, steps) for _ in range(ROUNDS)])
            facts = {"layout": way, "batch": batch, "tokens_per_s": rate}
            rows.append(Row(facts, (way, f"{batch}", *rate.cells(lambda one: f"{one:,.0f}"))))
    if layout is None and device == "cuda":  # what it held is the next layout's
        del engine
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def _rate(engine: Engine, batch: int, context: int, steps: int) -> float:
    """Measure the tokens a second of a batch that is decoded from first to last."""
    for _ in range(batch):
        engine.submit(max(1, context - steps // 2), Sampling(max_tokens=steps))
    made, started = 0, time.perf_counter()
    for step in range(WARM_UP + batch * steps):
        if engine.idle:
            break
        if step == WARM_UP:
            made, started = 0, time.perf_counter()
        made += engine.step().size
    return made / (time.perf_counter() - started)


@contextlib.contextmanager
def mps() -> Iterator[bool]:
    """Let processes share a GPU concurrently, if NVIDIA's daemon for it can be started."""
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        yield False
        return
    with TemporaryDirectory(prefix="laminabench-") as folder, contextlib.ExitStack() as after:
        named = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        before = {name: os.environ.get(name) for name in named}
        os.environ.update(named)
        after.callback(_restore, before)
        try:
            _control([program, "-d"])
        except (OSError, subprocess.SubprocessError):
            yield False
            return
        after.callback(_end, program)
        yield True


def _control(command: Sequence[str], text: bytes = b"") -> None:
    subprocess.run(
        command, input=text, env=child_environment(), check=True, capture_output=True, timeout=STARTED_S
    )


def _end(program: str) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _control([program], b"quit -t 3\n")  # clients that do not end are not waited for longer


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
