"""Read aiconfigurator's tables of experts, latent KV and what ranks exchange into arrays to fit to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.cost_terms import DISPATCH_BYTES, Float64
from laminabench.catalog.fitting.mixtures import EXPERTS, Experts
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.importing.columns import read_frame
from laminabench.catalog.importing.vllm_tables import CALLED, called, latency_s, samples_of
from laminabench.catalog.routing import skewed

if TYPE_CHECKING:
    import pandas as pd

# The loads of experts follow a power law of this exponent in the rows that are read.
SKEW = 1.2
# Of DeepSeek-V3 aiconfigurator itself takes another; its balanced rows are not balanced.
SKEWS: dict[Experts, float] = {(7168, 2048, 8, 256): 1.01}
# Nemotron's are not gated: two matrices instead of three.
UNGATED_HIDDEN, UNGATED_TOP_K = (1024, 2688), 22
MAX_TOKENS = 4096
FEWEST_CHOSEN = 4


def vllm_experts(path: Path, dtype: str) -> Samples:
    """Return the routed experts of a layer on the busiest rank, gated ones, by tokens of the whole group."""
    split = {"tp": "moe_tp_size", "ep": "moe_ep_size"}
    counts = ["num_tokens", *EXPERTS.values(), *split.values()]
    table = read_frame(path, text=["moe_dtype", "distribution"], counts=counts, times=["latency"])
    table = table[(table.moe_dtype == CALLED.get(dtype, dtype)) & (table.num_tokens <= MAX_TOKENS)]
    table = table[~table.hidden_size.isin(UNGATED_HIDDEN) & (table.topk != UNGATED_TOP_K)]
    names = {"rows": "num_tokens", **EXPERTS, **split}
    skews = [SKEWS.get(key, SKEW) for key in zip(*(table[name] for name in EXPERTS.values()), strict=True)]
    table = table.assign(skew=np.array(skews, np.float64))
    table = table[table.distribution == [f"power_law_{skew:g}" for skew in table["skew"]]]
    # A row for a kernel; where a version has two, the faster is what the server would choose.
    table = table.groupby([*names.values(), "skew"], as_index=False).latency.min()
    samples = samples_of(table, {**names, "skew": "skew"}, latency_s(table))
    active, pairs = _routing(samples)
    return Samples({**samples.columns, "active": active, "pairs": pairs}, samples.seconds)


def masked_experts(path: Path) -> Samples:
    """Return a rank's experts by masked products, each of which has as many tokens; fp8 by blocks."""
    counts = ["num_tokens", *EXPERTS.values(), "moe_tp_size", "moe_ep_size"]
    table = read_frame(path, text=["moe_dtype", "distribution"], counts=counts, times=["latency"])
    even = (table.distribution == "uniform") & (table.moe_tp_size == 1) & (table.moe_dtype == "fp8_block")
    table = table[even]
    table = table.assign(
        local=table.num_experts / table.moe_ep_size, pairs=table.num_tokens * table.topk / table.moe_ep_size
    )
    table = table.assign(active=np.minimum(table.local, table.pairs))
    names = {"hidden": "hidden_size", "inter": "inter_size"}
    same = {name: name for name in ("local", "active", "pairs")}
    return samples_of(table, {**names, **same}, latency_s(table))


def _routing(samples: Samples) -> tuple[Float64, Float64]:
    of = (samples[name].tolist() for name in ("experts", "top_k", "ep", "rows", "skew"))
    tables = [
        skewed(int(e), int(k), int(ep), int(rows), skew) for e, k, ep, rows, skew in zip(*of, strict=True)
    ]
    return np.array([float(each.active) for each in tables]), np.array([float(each.pairs) for each in tables])


# Contexts so short that the kernel takes its least.
SHORT = 16


