"""Share of a GPU's copy bandwidth that decode attention reaches, here and in other implementations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpu_window.attention_others import OTHERS, WORKSPACE_BYTES, Tensors, installed
from laminabench.bench.frame import (
    QUIET,
    Report,
    Row,
    Table,
    Watcher,
    all_judged,
    in_turns,
    ratios,
    spread,
)
from laminabench.calibrate.gpu_timing import copy_bandwidth, gpu_seconds, require_gpu

if TYPE_CHECKING:
    from torch import Tensor

TARGET_SHARE = 0.9
TARGET_RATIO = 1.0  # of the fastest other's time over ours
JUDGED_BATCH, JUDGED_CONTEXT = 20, 4096  # the target speaks of these and more
HEAD_DIM = 128
HEADS = {"gqa-8": (64, 8), "mha": (64, 64)}  # LLaMA3-70B's, LLaMA-65B's
WAYS = ("lamina", *OTHERS)


@dataclass(frozen=True)
class Shape:
    """One decode step's attention in one layer."""

    kind: str
    batch: int
    context: int

    @property
    def heads(self) -> tuple[int, int]:
        return HEADS[self.kind]

    @property
    def kv_bytes(self) -> int:
        return self.batch * self.context * self.heads[1] * HEAD_DIM * 2 * 2

    @property
    def judged(self) -> bool:
        return self.batch >= JUDGED_BATCH and self.context >= JUDGED_CONTEXT

    def facts(self) -> dict[str, object]:
        heads, kv_heads = self.heads
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": HEAD_DIM}
        load = {"batch": self.batch, "context": self.context, "kv_bytes": self.kv_bytes}
        return {"kind": self.kind, **sizes, **load, "judged": self.judged}

    def cells(self) -> tuple[str, ...]:
        return self.kind, f"{self.batch}", f"{self.context:,}"


def run(
    batches: Sequence[int] = (20, 64, 256),
    contexts: Sequence[int] = (4096, 8192, 32768),
    rounds: int = 15,
    seconds: float = math.inf,
    watcher: Watcher = QUIET,
) -> Report:
    """Measure every shape that fits into the GPU's memory, in bf16, and into `seconds`.

    `lamina` is what a layer pays: begin() and finish() of the worker, over tokens scattered at random in the
    arena, which is the worst a token-granular arena can come to. The others, torch's and, where they are
    installed, FlashAttention's and FlashInfer's, read tensors that lie as they like them best. They take
    turns, round by round. Bandwidth is the bytes of K and V over the time, and its share is of what copying a
    gibibyte reaches, reads and writes counted. Medians are judged: the share, and the time over that of the
    fastest other.
    """
    require_gpu()
    import torch

    until_s = time.monotonic() + seconds
    missing = {name: "it is not installed" for name in OTHERS if not installed(name)}
    copy = spread([copy_bandwidth() for _ in range(rounds)])
    shapes = [Shape(kind, batch, context) for kind in HEADS for batch in batches for context in contexts]
    rows = []
    for done, shape in enumerate(shapes):
        watcher.progress(done, len(shapes))
        late = time.monotonic() > until_s
        rows.append(_left_out(shape, "no time was left") if late else _measure(shape, rounds, copy.median))
        torch.cuda.empty_cache()
    device = torch.cuda.get_device_name()
    facts = {
        "benchmark": "attention-cuda",
        "device": device,
        "copy_bandwidth_bytes_per_s": copy,
        "target_share": TARGET_SHARE,
        "target_ratio": TARGET_RATIO,
        "missing": missing,
        "rows": rows,
        "met": all_judged([row.met for row in rows]),
    }
    head = f"{device}, which copies {copy.median / 1e9:,.0f} GB/s; bfloat16, slots at random"
    titles = ("<kind", "batch", "context", *(f"{way}, share of it" for way in WAYS), "over the fastest other")
    # The last cell is the verdict, or why a shape was skipped.
    cells = [(*row.cells, str(row.facts["skipped"]) if "skipped" in row.facts else row.met) for row in rows]
    table = Table((*titles, f"<target {TARGET_SHARE:.0%}, {TARGET_RATIO:g}"), cells)
    return Report(facts, [head, table, *(f"{name}: {why}" for name, why in missing.items())])


