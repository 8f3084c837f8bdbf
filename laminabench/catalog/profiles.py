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

Columns = dict[str, Float64]

VIDUR_OPS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")  # as ModelShape.layer_gemms
VIDUR_SMALL_OPS = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")

MAX_ROWS = 2048  # batches of a decode step, and the usual budget of one with prompts


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


def vllm_gemm(path: Path, dtype: str) -> Samples:
    """GEMM times by m, n, k: matrices a layer can have (n, k >= 512) at decode batch sizes."""
    table = _read(path, "gemm_dtype", "m", "n", "k", "latency")
    named = {"bf16": "bfloat16"}.get(dtype, dtype)
    table = table[(table.gemm_dtype == named) & (table.n >= 512) & (table.k >= 512) & (table.m <= MAX_ROWS)]
    # No model has a 65536 x 65536 matrix; the pair is an accident of the measuring grid.
    table = table[(table.n < 65536) | (table.k < 65536)]
    return _samples(table, {"m": "m", "n": "n", "k": "k"}, _latency_s(table))


HEADS = {"heads": "num_heads", "kv_heads": "num_key_value_heads"}


def vllm_attention(path: Path) -> Samples:
    """Decode attention by batch, context, heads: at least 8 requests x KV heads, 256 to 32768 tokens."""
    table = _full_attention(path, "step")
    table = table.assign(context=table.isl + table.step)
    busy = table.batch_size * table.num_key_value_heads >= 8
    usual = table.context.between(256, 32768) & (table.num_heads <= 16 * table.num_key_value_heads)
    table = table[busy & usual]
    names = {"batch": "batch_size", "context": "context", "head_dim": "head_dim", **HEADS}
    return _samples(table, names, _latency_s(table))


def vllm_prompt_attention(path: Path) -> Samples:
    """Attention of whole prompts by batch, length and heads, of 16 tokens and more, 65,536 in all at most."""
    table = _full_attention(path)
    usual = (table.num_heads >= 4) & (table.isl >= 16) & (table.batch_size * table.isl <= 65536)
    keys = ["batch_size", "isl", "num_heads", "num_key_value_heads"]
    table = table[usual].groupby(keys, as_index=False).latency.median()
    table = table.assign(rows=table.batch_size * table.isl)
    table = table.assign(pairs=table.rows * (table.isl + 1) / 2)
    return _samples(table, {"rows": "rows", "pairs": "pairs", **HEADS}, _latency_s(table))


def _full_attention(path: Path, *more: str) -> pd.DataFrame:
    """A table of attention: to all tokens, with heads of 128 and KV in bf16."""
    table = _read(path, "batch_size", "isl", *HEADS.values(), "head_dim", "kv_cache_dtype", "latency", *more)
    if "window_size" in table:
        table = table[table.window_size == 0]
    return table[(table.head_dim == 128) & (table.kv_cache_dtype == "bfloat16")]


def vllm_allreduce(path: Path, degree: int) -> Samples:
    """vLLM's custom all-reduce inside a CUDA graph, up to 32 MiB (a batch of 2048 at hidden 8192)."""
    table = _read(path, "message_size", "backend", "num_gpus", "latency")
    # message_size counts bf16 elements, not bytes: only then does the bus bandwidth agree with Vidur's.
    table = table.assign(bytes=2 * table.message_size)
    keep = (table.backend == "vllm_graph") & (table.num_gpus == degree) & (table.bytes <= 2**25)
    table = table[keep].groupby("bytes", as_index=False).latency.median()
    return _samples(table, {"bytes": "bytes"}, _latency_s(table))


def vidur_allreduce(path: Path, degree: int) -> Samples:
    """NCCL all-reduce in one node: the fastest repetition, as the slower ones include waiting for ranks."""
    fastest = "time_stats.all_reduce.min"
    table = _read(path, "num_workers", "devices_per_node", "size", fastest)
    one_node = (table.num_workers == degree) & (table.devices_per_node == degree)
    table = table[one_node & (table["size"] <= 2**25)]
    table = table.groupby("size", as_index=False)[fastest].median()
    return _samples(table, {"bytes": "size"}, table[fastest].to_numpy(np.float64) * 1e-3)


