"""Read public GPU measurements (aiconfigurator's parquet, Vidur's CSV) into arrays to fit to.

The files are not part of the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.models import ModelShape
from laminabench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

# Catalogue device -> the prefix of aiconfigurator's files, the prefix of Vidur's files.
PROFILED = {"h100": ("h100_sxm", "h100"), "a100-80g-sxm": ("a100_sxm", "a100")}

VIDUR_OPS = {"attn_pre_proj": "qkv", "attn_post_proj": "o", "mlp_up_proj": "gate_up", "mlp_down_proj": "down"}
VIDUR_SMALL_OPS = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")

MAX_ROWS = 2048  # batches of a decode step, and the usual budget of one with prompts
# Catalogue device -> whose table of prompts' attention stands for it, and of which version. There is none of
# H100; its kernels take as long as H200's, whose peak is the same.
PROMPTS = {"h100": ("h200", "h200_sxm", "0.24.0"), "a100-80g-sxm": ("a100-80g-sxm", "a100_sxm", "0.14.0")}


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured times next to the columns that explain them, as equally long arrays."""

    columns: dict[str, Float64]
    seconds: Float64

    def __getitem__(self, name: str) -> Float64:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, keep: np.ndarray) -> Samples:
        return Samples({name: column[keep] for name, column in self.columns.items()}, self.seconds[keep])


def vllm_gemm(folder: Path, device: str, dtype: str) -> Samples:
    """GEMM times by m, n, k: matrices a layer can have (n, k >= 512) at decode batch sizes."""
    table = _read(folder, f"{PROFILED[device][0]}-vllm-0.14-gemm_perf.parquet")
    named = {"bf16": "bfloat16"}.get(dtype, dtype)
    table = table[(table.gemm_dtype == named) & (table.n >= 512) & (table.k >= 512) & (table.m <= MAX_ROWS)]
    # No model has a 65536 x 65536 matrix; the pair is an accident of the measuring grid.
    table = table[(table.n < 65536) | (table.k < 65536)]
    return _samples(table, {"m": "m", "n": "n", "k": "k"}, table["latency"].to_numpy(np.float64) * 1e-3)


def vllm_attention(folder: Path, device: str) -> Samples:
    """Decode attention by batch, context, heads: at least 8 requests x KV heads, 256 to 32768 tokens."""
    table = _read(folder, f"{PROFILED[device][0]}-vllm-0.14-generation_attention_perf.parquet")
    table = table.assign(context=table.isl + table.step)
    busy = table.batch_size * table.num_key_value_heads >= 8
    usual = table.context.between(256, 32768) & (table.num_heads <= 16 * table.num_key_value_heads)
    table = table[(table.kv_cache_dtype == "bfloat16") & busy & usual]
    names = {
        "batch": "batch_size",
        "context": "context",
        "heads": "num_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
    }
    return _samples(table, names, table["latency"].to_numpy(np.float64) * 1e-3)


def vllm_prompt_attention(folder: Path, device: str) -> Samples:
    """Attention of whole prompts by batch, length and heads, of 16 tokens and more, 65,536 in all at most."""
    _, gpu, version = PROMPTS[device]
    table = _read(
        folder / "aiconfigurator" / gpu / "attention" / "vllm" / version, "context_attention_perf.parquet"
    )
    if "window_size" in table:
        table = table[table.window_size == 0]
    usual = (table.head_dim == 128) & (table.kv_cache_dtype == "bfloat16") & (table.num_heads >= 4)
    table = table[usual & (table.isl >= 16) & (table.batch_size * table.isl <= 65536)]
    keys = ["batch_size", "isl", "num_heads", "num_key_value_heads"]
    table = table.groupby(keys, as_index=False).latency.median()
    table = table.assign(rows=table.batch_size * table.isl)
    table = table.assign(pairs=table.rows * (table.isl + 1) / 2)
    names = {"rows": "rows", "pairs": "pairs", "heads": "num_heads", "kv_heads": "num_key_value_heads"}
    return _samples(table, names, table["latency"].to_numpy(np.float64) * 1e-3)


