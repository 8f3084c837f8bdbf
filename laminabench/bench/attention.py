"""Benchmark of decode attention: its rate of reading keys and values, compared with the machine's."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lamina.attention.cpu import TensorWorker
from lamina.attention.heads import AttentionLayer
from lamina.kv import Arena, ArenaShape, Slab
from lamina.kv.stored import KvDtype
from laminabench.baselines.environment import Environment, environment_of, find
from laminabench.bench.frame import (
    QUIET,
    Report,
    Row,
    Spread,
    Text,
    Watcher,
    all_judged,
    all_met,
    judged,
    ratios,
    rounds_for,
    seconds_of,
    spread,
)
from laminabench.systems.live.vllm.process import VllmEndedError, VllmProcess, variables
from laminabench.systems.live.vllm.setup import CPU_BLOCK
from laminabench.util.errors import UserError

TARGET_SHARE = 0.9
TARGET_OVER_VLLM = 1.5
BATCH = 16
FEWEST_ROUNDS = 5
JUDGED_ORDERS = ("consecutive", "interleaved")
ORDERS = (*JUDGED_ORDERS, "random")
PREFETCHES = ("none", "l1", "l2", "both", "short", "slots")
# The alternative to each default prefetch, to compare with.
OTHER = {"l1": "l2", "both": "short", "short": "both", "slots": "l2"}
LATENT_LESS = 16  # times less memory for MLA, which is bound by arithmetic


@dataclass(frozen=True)
class Case:
    """One model's heads and number formats; the targets are for bfloat16."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16
    latent: int = 0
    kv_dtype: KvDtype = "auto"

    @property
    def name(self) -> str:
        group = self.heads // self.kv_heads
        return f"MLA {group}" if self.latent else "MHA" if group == 1 else f"GQA {group}"

    @property
    def arena(self) -> ArenaShape:
        heads = self.kv_heads, self.head_dim
        return ArenaShape(1, *heads, self.dtype, self.latent, kv_dtype=self.kv_dtype)

    @property
    def token_flops(self) -> int:
        """Operations of all heads with one token's key and value."""
        return 2 * self.heads * (self.head_dim + (self.latent or self.head_dim))

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def rounded(self) -> bool:
        """Whether keys and values are stored in fewer bits than queries."""
        return self.kv_dtype != "auto"

    @property
    def numbers(self) -> str:
        return f"{self.dtype_name}, KV {self.kv_dtype}" if self.rounded else self.dtype_name

    @property
    def judged(self) -> bool:
        return self.dtype is torch.bfloat16 and not self.latent and not self.rounded


CASES = [
    *(Case(heads, kv_heads, 64) for heads, kv_heads in ((16, 16), (16, 4), (32, 4))),
    *(Case(heads, kv_heads, 128) for heads, kv_heads in ((32, 32), (32, 8), (64, 8))),
    *(
        Case(heads, kv_heads, 128, kv_dtype=kv_dtype)
        for kv_dtype in ("fp8", "int8")
        for heads, kv_heads in ((32, 32), (32, 8), (64, 8))
    ),
    *(
        Case(heads, kv_heads, 128, dtype)
        for dtype in (torch.float16, torch.float32)
        for heads, kv_heads in ((32, 32), (64, 8))
    ),
    # DeepSeek-V3's, complete and the share of one of eight attention workers.
    *(Case(heads, 1, 576, latent=512) for heads in (128, 16)),
]