def vidur_gemm(path: Path, model: ModelShape) -> Samples:
    """GEMM times of the layers of `model`, whose file it is, by rows and tensor parallelism."""
    parts = [
        (layer["rows"], tp, model.layer_gemms(tp)[place], layer[name])
        for place, name in enumerate(VIDUR_OPS)
        for tp, layer in vidur_layers(path).items()
    ]
    columns = {
        "m": [rows for rows, *_ in parts],
        "tp": [np.full(len(rows), tp, np.float64) for rows, tp, *_ in parts],
        "n": [np.full(len(rows), gemm.n, np.float64) for rows, _, gemm, _ in parts],
        "k": [np.full(len(rows), gemm.k, np.float64) for rows, _, gemm, _ in parts],
    }
    seconds = np.concatenate([found for *_, found in parts])
    return Samples({name: np.concatenate(found) for name, found in columns.items()}, seconds)


def vidur_elementwise(path: Path) -> Samples:
    """Sum of a layer's element-wise operators by rows and tensor parallelism."""
    layers = vidur_layers(path)
    columns = {
        "m": np.concatenate([layer["rows"] for layer in layers.values()]),
        "tp": np.concatenate([np.full(len(layer["rows"]), tp, np.float64) for tp, layer in layers.items()]),
    }
    seconds = [np.sum([layer[name] for name in VIDUR_SMALL_OPS], axis=0) for layer in layers.values()]
    return Samples(columns, np.concatenate(seconds))


def vidur_layers(path: Path) -> dict[int, Columns]:
    """By tensor-parallel degree: rows, and the seconds of every operator of a layer at them.

    Repetitions are merged by their median.
    """
    degree, ending = "num_tensor_parallel_workers", ".median"
    table = _read(path, degree, "num_tokens", *(f"time_stats.{name}{ending}" for name in VIDUR_OPS))
    table = table[table.num_tokens <= MAX_ROWS]
    table = table.groupby([degree, "num_tokens"], as_index=False).median(numeric_only=True)
    named = {
        column.removeprefix("time_stats.").removesuffix(ending): column
        for column in table
        if column.endswith(ending)
    }
    return {
        int(tp): {
            "rows": part["num_tokens"].to_numpy(np.float64),
            **{name: part[column].to_numpy(np.float64) * 1e-3 for name, column in named.items()},
        }
        for tp, part in table.groupby(degree)
    }


def vidur_model(path: Path) -> ModelShape:
    """The model of a file of operators, whose sizes are in it: one layer of it, all that was measured."""
    sizes = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size")
    row = _read(path, *sizes, "use_gated_mlp").iloc[0]
    heads, kv_heads, hidden, intermediate, vocab = (int(row[name]) for name in sizes)
    return ModelShape(
        name=path.parent.name,
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        gated_mlp=bool(row["use_gated_mlp"]),
    )


def _latency_s(table: pd.DataFrame) -> Float64:
    seconds: Float64 = table["latency"].to_numpy(np.float64) * 1e-3
    return seconds


def _samples(table: pd.DataFrame, names: dict[str, str], seconds: Float64) -> Samples:
    return Samples({name: table[column].to_numpy(np.float64) for name, column in names.items()}, seconds)


def _read(path: Path, *columns: str) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise UserError("costs-no-measurements", f"{path}: not there; measurements are read from it")
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError("costs-no-measurements", f"{path}: cannot be read: {error}") from error
    if lacking := [name for name in columns if name not in table]:
        raise UserError(
            "costs-no-measurements", f"{path}: has no column {', '.join(lacking)}; is it another table?"
        )
    return table