def vllm_allreduce(folder: Path, device: str, degree: int) -> Samples:
    """vLLM's custom all-reduce inside a CUDA graph, up to 32 MiB (a batch of 2048 at hidden 8192)."""
    table = _read(folder, f"{PROFILED[device][0]}-vllm-0.14-custom_allreduce_perf.parquet")
    # message_size counts bf16 elements, not bytes: only then does the bus bandwidth agree with Vidur's.
    table = table.assign(bytes=2 * table.message_size)
    keep = (table.backend == "vllm_graph") & (table.num_gpus == degree) & (table.bytes <= 2**25)
    table = table[keep].groupby("bytes", as_index=False).latency.median()
    return _samples(table, {"bytes": "bytes"}, table["latency"].to_numpy(np.float64) * 1e-3)


def vidur_allreduce(folder: Path, device: str, degree: int) -> Samples:
    """NCCL all-reduce in one node: the fastest repetition, as the slower ones include waiting for ranks."""
    table = _read(folder, f"{PROFILED[device][1]}-dgx-all_reduce.csv")
    one_node = (table.num_workers == degree) & (table.devices_per_node == degree)
    table = table[one_node & (table["size"] <= 2**25)]
    table = table.groupby("size", as_index=False)["time_stats.all_reduce.min"].median()
    return _samples(table, {"bytes": "size"}, table["time_stats.all_reduce.min"].to_numpy(np.float64) * 1e-3)


def vidur_gemm(folder: Path, device: str, model: ModelShape) -> Samples:
    """GEMM times of the layers of `model` (the file is Llama-2-70B's) by rows and tensor parallelism."""
    table = _vidur_layer(folder, device)
    rows, degrees = table["num_tokens"].to_numpy(np.float64), table[_TP].to_numpy(np.int64)
    shards = {int(tp): {gemm.name: gemm for gemm in model.layer_gemms(int(tp))} for tp in np.unique(degrees)}
    columns: dict[str, list[Float64]] = {"m": [], "tp": [], "n": [], "k": []}
    for name in VIDUR_OPS.values():
        columns["m"].append(rows)
        columns["tp"].append(degrees.astype(np.float64))
        columns["n"].append(np.array([shards[tp][name].n for tp in degrees.tolist()], np.float64))
        columns["k"].append(np.array([shards[tp][name].k for tp in degrees.tolist()], np.float64))
    seconds = [_median_s(table, column) for column in VIDUR_OPS]
    return Samples({name: np.concatenate(parts) for name, parts in columns.items()}, np.concatenate(seconds))


def vidur_elementwise(folder: Path, device: str) -> Samples:
    """Sum of a layer's element-wise operators by rows and tensor parallelism."""
    table = _vidur_layer(folder, device)
    seconds = np.sum([_median_s(table, column) for column in VIDUR_SMALL_OPS], axis=0)
    return _samples(table, {"m": "num_tokens", "tp": _TP}, seconds)


_TP = "num_tensor_parallel_workers"


def _vidur_layer(folder: Path, device: str) -> pd.DataFrame:
    table = _read(folder, f"{PROFILED[device][1]}-llama-2-70b-mlp.csv")
    table = table[table.num_tokens <= MAX_ROWS]
    return table.groupby([_TP, "num_tokens"], as_index=False).median(numeric_only=True)


def _median_s(table: pd.DataFrame, operator: str) -> Float64:
    seconds: Float64 = table[f"time_stats.{operator}.median"].to_numpy(np.float64) * 1e-3
    return seconds


def _samples(table: pd.DataFrame, names: dict[str, str], seconds: Float64) -> Samples:
    return Samples({name: table[column].to_numpy(np.float64) for name, column in names.items()}, seconds)


def _read(folder: Path, name: str) -> pd.DataFrame:
    import pandas as pd

    path = folder / name
    if not path.is_file():
        raise UserError(
            "costs-no-measurements",
            f"{path}: not there; `costs fit` needs the measurement files in one folder",
        )
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError("costs-no-measurements", f"{path}: cannot be read: {error}") from error