def usual_kv_bytes() -> int:
    """Return a size larger than the caches, as far as the system reports them, so that memory is read."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    caches = [int(size.read_text().strip().removesuffix("K")) << 10 for size in sizes]
    return max(256 << 20, 2 * max(caches, default=0))


def run(
    seconds: float = 60.0,
    kv_bytes: int | None = None,
    vllm_python: Path | None = None,
    watcher: Watcher = QUIET,
) -> Report:
    """Measure every case for about `seconds` in all.

    One call attends for a batch of 16 requests of equal length to one layer's keys and values (`kv_bytes`),
    from queries to combined outputs. Requests admitted one by one have consecutive slots, those that decode
    together interleaved ones; random slots are the worst case after reuse.

    The machine's read rate is measured in each round right before attention, on the same memory and by the
    same threads, so that other load slows down both. The same rounds measure our kernel with the other
    prefetch, and vLLM's kernel, called directly in a process of vLLM's environment on a cache of the same
    size. torch's attention gets the same keys and values in its preferred layout: gathered, each [requests,
    heads, tokens, head_dim]. Where keys and values are rounded to a byte, our kernel on as many tokens in
    bfloat16 is measured instead.

    With a latent KV (MLA) many heads compute on a token's one vector: arithmetic takes longer than reading,
    so there is no target for its share of the read rate.
    """
    rows: list[Row] = []
    kv_bytes = kv_bytes or usual_kv_bytes()
    with contextlib.ExitStack() as stack:
        environment, why_not = vllm_environment(vllm_python)
        vllm = stack.enter_context(VllmKernel(environment)) if environment else None
        for done, case in enumerate(CASES):
            watcher.progress(done, len(CASES))
            setting = Setting(case, kv_bytes, vllm)
            rows += setting.measure(seconds / len(CASES))
    chosen, other = setting.chosen, setting.other
    isa, threads = setting.workers[chosen].native.isa, setting.workers[chosen].native.threads
    facts = {
        "benchmark": "attention",
        "target_share": TARGET_SHARE,
        "target_over_vllm": TARGET_OVER_VLLM,
        "isa": isa,
        "prefetch": chosen,
        "threads": threads,
        "vllm": environment.describe()["versions"] if environment else None,
        "rows": rows,
        "met": all_met(rows),
    }
    speeds = ("GFLOP/s", "GB/s", "memory", "share", "min to max", "x vLLM", f"x {other}", "x bf16", "torch")
    target = f"<{TARGET_SHARE:.0%}, {TARGET_OVER_VLLM:g} x"
    table = judged(("<heads", "<numbers", "<slots", *speeds, target), rows)
    size = f"{kv_bytes / 1e6:,.0f} MB of keys and values (MLA: a {LATENT_LESS}th)"
    text: list[Text] = [table, f"{threads} threads, {isa}; {BATCH} requests, {size}"]
    text.append(fetching(rows, chosen, other))
    return Report(facts, text if environment else [*text, f"no vLLM to compare with: {why_not}"])


def vllm_environment(python: Path | None) -> tuple[Environment | None, str]:
    """Return vLLM's environment, or None and the reason if there is none and the user named none."""
    if python:
        return environment_of(python, "cpu", f"--vllm is {python}"), ""
    try:
        return find("cpu"), ""
    except UserError as error:
        if error.code != "baseline-not-ready":
            raise
        return None, str(error)


def fetching(rows: Sequence[Row], chosen: str, other: str) -> Text:
    """Return a sentence on the prefetch and its gain."""
    over = [ratio for row in rows if isinstance(ratio := row.facts["over_other_prefetch"], Spread)]
    mean = statistics.geometric_mean([ratio.median for ratio in over])
    return f"fetches ahead by {chosen}: {mean:.2f} times as fast as by {other} (LAMINA_PREFETCH={other})"


