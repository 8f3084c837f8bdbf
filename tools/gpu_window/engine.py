"""The engine in one process on a GPU: iterations compared with copying their bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import transformers

from lamina import gpu
from lamina.convert import convert
from lamina.pipeline.arenas import free_bytes
from lamina.pipeline.options import ModelFacts
from lamina.serve import Engine, Sampling, Step
from lamina.serve.local_core import LocalCore
from laminabench.bench.frame import QUIET, Report, Row, Table, Watcher, ms_text, spread
from laminabench.calibrate.gpu_timing import made_up
from laminabench.calibrate.models import config_of, users_load

MODEL = "llama3.1-8b"
BATCHES, CONTEXTS = (1, 4, 16, 64, 128, 256), (1024, 8192)
WARM_UP = 3  # iterations that are not counted: graphs are captured, requests admitted
# Of free memory, what weights and KV may take: the rest is for graphs, logits and what attention works with.
SHARE = 0.85


@dataclass(frozen=True)
class Load:
    """Number of requests, their mean tokens, and how iterations run."""

    way: str
    batch: int
    context: int

    def tokens(self, steps: int) -> int:
        return self.batch * (self.context + steps)

    def facts(self) -> dict[str, object]:
        return {"backend": self.way, "batch": self.batch, "context": self.context}

    def cells(self) -> tuple[str, ...]:
        return self.way, f"{self.context:,}", f"{self.batch}"


def run(
    bandwidth: float,
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    steps: int = 20,
    config: transformers.PreTrainedConfig | None = None,
    device: str = "cuda",
    seconds: float = math.inf,
    watcher: Watcher = QUIET,
) -> Report:
    """Measure decoding alone, with made-up weights and KV. `bandwidth`: bytes a second of a copy.

    On a GPU once by launches of Python, then by graphs of whole iterations. A load that does not fit into the
    memory or into `seconds` is left out, and says so. An iteration has to read its weights and its KV: what
    that takes at the copy's rate is its bound.
    """
    config, until_s = config or config_of(MODEL), time.monotonic() + seconds
    facts = ModelFacts.of(convert(config, torch.bfloat16))
    read_bytes = weight_bytes_read(config, facts)
    steps += WARM_UP
    room = (free_bytes(gpu.tensors_on(device)) * SHARE - facts.weight_bytes) / facts.token_bytes
    ways = ("python", "cudagraph") if device == "cuda" else ("python",)
    loads = [Load(way, batch, context) for way in ways for context in contexts for batch in batches]
    fit = [load for load in loads if load.tokens(steps) <= room]
    engine = None
    if fit:
        sizes = max(load.batch for load in fit), max(load.tokens(steps) for load in fit)
        engine = opened(config, *sizes, device, ways[-1])
    graphs = _core(engine).graphs if engine else None
    rows: list[Row] = []
    refused: dict[str, str] = {}
    for done, load in enumerate(loads):
        watcher.progress(done, len(loads))
        if engine is None or load not in fit:
            rows.append(_left_out(load, f"{max(0, int(room)):,} tokens fit"))
        elif time.monotonic() > until_s:
            rows.append(_left_out(load, "no time was left"))
        elif refused:
            rows.append(_left_out(load, "an earlier one failed"))
        else:
            _core(engine).graphs = graphs if load.way == "cudagraph" else None
            try:
                rows.append(_measured(engine, load, steps, read_bytes, facts.token_bytes, bandwidth))
            except Exception as error:  # whatever it is: what was measured before is still worth having
                refused[load.way] = f"{type(error).__name__}: {error}"
                rows.append(_left_out(load, refused[load.way].partition("\n")[0]))
    return _report(device, facts, read_bytes, bandwidth, rows, refused)


def weight_bytes_read(config: transformers.PreTrainedConfig, facts: ModelFacts) -> int:
    """Return the bytes of weights that decoding reads: without an embedding table that is not its last matrix
    too, of which an iteration reads a row for each request.
    """
    text = config.get_text_config()
    table = 0 if text.tie_word_embeddings else text.vocab_size * text.hidden_size * facts.dtype_bytes
    return facts.weight_bytes - table


def opened(
    config: transformers.PreTrainedConfig, batch: int, kv_tokens: int, device: str, backend: str
) -> Engine:
    """Open an engine in one process, for so many requests with so many tokens in all."""
    with users_load(f"batch {batch:,}, {kv_tokens:,} tokens of KV"):
        return Engine(
            made_up(config, device),
            max_sequences=batch,
            dtype=torch.bfloat16,
            decode_only=True,
            kv_tokens=kv_tokens,
            device=device,
            backend=backend,
        )


def decoded(engine: Engine, batch: int, prompt: int, output: int) -> tuple[list[float], list[Step]]:
    """Decode requests from first to last token: each iteration's seconds, and what it did."""
    sampling = Sampling(max_tokens=output, ignore_eos=True)
    numbers = [engine.submit(prompt, sampling) for _ in range(batch)]
    took, steps = [], []
    while not engine.idle:
        started = time.perf_counter()
        steps.append(engine.step())  # ends with its tokens on the host
        took.append(time.perf_counter() - started)
    for number in numbers:
        engine.result(number)
    return took, steps


def _core(engine: Engine) -> LocalCore:
    assert isinstance(engine.core, LocalCore)
    return engine.core


def _measured(
    engine: Engine, load: Load, steps: int, read_bytes: int, token_bytes: int, bandwidth: float
) -> Row:
    took, made = decoded(engine, load.batch, max(1, load.context - steps // 2), steps)
    counted = spread(took[WARM_UP:])
    bound_s = (read_bytes + made[len(made) // 2].kv_tokens * token_bytes) / bandwidth
    rate = load.batch / counted.median
    values = {
        **load.facts(),
        "iteration_s": counted,
        "host_s": spread([step.host_s for step in made[WARM_UP:]]),
        "tokens_per_s": rate,
        "bound_s": bound_s,
        "share": bound_s / counted.median,
    }
    cells = (*load.cells(), *counted.cells(ms_text), f"{rate:,.0f}")
    return Row(values, (*cells, ms_text(bound_s), f"{bound_s / counted.median:.0%}"))


def _left_out(load: Load, why: str) -> Row:
    return Row(load.facts() | {"skipped": why}, (*load.cells(), "-", why, "-", "-", "-"))


def _report(
    device: str,
    facts: ModelFacts,
    read_bytes: int,
    bandwidth: float,
    rows: Sequence[Row],
    refused: Mapping[str, str],
) -> Report:
    values = {
        "benchmark": "gpu-engine",
        "device": device,
        "model": MODEL,
        "weight_bytes": facts.weight_bytes,
        "weight_bytes_read": read_bytes,
        "kv_token_bytes": facts.token_bytes,
        "bandwidth_bytes_per_s": bandwidth,
        "refused": refused,
        "rows": rows,
    }
    head = (
        f"{read_bytes / 1e9:.1f} GB of weights that are read, {facts.token_bytes:,} bytes of KV a token; "
        f"bound: these bytes at {bandwidth / 1e9:,.0f} GB/s"
    )
    titles = ("<by", "context", "batch", "iteration", "min to max", "tokens/s", "bound", "bound / iteration")
    return Report(values, [head, Table(titles, [row.cells for row in rows])])
