"""Read aiconfigurator's tables of GEMMs, attention and all-reduce into arrays to fit to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.fitting.samples import FULL, AttentionKind, Samples
from laminabench.catalog.importing.columns import read_frame
from laminabench.catalog.models import DTYPE_BYTES

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 2048  # batches of a decode step, and the usual budget of one with prompts


def vllm_gemm(path: Path, dtype: str) -> Samples:
    """Return GEMM times by m, n, k: matrices a layer can have (n, k >= 512) at decode batch sizes."""
    table = read_frame(path, text=["gemm_dtype"], counts=["m", "n", "k"], times=["latency"])
    table = table[
        table.gemm_dtype.isin(called(dtype)) & (table.n >= 512) & (table.k >= 512) & (table.m <= MAX_ROWS)
    ]
    # No model has a 65536 x 65536 matrix; the pair is an accident of the measuring grid.
    table = table[(table.n < 65536) | (table.k < 65536)]
    return samples_of(table, {"m": "m", "n": "n", "k": "k"}, latency_s(table))


# What aiconfigurator's tables call the formats.
CALLED = {"bf16": "bfloat16", "int4": "int4_wo", "mxfp4": "w4a16_mxfp4", "fp8_fused": "fp8_block"}


def called(dtype: str) -> tuple[str, ...]:
    """Return the names of a format; older tables call bf16 float16."""
    return (CALLED.get(dtype, dtype), *(("float16",) if dtype == "bf16" else ()))


HEADS = {"heads": "num_heads", "kv_heads": "num_key_value_heads"}


def vllm_attention(path: Path, kind: AttentionKind = FULL) -> Samples:
    """Decode attention by batch, context, heads: at least 8 requests x KV heads, 256 to 32768 tokens."""
    table = vllm_decode(path, kind)
    busy = table["batch"] * table["kv_heads"] >= 8
    usual = (table["step"] >= 256) & (table["step"] <= 32768) & (table["heads"] <= 16 * table["kv_heads"])
    return table.where(busy & usual)


def vllm_decode(path: Path, kind: AttentionKind = FULL) -> Samples:
    """Return all rows of decode attention: `context` are the tokens attended to, `step` all before."""
    table = _attention_of(path, kind, "step")
    table = table.assign(step=table.isl + table.step)
    table = table.assign(
        context=table.step.clip(upper=kind.window or None),
        token_bytes=2 * kind.head_dim * DTYPE_BYTES[kind.kv_dtype],
    )
    names = {
        "batch": "batch_size",
        "context": "context",
        "step": "step",
        "token_bytes": "token_bytes",
        **HEADS,
    }
    return samples_of(table, names, latency_s(table))


def vllm_prompt_attention(path: Path, kind: AttentionKind = FULL) -> Samples:
    """Return attention of complete prompts by batch, length, heads: from 16 tokens, up to 65,536 in all."""
    table = _attention_of(path, kind)
    usual = (table.num_heads >= 4) & (table.isl >= 16) & (table.batch_size * table.isl <= 65536)
    keys = ["batch_size", "isl", "num_heads", "num_key_value_heads"]
    table = table[usual].groupby(keys, as_index=False).latency.median()
    table = table.assign(rows=table.batch_size * table.isl)
    attended = table.isl.clip(upper=kind.window or None)
    pairs = table.batch_size * (attended * (attended + 1) / 2 + (table.isl - attended) * attended)
    # The fit is for heads of 128; what others compute is in proportion.
    table = table.assign(pairs=pairs * (kind.head_dim / 128))
    return samples_of(table, {"rows": "rows", "pairs": "pairs", **HEADS}, latency_s(table))


def _attention_of(path: Path, kind: AttentionKind, *more: str) -> pd.DataFrame:
    counts = ["batch_size", "isl", *HEADS.values(), "head_dim", "window_size", *more]
    table = read_frame(
        path,
        text=["kv_cache_dtype", "attn_dtype"],
        counts=counts,
        times=["latency"],
        optional=["window_size", "attn_dtype"],
    )
    if "window_size" not in table:
        table = table.assign(window_size=0)
    of_kind = (table.head_dim == kind.head_dim) & (table.window_size == kind.window)
    table = table[of_kind & table.kv_cache_dtype.isin(called(kind.kv_dtype))]
    # With KV in fp8 some tables have queries in both formats: those in the KV's are read.
    if "attn_dtype" in table and table.attn_dtype.nunique() > 1:
        table = table[table.attn_dtype.isin(called(kind.kv_dtype))]
    return table


def vllm_allreduce(path: Path, degree: int) -> Samples:
    """Fit vLLM's custom all-reduce inside a CUDA graph, up to 32 MiB (a batch of 2048 at hidden 8192)."""
    table = read_frame(path, text=["backend"], counts=["message_size", "num_gpus"], times=["latency"])
    # message_size counts bf16 elements, not bytes: only then does the bus bandwidth agree with Vidur's.
    table = table.assign(bytes=2 * table.message_size)
    keep = (table.backend == "vllm_graph") & (table.num_gpus == degree) & (table.bytes <= 2**25)
    table = table[keep].groupby("bytes", as_index=False).latency.median()
    return samples_of(table, {"bytes": "bytes"}, latency_s(table))


def latency_s(table: pd.DataFrame) -> Float64:
    seconds: Float64 = table["latency"].to_numpy(np.float64) * 1e-3
    return seconds


def samples_of(table: pd.DataFrame, names: dict[str, str], seconds: Float64) -> Samples:
    return Samples({name: table[column].to_numpy(np.float64) for name, column in names.items()}, seconds)