class Setting:
    """Workers with a filled arena, and the same keys and values in torch's layout."""

    def __init__(self, case: Case, kv_bytes: int, vllm: VllmKernel | None = None) -> None:
        self.case = case
        kv_bytes //= LATENT_LESS if case.latent else 1
        self.tokens = max(1, kv_bytes // (case.arena.token_bytes * BATCH))
        self.slots = BATCH * self.tokens
        self.kv_bytes = self.slots * case.arena.token_bytes
        self.arena = Arena(case.arena, self.slots)
        self.arena.fill()
        self.stored = self.arena.spaces[0].storage[0]  # [slot][K or V][kv_head][dim]
        self.unrounded = self._unrounded() if case.rounded else None
        self.q = torch.randn(BATCH, case.heads, case.head_dim).to(case.dtype)
        self.kv = torch.randn(case.arena.vectors, BATCH, case.kv_heads, case.head_dim).to(case.dtype)
        self.chosen = self._worker("").native.prefetch
        self.other = OTHER.get(self.chosen, "l1")
        self.workers = {name: self._worker(name) for name in (self.chosen, self.other)}
        if self.unrounded:
            self.workers["unrounded"] = self._worker("", self.unrounded)
        self.vllm = None if case.latent or case.rounded else vllm

    def _unrounded(self) -> Arena:
        arena = Arena(replace(self.case.arena, kv_dtype="auto"), self.slots)
        arena.fill()
        return arena

    def _worker(self, prefetch: str, arena: Arena | None = None) -> TensorWorker:
        case, arena = self.case, arena or self.arena
        heads = case.heads, case.kv_heads, case.head_dim
        kv_dtype = arena.shape.kv_dtype
        worker = TensorWorker(case.dtype, *heads, case.latent, prefetch=prefetch, kv_dtype=kv_dtype)
        scale = case.head_dim**-0.5
        worker.add_layer(AttentionLayer(arena.keys(0), arena.values(0), scale, scales=arena.scales(0)))
        return worker

    def measure(self, seconds: float) -> list[Row]:
        """Return a row for each order of slots, in bytes of keys and values a second."""
        torchs = None if self.unrounded else self.torchs_attention()
        orders = {order: slots_in(order, self.slots) for order in ORDERS}
        measured: dict[str, list[dict[str, float]]] = {order: [] for order in ORDERS}
        # Once: it can take longer than everything else.
        sdpa = self.kv_bytes / seconds_of(torchs) if torchs else None
        if self.vllm:
            self.vllm.prepare(self.batch())
        for _ in rounds_for(seconds, FEWEST_ROUNDS):
            vllms = {"vllm": self.kv_bytes / self.vllm.seconds()} if self.vllm else {}
            # Not counted: vLLM's and torch's threads spin for some milliseconds after their work.
            self._read()
            for order, slots in orders.items():
                measured[order].append(self._round(slots) | vllms)
        return [self._row(order, rounds, sdpa) for order, rounds in measured.items()]

    def _round(self, slots: NDArray[np.int32]) -> dict[str, float]:
        """Return bytes a second of everything that takes turns."""
        speeds = {}
        for name, worker in self.workers.items():
            worker.plan_lists(np.arange(BATCH + 1) * self.tokens, slots)
            speeds[f"memory_{name}"] = self._read()
            speeds[name] = self.kv_bytes / seconds_of(partial(worker.run, 0, self.q, *self.kv))
        return speeds

    def _read(self) -> float:
        return self.workers[self.chosen].native.read_bandwidth(self.stored.data_ptr(), self.kv_bytes)

    def batch(self) -> dict[str, object]:
        """Return the batch as vLLM's process expects it."""
        case = self.case
        return {
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "dtype": case.dtype_name,
            "requests": BATCH,
            "tokens": self.tokens,
            "block": CPU_BLOCK,
        }

    def _row(self, order: str, rounds: Sequence[Mapping[str, float]], sdpa: float | None) -> Row:
        case, by_kind = self.case, {kind: [speeds[kind] for speeds in rounds] for kind in rounds[0]}
        speeds, memory = by_kind[self.chosen], by_kind[f"memory_{self.chosen}"]
        share = ratios(speeds, memory)
        over_other = ratios(speeds, by_kind[self.other])
        over_vllm = ratios(speeds, by_kind["vllm"]) if self.vllm else None
        # The bytes are equal, so a ratio of rates is one of times.
        over_bf16 = ratios(speeds, by_kind["unrounded"]) if self.unrounded else None
        flops_per_byte = case.token_flops / case.arena.token_bytes
        flops = spread([speed * flops_per_byte for speed in speeds])
        is_judged = case.judged and order in JUDGED_ORDERS
        share_met = share.median >= TARGET_SHARE if is_judged else None
        vllm_met = over_vllm.median >= TARGET_OVER_VLLM if is_judged and over_vllm else None
        facts = {
            "case": case.name,
            "heads": case.heads,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "latent": case.latent,
            "dtype": case.dtype_name,
            "kv_dtype": case.kv_dtype,
            "order": order,
            "batch": BATCH,
            "tokens_each": self.tokens,
            "kv_bytes": self.kv_bytes,
            "attention_bytes_per_s": spread(speeds),
            "attention_flops_per_s": flops,
            "bandwidth_bytes_per_s": spread(memory),
            "vllm_bytes_per_s": spread(by_kind["vllm"]) if self.vllm else None,
            "sdpa_bytes_per_s": sdpa,
            "share": share,
            "over_vllm": over_vllm,
            "over_other_prefetch": over_other,
            "over_unrounded": over_bf16,
            "rounds": len(rounds),
            "judged": is_judged,
            "share_met": share_met,
            "over_vllm_met": vllm_met,
        }
        heads = f"{case.heads}/{case.kv_heads} x {case.head_dim}"
        gigabytes = [f"{spread(kind).median / 1e9:.3g}" for kind in (speeds, memory)]
        torchs = f"{sdpa / 1e9:.3g}" if sdpa else ""
        ahead = [f"{ratio.median:.2f}" if ratio else "" for ratio in (over_vllm, over_other, over_bf16)]
        shares = share.cells("{:.0%}".format)
        cells = (heads, case.numbers, order, f"{flops.median / 1e9:.0f}", *gigabytes, *shares, *ahead)
        return Row(facts, (*cells, torchs), all_judged([share_met, vllm_met]))

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
    """Return the slots of the batch's requests, one request after the other."""
    if order == "interleaved":  # as the engine's allocator hands them out, step by step
        slab, requests = Slab(count), np.arange(BATCH)
        for request in range(BATCH):
            slab.allocate(request, 0)
        for _ in range(count // BATCH):
            slab.extend(requests)
        return np.concatenate([slab.indices(request) for request in range(BATCH)])
    slots = np.arange(count, dtype=np.int32)
    if order == "random":
        np.random.default_rng(0).shuffle(slots)
    return slots


# Enough to import vLLM, or to fill a cache of gigabytes.
_TIMEOUT_S = 120.0


class VllmKernel(contextlib.AbstractContextManager["VllmKernel"]):
    """The kernel on all cores that this process may use, with one batch ready at a time."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._stack = contextlib.ExitStack()
        self._process: VllmProcess | None = None
        self._lines: Iterator[dict[str, object]] = iter(())

    def prepare(self, batch: Mapping[str, object]) -> None:
        """Prepare a batch, replacing the previous one: the fields of `attention_kernel.Batch`."""
        if self._process is None:
            self._process = self._stack.enter_context(self._start(batch))
            self._lines = self._process.lines()
        else:
            self._process.again(batch)
        self._answer("ready")

    def seconds(self) -> float:
        """Return the seconds of one call."""
        assert self._process, "prepare() a batch first"
        self._process.again()
        seconds = self._answer("seconds")
        assert isinstance(seconds, float)
        return seconds

    def _start(self, batch: Mapping[str, object]) -> VllmProcess:
        temporary = tempfile.TemporaryDirectory(prefix="laminabench-vllm-", ignore_cleanup_errors=True)
        folder = Path(self._stack.enter_context(temporary))
        command = [str(self._environment.python), "-P", "-m", "attention_kernel"]
        given = variables(self._environment, sorted(os.sched_getaffinity(0)), 1, folder)
        return VllmProcess(command, given, batch, folder / "vllm.log", _TIMEOUT_S)

    def _answer(self, name: str) -> object:
        try:
            line = next(self._lines)
        except VllmEndedError as error:
            raise _cannot(str(error)) from error
        if name not in line:
            raise _cannot(f"{line.get('kind')}: {line.get('error')}")
        return line[name]

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _cannot(why: str) -> UserError:
    return UserError("bench-vllm-failed", f"vLLM's kernel cannot take part: {why}")
