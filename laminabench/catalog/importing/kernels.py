"""Experts, latent KV, other attention and what ranks exchange, of aiconfigurator's tables of a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_keys import (
    AttentionKey,
    CollectiveKey,
    DispatchKey,
    DtypeKey,
    ExpertsKey,
    LatentKey,
    LinesKey,
)
from laminabench.catalog.cost_terms import (
    AttentionCost,
    GemmCost,
    Origin,
)
from laminabench.catalog.fitting import formulas, mixtures
from laminabench.catalog.fitting.mixtures import EXPERTS
from laminabench.catalog.fitting.samples import FULL, AttentionKind, Samples
from laminabench.catalog.importing.columns import MOST_KINDS
from laminabench.catalog.importing.curves import DEGREES, curve
from laminabench.catalog.importing.tables import GpuTables
from laminabench.catalog.importing.vllm_mixtures import (
    deepep_dispatch,
    latent_kernel,
    masked_experts,
    nccl_collective,
    vllm_batched,
    vllm_experts,
    vllm_latent,
    vllm_latent_prompts,
)
from laminabench.catalog.importing.vllm_tables import vllm_attention, vllm_decode, vllm_prompt_attention
from laminabench.catalog.kernels import load_kernels
from laminabench.catalog.models import DTYPE_BYTES

# Heads of 128 and of 64 (gpt-oss), KV in fp8, and the windows of gpt-oss and Llama-4.
KINDS = tuple(
    AttentionKind(head_dim, kv_dtype, window)
    for head_dim, window in ((128, 0), (64, 0), (64, 128), (128, 8192))
    for kv_dtype in ("bf16", "fp8")
)
EXPERT_DTYPES = ("bf16", "fp8", "fp8_block", "int4", "mxfp4", "nvfp4")
# Experts in fp8 by tensor take 2 to 5 times as long in vLLM 0.24 as before and after, on these.
SLOW_FP8 = ("h100", "h200")
MAX_SPLIT, MAX_EXPERT_RANKS = 8, 64  # of measured experts: ranks within a node, and over nodes
COLLECTIVES = ("all_gather", "reduce_scatter", "alltoall")
NODES = (1, 2, 4, 8)
# Kernels of decode attention by framework, and the share of FLOPS from which on computing binds them.
DECODE, COMPUTING_BINDS = {"sglang": "fa3-128"}, 0.7
FLASHMLA_ROWS = 64  # of a tile of the decode kernel over a latent KV
MOST_ERROR = 50.0  # in percent, of a fit that is of use
# GPUs of a node in these tables, where its fast links reach farther.
NODE_RANKS = {"gb200": 4}


@dataclass(slots=True)
class Kernels:
    """All of it, by the names that `CostSet` and `Measured` have for it."""

    terms: defaultdict[str, Any] = field(default_factory=lambda: defaultdict(dict))
    measured: defaultdict[str, Any] = field(default_factory=lambda: defaultdict(dict))

    def read(self, of: GpuTables, attention: AttentionCost, gemm: GemmCost) -> None:
        """Import all tables of the GPU; `attention` and `gemm` are its own, in bf16."""
        self._attention(of)
        self._experts(of)
        self._latent(of, attention, gemm)
        self._exchanges(of)

    def _attention(self, of: GpuTables) -> None:
        name = of.device.name
        if table := of.newest("attention", "generation_attention"):
            for kind in KINDS:
                if kind != FULL and len(samples := vllm_attention(table, kind)):
                    cost = formulas.decode_attention(of.device, samples, of.source(table), kind)
                    cost = in_tiles(cost, of, kind.kv_dtype)
                    self.terms["attention_of"][AttentionKey(name, *kind)] = cost
                self._lines(of, table, kind)
        if table := of.newest("attention", "context_attention"):
            for kind in KINDS[1:]:
                if len(samples := vllm_prompt_attention(table, kind)):
                    prompts = formulas.prompt_attention(of.device, samples, of.source(table), kind)
                    self.terms["prompt_attention_of"][AttentionKey(name, *kind)] = prompts

    def _lines(self, of: GpuTables, table: Path, kind: AttentionKind) -> None:
        samples = vllm_decode(table, kind)
        # Below, the shortest time that there is hides what a token adds; a window is short itself.
        samples = samples.where(samples["step"] >= (1 if kind.window else 256))
        origin = Origin("measured", of.source(table), "context 256-131072")
        for heads, kv_heads in _pairs(samples, "heads", "kv_heads"):
            part = samples.where((samples["heads"] == heads) & (samples["kv_heads"] == kv_heads))
            lines = mixtures.attention_lines(part, origin)
            token = 2 * kv_heads * kind.head_dim * DTYPE_BYTES[kind.kv_dtype]
            largest = token * (part["batch"] * part["context"]).max()
            if lines and largest >= 4 * formulas.CACHE_BYTES.get(of.device.name, 0.0):
                self.measured["lines"][LinesKey(of.device.name, heads, kv_heads, *kind)] = lines

    def _experts(self, of: GpuTables) -> None:
        name, table = of.device.name, of.newest("moe", "moe")
        if table is None:
            return
        for dtype in EXPERT_DTYPES:
            if dtype == "fp8" and name in SLOW_FP8:
                continue
            samples = vllm_experts(table, dtype)
            if len(samples):
                self.terms["experts"][DtypeKey(name, dtype)] = mixtures.experts(
                    of.device, dtype, samples, of.source(table)
                )
                self._curves(of, dtype, samples, of.source(table))
        if wide := of.newest("moe", "wideep_generation_moe", "sglang"):
            cost = mixtures.masked_experts(of.device, "fp8_block", masked_experts(wide), of.source(wide))
            self.terms["masked_experts"][DtypeKey(name, "fp8_block")] = cost
        if name in SLOW_FP8 and (stands := self.terms["experts"].get(DtypeKey(name, "fp8_block"))):
            source = f"fp8 by blocks stands for fp8 by tensor, whose rows are slow: {stands.origin.source}"
            origin = Origin("assumed", source, stands.origin.range)
            self.terms["experts"][DtypeKey(name, "fp8")] = replace(stands, origin=origin)

    def _curves(self, of: GpuTables, dtype: str, samples: Samples, source: str) -> None:
        origin = Origin("measured", f"{source}; skewed loads, the busiest rank")
        names = (*EXPERTS, "tp", "ep")
        for key in _pairs(samples, *names):
            experts = ExpertsKey(of.device.name, dtype, *key)
            if experts.tp > MAX_SPLIT or experts.ep > MAX_EXPERT_RANKS:
                continue
            same = [samples[column] == value for column, value in zip(names, key, strict=True)]
            part = samples.where(np.logical_and.reduce(same))
            if len(part) < 3:
                continue  # a kernel that failed for most sizes
            order = np.argsort(part["rows"])
            self.measured["experts"][experts] = curve(part["rows"][order], part.seconds[order], origin)

    def _latent(self, of: GpuTables, attention: AttentionCost, gemm: GemmCost) -> None:
        on, overhead = of.device, attention.overhead_s
        if table := of.newest("mla", "mla_generation_module"):
            source = (
                f"{of.source(table)}: the module less itself at 16 tokens of context and less; "
                "overhead: that of attention with heads of 128"
            )
            for kv_dtype in ("bf16", "fp8"):
                samples = vllm_latent(table, kv_dtype)
                if not len(samples):
                    continue
                cost = mixtures.latent(on, kv_dtype, overhead, samples, source)
                self.terms["latent"][DtypeKey(on.name, kv_dtype)] = cost
                origin = Origin("measured", source, "context 256-131072")
                for (heads,) in _pairs(samples, "heads"):
                    part = samples.where(samples["heads"] == heads)
                    terms = cost.terms(on, heads, kv_dtype)
                    if lines := mixtures.latent_lines(part, terms, origin):
                        self.measured["latent"][LatentKey(on.name, heads, kv_dtype)] = lines
        elif table := of.newest("mla", "generation_mla"):
            source = f"{of.source(table)}: the kernel alone"
            self.terms["latent"][DtypeKey(on.name, "bf16")] = mixtures.latent(
                on, "bf16", 0.0, latent_kernel(table), source, FLASHMLA_ROWS
            )
        if table := of.newest("mla", "context_mla"):
            source, samples = f"{of.source(table)}: the kernel alone", vllm_latent_prompts(table)
            prompts = mixtures.latent_prompts(on, 0.0, lambda *_: 0.0, samples, source)
            self.terms["latent_prompts"][on.name] = prompts
        if table := of.newest("mla", "mla_context_module"):

            def projections(heads: float, rows: float) -> float:
                # Of DeepSeek-V3: to both latents, to queries, to keys and values, and back.
                shapes = ((2112, 7168), (heads * 192, 1536), (heads * 256, 512), (7168, heads * 128))
                return float(sum(gemm.seconds(on, rows, n, k) for n, k in shapes))

            source = f"{of.source(table)}: the module less its projections by the formula of GEMMs"
            prompts = mixtures.latent_prompts(on, overhead, projections, vllm_latent_prompts(table), source)
            if prompts.origin.errors["held_out_op"] <= MOST_ERROR:
                self.terms["latent_prompts"][on.name] = prompts
        if table := of.newest("mla_bmm", "mla_bmm"):
            self.terms["batched"][on.name] = mixtures.batched(on, vllm_batched(table), of.source(table))

    def _exchanges(self, of: GpuTables) -> None:
        on = of.device
        if table := of.newest("comm", "nccl", "nccl"):
            for op in COLLECTIVES:
                for degree in DEGREES:
                    if len(samples := nccl_collective(table, op, degree)):
                        cost = mixtures.collective(on, degree, samples, of.source(table))
                        self.terms["collectives"][CollectiveKey(on.name, op, degree)] = cost
        # Not every version was measured between nodes.
        for table in reversed(of.versions("comm", "wideep_deepep_ll", "sglang")):
            for op in ("dispatch", "combine"):
                for nodes in NODES:
                    if len(samples := deepep_dispatch(table, op, nodes)):
                        source = f"{of.source(table)}, DeepEP's low-latency kernels"
                        ranks = NODE_RANKS.get(on.name, 0) * nodes
                        self.terms["dispatch"][DispatchKey(on.name, op, nodes)] = mixtures.dispatch(
                            samples, source, ranks
                        )


def in_tiles(cost: AttentionCost, of: GpuTables, kv_dtype: str = "bf16") -> AttentionCost:
    """Return a fit to bandwidth as one to the FLOPS of whole tiles where these bind the kernel."""
    if of.framework not in DECODE:
        return cost
    row, on = load_kernels()[DECODE[of.framework]].rows["any", kv_dtype], of.device
    per_byte = 2 * row["tile_rows"] / DTYPE_BYTES[kv_dtype]
    share = per_byte * cost.bandwidth_efficiency * on.bandwidth_bytes_per_s / on.flops_for(kv_dtype)
    if share < COMPUTING_BINDS:
        return cost
    reading, rows = row["bandwidth_efficiency"], row["tile_rows"]
    return replace(cost, bandwidth_efficiency=reading, tile_rows=rows, flops_efficiency=share)


def _pairs(samples: Samples, *names: str) -> Iterable[tuple[int, ...]]:
    """Return the values of these columns that occur together."""
    pairs = set(zip(*(samples[name].astype(int).tolist() for name in names), strict=True))
    if len(pairs) > MOST_KINDS:
        raise ValueError(f"more than {MOST_KINDS:,} kinds of {' and '.join(names)}")
    return sorted(pairs)
