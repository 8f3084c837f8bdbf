"""The engine in one process and vLLM's CUDA build on the same GPU, in alternating rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu_window.engine import BATCHES, CONTEXTS, MODEL, SHARE, decoded, opened
from lamina import gpu
from lamina.convert import convert
from lamina.pipeline.arenas import free_bytes
from lamina.pipeline.options import ModelFacts
from lamina.serve import Engine
from laminabench.baselines.environment import Kind, environment_of, find
from laminabench.bench.engine_vllm import Load, Turn, decoding
from laminabench.bench.frame import (
    QUIET,
    Report,
    Row,
    Table,
    Watcher,
    all_judged,
    in_turns,
    ms_text,
    ratios,
    spread,
)
from laminabench.calibrate.gpu_timing import slug
from laminabench.calibrate.models import config_of
from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.hardware import Device, device
from laminabench.systems.live.vllm.setup import TIMEOUT_S
from laminabench.util.errors import UserError

TARGET_RATIO = 1.0  # of vLLM's time over the engine's, at every batch
OUTPUT = 32  # tokens of each request in a turn
# vLLM is silent while it starts, for which it is given three times what is a sign that it hangs.
STARTS = 3

Decode = Callable[[Load], Turn]


def run(
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    rounds: int = 5,
    model: str = MODEL,
    on: str = "cuda",
    vllm_python: Path | None = None,
    seconds: float = math.inf,
    watcher: Watcher = QUIET,
) -> Report:
    """Measure decoding alone, both with made-up weights and KV, and each with half of the GPU's memory.

    Both are there at once, so that they can take turns: loads whose KV does not fit into a half next to the
    weights are left out, and so is what does not fit into `seconds`.
    """
    until_s = time.monotonic() + seconds
    kind: Kind = "cuda" if on == "cuda" else "cpu"
    try:
        named = f"--vllm is {vllm_python}"
        environment = environment_of(vllm_python, kind, named) if vllm_python else find(kind)
    except UserError as absent:
        return _report(model, 0, [Row({"skipped": str(absent)}, ("-", "-", str(absent), *"----"))], {})
    config = config_of(model)
    facts = ModelFacts.of(convert(config, torch.bfloat16))
    room = (free_bytes(gpu.tensors_on(on)) * SHARE / 2 - facts.weight_bytes) / facts.token_bytes
    loads = [
        Load(batch, max(1, context - OUTPUT // 2), OUTPUT, model) for context in contexts for batch in batches
    ]
    fit = [load for load in loads if _tokens(load) <= room]
    rows = [_left_out(load, f"{max(0, int(room)):,} tokens fit") for load in loads if load not in fit]
    if not fit:
        return _report(model, room, rows, {})
    refused: dict[str, str] = {}
    most = max(load.batch for load in fit), max(map(_tokens, fit))
    with opened(config, *most, on, "cudagraph" if kind == "cuda" else "python") as engine:
        left_s = max((until_s - time.monotonic()) / STARTS, 1.0)
        choices: dict[str, Any] = {"runner_timeout": min(left_s, TIMEOUT_S)} | _memory(on)
        with decoding(fit, _deployment(on), environment, **choices) as vllm:
            for done, load in enumerate(fit):
                watcher.progress(done, len(fit))
                why = "no time was left" if time.monotonic() > until_s else ""
                try:
                    rows.append(_left_out(load, why) if why else _measured(engine, vllm, load, rounds))
                except Exception as error:  # whatever it is: what was measured before is still worth having
                    refused[f"batch {load.batch}, prompts of {load.prompt}"] = str(error)
                    why = str(error).partition("\n")[0]
                    rows += [_left_out(left, why) for left in fit[done:]]
                    break
    return _report(model, room, rows, refused)


def _memory(on: str) -> dict[str, float]:
    """vLLM starts only where the share that it may use is free; its KV size is an argument."""
    if on != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"gpu_memory_utilization": SHARE * free / total}


def _deployment(on: str) -> Deployment:
    """Return the GPU at hand, whether the catalogue has it or not."""
    if on != "cuda":
        return Deployment(Workers(device("cpu"), 1))
    card, total = torch.cuda.get_device_name(), float(torch.cuda.mem_get_info()[1])
    here = Device(slug(card), card, {}, total, 0.0, 0.0, 0.0, None, "not modelled: it is here")
    return Deployment(Workers(here, 1))


def _tokens(load: Load) -> int:
    return load.batch * (load.prompt + load.output + 1)


def _turn(engine: Engine, load: Load) -> Turn:
    # The first step, which admits the requests, is not in the time, as of vLLM.
    return Turn(sum(decoded(engine, load.batch, load.prompt, load.output + 1)[0][1:]))


def _measured(engine: Engine, vllm: Decode, load: Load, rounds: int) -> Row:
    contenders = {"lamina": partial(_turn, engine, load), "vllm": partial(vllm, load)}
    in_turns(contenders, 1)  # not counted: graphs are captured, and vLLM starts
    turns = in_turns(contenders, rounds)
    seconds = {name: [turn.seconds / load.output for turn in taken] for name, taken in turns.items()}
    ratio = ratios(seconds["vllm"], seconds["lamina"])
    ours, theirs = (spread(seconds[name]) for name in contenders)
    facts = _facts(load) | {"iteration_s": ours, "vllm_iteration_s": theirs, "ratio": ratio}
    cells = (*_cells(load), *ours.cells(ms_text), ms_text(theirs.median), *ratio.cells("{:.2f}".format))
    return Row(facts | {"target_ratio": TARGET_RATIO}, cells, ratio.median >= TARGET_RATIO)


def _facts(load: Load) -> dict[str, object]:
    return {"batch": load.batch, "context": load.prompt + load.output // 2}


def _cells(load: Load) -> tuple[str, str]:
    return f"{load.prompt + load.output // 2:,}", f"{load.batch}"


def _left_out(load: Load, why: str) -> Row:
    return Row(_facts(load) | {"skipped": why}, (*_cells(load), why, *"----"))


def _report(model: str, room: float, rows: Sequence[Row], refused: Mapping[str, str]) -> Report:
    facts = {
        "benchmark": "gpu-vllm",
        "model": model,
        "kv_tokens_of_each": max(0, int(room)),
        "target_ratio": TARGET_RATIO,
        "refused": refused,
        "rows": rows,
        "met": all_judged([row.met for row in rows]),
    }
    head = f"{model}, bfloat16, decoding only; engine and vLLM have half of the GPU's memory each"
    titles = ("context", "batch", "iteration", "min to max", "vLLM's", "vLLM's / ours", "min to max")
    cells = [(*row.cells, row.met) for row in rows]
    return Report(facts, [head, Table((*titles, f"<target {TARGET_RATIO:g}"), cells)])
