"""How much of the memory's read bandwidth decode attention reaches, beside torch's own attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.attention.worker import TensorWorker
from lamina.kv import Arena, ArenaShape
from laminabench.bench.timing import seconds_of, spread

TARGET_SHARE = 0.8
JUDGED_BYTES = 256 << 20  # far beyond any cache
JUDGED_BATCH = 8
HEAD_DIM = 128
HEADS = {"gqa-8": (32, 4), "mha": (16, 16)}  # query heads, KV heads
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ORDERS = ("consecutive", "interleaved", "random")

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Case:
    """One layer's attention: for whom, and how the tokens lie in the arena."""

    kind: str
    dtype: str
    batch: int
    order: str
    nbytes: int

    @property
    def shape(self) -> ArenaShape:
        return ArenaShape(1, HEADS[self.kind][1], HEAD_DIM, DTYPES[self.dtype])

    @property
    def context(self) -> int:
        return math.ceil(self.nbytes / self.shape.token_bytes / self.batch)

    @property
    def judged(self) -> bool:
        """The target speaks of large KV and real batches; serving is done in bfloat16."""
        return self.dtype == "bfloat16" and self.batch >= JUDGED_BATCH and self.nbytes >= JUDGED_BYTES


def cases(nbytes: int) -> list[Case]:
    """What is judged, in every order; then the other number formats, in the order that decoding makes."""
    judged = [
        Case(kind, "bfloat16", batch, order, nbytes)
        for kind in HEADS
        for batch in (JUDGED_BATCH, 64)
        for order in ORDERS
    ]
    others = [
        Case(kind, dtype, JUDGED_BATCH, "interleaved", nbytes)
        for dtype in ("float16", "float32")
        for kind in HEADS
    ]
    return judged + others


def run(
    *,
    nbytes: int = JUDGED_BYTES,
    rounds: int = 9,
    threads: int = 0,
    progress: Progress = lambda done, total: None,
) -> dict[str, object]:
    """Every case, in turn with the bandwidth and with torch; the answer is ready for JSON.

    `lamina` is what a layer pays: begin() and finish() of the worker. The bandwidth is that of the worker's
    own threads reading the same arena from end to end. Torch reads keys and values that lie as it likes them
    best, [batch, KV heads, tokens, head_dim]. The share is judged round by round, by its median.
    """
    todo = cases(nbytes)
    rows = []
    for done, case in enumerate(todo):
        progress(done, len(todo))
        rows.append(measure(case, rounds, threads))
    progress(len(todo), len(todo))
    judged = [row["met"] for row in rows if row["met"] is not None]
    return {
        "benchmark": "attention",
        "head_dim": HEAD_DIM,
        "target_share": TARGET_SHARE,
        "rows": rows,
        "met": all(judged) if judged else None,
    }


def measure(case: Case, rounds: int, threads: int) -> dict[str, object]:
    """One case: rounds of bandwidth, lamina and torch, one after the other."""
    heads, kv_heads = HEADS[case.kind]
    shape = case.shape
    arena = Arena(shape, case.batch * case.context)
    arena.fill()
    worker = TensorWorker(shape.dtype, heads, kv_heads, HEAD_DIM, threads=threads)
    scale = HEAD_DIM**-0.5
    worker.add_layer(arena.keys(0), arena.values(0), scale=scale)
    worker.plan_lists(np.arange(case.batch + 1, dtype=np.int64) * case.context, slots_of(case))
    q = torch.randn(case.batch, heads, HEAD_DIM).to(shape.dtype)
    new = torch.randn(2, case.batch, kv_heads, HEAD_DIM).to(shape.dtype)
    storage = arena.storage
    nbytes = storage.numel() * storage.element_size()
    theirs = torch.randn(2, case.batch, kv_heads, case.context, HEAD_DIM).to(shape.dtype)

    def torch_attention() -> None:
        torch.nn.functional.scaled_dot_product_attention(
            q[:, :, None], theirs[0], theirs[1], scale=scale, enable_gqa=heads != kv_heads
        )

    def ours() -> None:
        worker.run(0, q, new[0], new[1])

    bandwidths, shares, ours_s, torch_s = [], [], [], []
    with torch.inference_mode():
        for round_ in range(rounds + 1):
            before = worker.native.read_bandwidth(storage.data_ptr(), nbytes)
            took = seconds_of(ours)
            # On both sides, because other users of the machine come and go.
            bandwidth = (before + worker.native.read_bandwidth(storage.data_ptr(), nbytes)) / 2
            torch_took = seconds_of(torch_attention)
            if round_ == 0:
                continue  # pages come in, threads wake
            bandwidths.append(bandwidth)
            ours_s.append(took)
            torch_s.append(torch_took)
            shares.append(nbytes / took / bandwidth)
    share = spread(shares)
    return {
        "kind": case.kind,
        "heads": heads,
        "kv_heads": kv_heads,
        "dtype": case.dtype,
        "batch": case.batch,
        "context": case.context,
        "order": case.order,
        "kv_bytes": nbytes,
        "isa": worker.native.isa,
        "threads": worker.native.threads,
        "read_bandwidth_bytes_per_s": spread(bandwidths),
        "lamina_s": spread(ours_s),
        "sdpa_s": spread(torch_s),
        "speedup_over_sdpa": spread([a / b for a, b in zip(torch_s, ours_s, strict=True)]),
        "share_of_bandwidth": share,
        "met": share["median"] >= TARGET_SHARE if case.judged else None,
    }


def slots_of(case: Case) -> NDArray[np.int32]:
    """The slots of each request, one request after the other."""
    number = np.arange(case.batch * case.context, dtype=np.int32)
    if case.order == "consecutive":  # prompts, as a fresh arena gives them
        return number
    if case.order == "interleaved":  # what decoding appends: a token for each request in turn
        return np.ascontiguousarray(number.reshape(case.context, case.batch).T).reshape(-1)
    return np.random.default_rng(0).permutation(number)  # an arena that has been in use for long