def vllm_latent(path: Path, kv_dtype: str) -> Samples:
    """Return the time KV adds to a decode step of an MLA module in bf16, by heads, requests and context.

    The table has the module, projections and all: what it takes at 16 tokens of context and less, of as many
    requests and heads, is taken off.
    """
    table = _latent(path, "step")
    table = table[(table.kv_cache_dtype == CALLED.get(kv_dtype, kv_dtype)) & (table.gemm_type == "bfloat16")]
    keys = ["num_heads", "batch_size"]
    least = table[table.step <= SHORT].groupby(keys).latency.mean().rename("least")
    table = table[table.step >= 256].join(least, on=keys).dropna(subset=["least"])
    table = table.assign(latency=table.latency - table.least)
    names = {"heads": "num_heads", "batch": "batch_size", "context": "step"}
    return samples_of(table, names, latency_s(table))


def _latent(path: Path, length: str) -> pd.DataFrame:
    counts = ["num_heads", "batch_size", length]
    table = read_frame(
        path, text=["kv_cache_dtype", "gemm_type"], counts=counts, times=["latency"], optional=["gemm_type"]
    )
    # A table of the kernel alone has no projections.
    return table if "gemm_type" in table else table.assign(gemm_type="bfloat16")


def latent_kernel(path: Path) -> Samples:
    """Return the decode kernel of MLA alone with KV in bf16, by heads, requests and context from 256 on."""
    table = _latent(path, "step")
    table = table[table.kv_cache_dtype.isin(called("bf16")) & (table.step >= 256)]
    names = {"heads": "num_heads", "batch": "batch_size", "context": "step"}
    table = table.groupby(list(names.values()), as_index=False).latency.median()
    return samples_of(table, names, latency_s(table))


def vllm_latent_prompts(path: Path) -> Samples:
    """Fit a whole MLA module in bf16 for prompts, by heads from 8 on, rows and pairs; of long ones, from
    1 ms.
    """
    table = _latent(path, "isl")
    plain = (table.kv_cache_dtype == "bfloat16") & (table.gemm_type == "bfloat16") & (table.latency >= 1)
    table = table[plain & (table.num_heads >= 8)]
    table = table.assign(rows=table.batch_size * table.isl)
    table = table.assign(pairs=table.rows * (table.isl + 1) / 2)
    return samples_of(table, {"heads": "num_heads", "rows": "rows", "pairs": "pairs"}, latency_s(table))


def vllm_batched(path: Path) -> Samples:
    """Return the two products of absorption: to the latent (128 to 512 a head), and back."""
    table = read_frame(path, text=["op_name"], counts=["num_tokens", "num_heads"], times=["latency"])
    table = table[table.num_tokens <= MAX_TOKENS]
    to_latent = table.op_name == "mla_gen_pre"
    table = table.assign(n=np.where(to_latent, 512, 128), k=np.where(to_latent, 128, 512))
    return samples_of(table, {"heads": "num_heads", "m": "num_tokens", "n": "n", "k": "k"}, latency_s(table))


def nccl_collective(path: Path, op: str, degree: int) -> Samples:
    """Return a collective in one node, up to 128 MiB; sizes are elements of two bytes of the whole buffer."""
    counts = ["num_gpus", "message_size"]
    table = read_frame(path, text=["op_name", "nccl_dtype"], counts=counts, times=["latency"])
    table = table[(table.op_name == op) & (table.nccl_dtype == "half") & (table.num_gpus == degree)]
    table = table.assign(bytes=2 * table.message_size)
    table = table[table.bytes <= 2**27]
    return samples_of(table, {"bytes": "bytes"}, latency_s(table))


def deepep_dispatch(path: Path, op: str, nodes: int) -> Samples:
    """Fit DeepEP's low-latency kernels, by the bytes that a rank sends: their own count of them."""
    took = f"{op}_avg_t_us"
    counts = ["node_num", "hidden_size", "num_token", "num_topk", "num_experts"]
    table = read_frame(path, counts=counts, times=[took])
    # Few experts to choose from are few ranks to send to.
    table = table[(table.node_num == nodes) & (table.num_topk >= FEWEST_CHOSEN)]
    table = table.assign(bytes=table.num_token * table.num_topk * DISPATCH_BYTES[op](table.hidden_size))
    names = {"bytes": "bytes", "hidden": "hidden_size", "experts": "num_experts"}
    return samples_of(table, names, table[took].to_numpy(np.float64) * 1e-6)