def _left_out(shape: Shape, why: str) -> Row:
    return Row(shape.facts() | {"skipped": why}, (*shape.cells(), *("-" for _ in WAYS), "-"))


def _measure(shape: Shape, rounds: int, copy_bandwidth: float) -> Row:
    import torch

    free, _ = torch.cuda.mem_get_info()
    # In our arena, as torch's ways want it, as others do where they are, and something to work with.
    times = 2.2 + any(map(installed, ("flash-attn", "flashinfer")))
    if times * shape.kv_bytes + (1 << 30) + WORKSPACE_BYTES > free:
        why = f"it takes {times * shape.kv_bytes / 1e9:.0f} GB and {free / 1e9:.0f} GB are free"
        return _left_out(shape, why)
    contenders, refused = _contenders(shape)
    for call in contenders.values():
        gpu_seconds(call)  # the first calls are slower, and not counted
    calls = {name: partial(gpu_seconds, call) for name, call in contenders.items()}
    return measured(shape, in_turns(calls, rounds), copy_bandwidth, refused)


def measured(
    shape: Shape,
    seconds: Mapping[str, Sequence[float]],
    copy_bandwidth: float,
    refused: Mapping[str, str],
) -> Row:
    """Return the measurements of each implementation."""
    bandwidths = {name: spread([shape.kv_bytes / took for took in times]) for name, times in seconds.items()}
    shares = {name: bandwidth.median / copy_bandwidth for name, bandwidth in bandwidths.items()}
    others = [name for name in seconds if name != "lamina"]
    fastest = max(others, key=shares.__getitem__, default=None)
    ratio = ratios(seconds[fastest], seconds["lamina"]) if fastest else None
    facts = shape.facts() | {
        "seconds": {name: spread(times) for name, times in seconds.items()},
        "bandwidth_bytes_per_s": bandwidths,
        "share": shares,
        "refused": refused,
        "fastest_other": fastest,
        "ratio": ratio,
    }
    shown = (f"{shares[way]:.0%}" if way in shares else "-" for way in WAYS)
    met = shares["lamina"] >= TARGET_SHARE and (ratio is None or ratio.median >= TARGET_RATIO)
    cells = (*shape.cells(), *shown, f"{ratio.median:.2f}" if ratio else "-")
    return Row(facts, cells, met if shape.judged else None)


def _contenders(shape: Shape) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Return the ways to do the same attention, and those that are refused here, with the reason."""
    import torch

    tensors = Tensors(shape.batch, shape.context, *shape.heads, HEAD_DIM)
    others: dict[str, Callable[[], object]] = {}
    refused = {}
    for name, other in OTHERS.items():
        if not installed(name):
            continue
        try:
            call = other(tensors)
            call()
            torch.cuda.synchronize()
            others[name] = call
        except Exception as error:  # whatever it is, the others are still worth measuring
            refused[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return {"lamina": _lamina(shape, tensors.q), **others}, refused


def _lamina(shape: Shape, q: Tensor) -> Callable[[], object]:
    """Begin and finish of one layer, planned once, as in a decode step."""
    import torch

    from lamina.attention.cuda import CudaAttentionWorker
    from lamina.attention.heads import AttentionLayer

    heads, kv_heads = shape.heads
    tokens = shape.batch * shape.context
    arena = torch.randn((tokens, 2, kv_heads, HEAD_DIM), device="cuda", dtype=torch.bfloat16)
    worker = CudaAttentionWorker(
        torch.bfloat16, heads, kv_heads, HEAD_DIM, max_batch=shape.batch, max_tokens=[tokens]
    )
    layer = worker.add_layer(AttentionLayer(arena[:, 0], arena[:, 1], 1 / math.sqrt(HEAD_DIM)))
    slots = np.random.default_rng(0).permutation(tokens).astype(np.int32)
    worker.plan_lists(np.arange(shape.batch + 1, dtype=np.int64) * shape.context, slots)
    new = torch.randn((shape.batch, kv_heads, HEAD_DIM), device="cuda", dtype=torch.bfloat16)
    return lambda: worker.run(layer, q, new, new)
