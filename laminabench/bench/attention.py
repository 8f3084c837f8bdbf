"""How fast decode attention reads its keys and values, beside how fast this machine can read at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lamina.attention.worker import TensorWorker
from lamina.kv import Arena, ArenaShape
from laminabench.bench.frame import (
    QUIET,
    Report,
    Row,
    Watcher,
    all_met,
    judged,
    ratios,
    rounds_for,
    seconds_of,
    spread,
)

TARGET_SHARE = 0.8
BATCH = 16
FEWEST_ROUNDS = 5
JUDGED_ORDERS = ("consecutive", "interleaved")
ORDERS = (*JUDGED_ORDERS, "random")


@dataclass(frozen=True)
class Case:
    """One model's heads and one type of numbers; what the target speaks of is bfloat16."""

    name: str
    heads: int
    kv_heads: int
    dtype: torch.dtype
    head_dim: int = 128
    latent: int = 0

    @property
    def arena(self) -> ArenaShape:
        return ArenaShape(1, self.kv_heads, self.head_dim, self.dtype, self.latent)

    @property
    def token_flops(self) -> int:
        """Multiplications and additions of all heads with one token's key and value."""
        return 2 * self.heads * (self.head_dim + (self.latent or self.head_dim))


CASES = [
    *(
        Case(name, heads, kv_heads, dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        for name, heads, kv_heads in (("GQA 8", 64, 8), ("MHA", 32, 32))
    ),
    # DeepSeek-V3's, whole and of one of eight that share its heads.
    *(Case(f"MLA {heads}", heads, 1, torch.bfloat16, 576, 512) for heads in (128, 16)),
]


def run(seconds: float = 30.0, kv_bytes: int = 256 << 20, watcher: Watcher = QUIET) -> Report:
    """Measure every case for about `seconds` in all.

    One call attends for a batch of 16 requests of equal length to one layer's keys and values, `kv_bytes` of
    them, from queries to combined outputs. Requests that begin one after the other have consecutive slots;
    those that decode together have interleaved ones; random slots are the worst that reuse can lead to.

    What the machine can read is measured in each round right before attention, on the same memory and by the
    same threads, so that what else the machine does slows down both. Beside it, torch's attention is given
    the same keys and values as it would like them: gathered, [requests, heads, tokens, head_dim] each.

    Of a latent KV (MLA) a token's bytes are its one vector's, and many heads calculate with them: arithmetic
    takes longer than reading, so no share of what can be read is asked of it.
    """
    rows: list[Row] = []
    for done, case in enumerate(CASES):
        watcher.progress(done, len(CASES))
        setting = Setting(case, kv_bytes)
        rows += setting.measure(seconds / len(CASES))
    isa, threads = setting.worker.native.isa, setting.worker.native.threads
    facts = {
        "benchmark": "attention",
        "target_share": TARGET_SHARE,
        "isa": isa,
        "threads": threads,
        "rows": rows,
        "met": all_met(rows),
    }
    speeds = ("GFLOP/s", "attention GB/s", "memory GB/s", "share", "min to max", "torch GB/s")
    table = judged(("<heads", "<numbers", "<slots", *speeds, f"<target {TARGET_SHARE:.0%}"), rows)
    size = f"{setting.kv_bytes / 1e6:,.0f} MB of keys and values"
    return Report(
        facts, [table, f"{threads} threads, {isa}; {BATCH} requests, {size}, head_dim 128 (MLA: 576 and 512)"]
    )


class Setting:
    """A worker with its arena filled, and the same keys and values as torch would like them."""

    def __init__(self, case: Case, kv_bytes: int) -> None:
        self.case = case
        self.tokens = max(1, kv_bytes // (case.arena.token_bytes * BATCH))
        self.slots = BATCH * self.tokens
        self.kv_bytes = self.slots * case.arena.token_bytes
        self.arena = Arena(case.arena, self.slots)
        self.arena.fill()
        self.stored = self.arena.spaces[0].storage[0]  # [slot][K or V][kv_head][dim]
        self.q = torch.randn(BATCH, case.heads, case.head_dim).to(case.dtype)
        self.kv = torch.randn(case.arena.vectors, BATCH, case.kv_heads, case.head_dim).to(case.dtype)
        self.worker = TensorWorker(case.dtype, case.heads, case.kv_heads, case.head_dim, case.latent)
        keys, values = self.arena.keys(0), self.arena.values(0)
        self.layer = self.worker.add_layer(keys, values, scale=case.head_dim**-0.5)

    def measure(self, seconds: float) -> list[Row]:
        """A row for each order of slots, of bytes of keys and values a second."""
        torchs, read = self.torchs_attention(), self.worker.native.read_bandwidth
        speeds: dict[str, list[tuple[float, ...]]] = {order: [] for order in ORDERS}
        torchs()
        for _ in rounds_for(seconds, FEWEST_ROUNDS):
            sdpa = self.kv_bytes / seconds_of(torchs)
            # Not counted: torch's threads spin for some milliseconds after their work.
            read(self.stored.data_ptr(), self.kv_bytes)
            for order, of_order in speeds.items():
                self.worker.plan_lists(np.arange(BATCH + 1) * self.tokens, slots_in(order, self.slots))
                memory = read(self.stored.data_ptr(), self.kv_bytes)
                took_s = seconds_of(lambda: self.worker.run(self.layer, self.q, *self.kv))
                of_order.append((self.kv_bytes / took_s, memory, sdpa))
        return [self._row(order, of_order) for order, of_order in speeds.items()]

    def _row(self, order: str, rounds: Sequence[tuple[float, ...]]) -> Row:
        case, by_kind = self.case, list(zip(*rounds, strict=True))
        judged = case.dtype is torch.bfloat16 and order in JUDGED_ORDERS and not case.latent
        share, dtype = ratios(*by_kind[:2]), str(case.dtype).removeprefix("torch.")
        ours, memory, sdpa = map(spread, by_kind)
        flops_per_byte = case.token_flops / case.arena.token_bytes
        flops = spread([speed * flops_per_byte for speed in by_kind[0]])
        facts = {
            "case": case.name,
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "latent": case.latent,
            "dtype": dtype,
            "order": order,
            "batch": BATCH,
            "tokens_each": self.tokens,
            "kv_bytes": self.kv_bytes,
            "attention_bytes_per_s": ours,
            "attention_flops_per_s": flops,
            "bandwidth_bytes_per_s": memory,
            "sdpa_bytes_per_s": sdpa,
            "share": share,
            "rounds": len(rounds),
            "judged": judged,
        }
        speeds = [f"{speed.median / 1e9:.3g}" for speed in (ours, memory, sdpa)]
        shares = share.cells("{:.0%}".format)
        cells = (case.name, dtype, order, f"{flops.median / 1e9:.0f}", *speeds[:2], *shares, speeds[2])
        return Row(facts, cells, share.median >= TARGET_SHARE if judged else None)

    def torchs_attention(self) -> Callable[[], Tensor]:
        case = self.case
        by_request = self.stored.view(BATCH, self.tokens, -1, case.kv_heads, case.head_dim)
        gathered = by_request.permute(2, 0, 3, 1, 4).contiguous()
        if case.latent:  # all heads as queries of the one KV head, which torch would otherwise copy for each
            k, v = gathered[0], gathered[0, ..., : case.latent].contiguous()
            return lambda: scaled_dot_product_attention(self.q[:, None], k, v)
        k, v = gathered
        q = self.q[:, :, None]
        return lambda: scaled_dot_product_attention(q, k, v, enable_gqa=case.heads != case.kv_heads)


def slots_in(order: str, count: int) -> NDArray[np.int32]:
    """The slots of the batch's requests, one request after the other."""
    slots = np.arange(count, dtype=np.int32)
    if order == "interleaved":
        return np.ascontiguousarray(slots.reshape(-1, BATCH).T).reshape(-1)
    if order == "random":
        np.random.default_rng(0).shuffle(slots)
    return slots
