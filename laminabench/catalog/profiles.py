"""Read public GPU measurements (aiconfigurator's parquet, Vidur's CSV) into arrays to fit to.

The files are not part of the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.models import DTYPE_BYTES, ModelShape
from laminabench.util.errors import UserError

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
    table = read(path, "gemm_dtype", "m", "n", "k", "latency")
    named = CALLED.get(dtype, dtype)
    table = table[(table.gemm_dtype == named) & (table.n >= 512) & (table.k >= 512) & (table.m <= MAX_ROWS)]
    # No model has a 65536 x 65536 matrix; the pair is an accident of the measuring grid.
    table = table[(table.n < 65536) | (table.k < 65536)]
    return samples_of(table, {"m": "m", "n": "n", "k": "k"}, latency_s(table))


# What aiconfigurator's tables call the formats.
CALLED = {"bf16": "bfloat16", "int4": "int4_wo", "mxfp4": "w4a16_mxfp4"}
HEADS = {"heads": "num_heads", "kv_heads": "num_key_value_heads"}


class AttentionKind(NamedTuple):
    """What kind of attention a table has next to the numbers of heads."""

    head_dim: int = 128
    kv_dtype: str = "bf16"
    window: int = 0  # 0: to all tokens


FULL = AttentionKind()


def vllm_attention(path: Path, kind: AttentionKind = FULL) -> Samples:
    """Decode attention by batch, context, heads: at least 8 requests x KV heads, 256 to 32768 tokens."""
    table = vllm_decode(path, kind)
    busy = table["batch"] * table["kv_heads"] >= 8
    usual = (table["step"] >= 256) & (table["step"] <= 32768) & (table["heads"] <= 16 * table["kv_heads"])
    return table.where(busy & usual)


def vllm_decode(path: Path, kind: AttentionKind = FULL) -> Samples:
    """All rows of decode attention: `context` are the tokens attended to, `step` all before."""
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
    """Attention of whole prompts by batch, length and heads, of 16 tokens and more, 65,536 in all at most."""
    table = _attention_of(path, kind)
    usual = (table.num_heads >= 4) & (table.isl >= 16) & (table.batch_size * table.isl <= 65536)
    keys = ["batch_size", "isl", "num_heads", "num_key_value_heads"]
    table = table[usual].groupby(keys, as_index=False).latency.median()
    table = table.assign(rows=table.batch_size * table.isl)
    seen = table.isl.clip(upper=kind.window or None)
    pairs = table.batch_size * (seen * (seen + 1) / 2 + (table.isl - seen) * seen)
    # The fit is for heads of 128; what others compute is in proportion.
    table = table.assign(pairs=pairs * (kind.head_dim / 128))
    return samples_of(table, {"rows": "rows", "pairs": "pairs", **HEADS}, latency_s(table))


def _attention_of(path: Path, kind: AttentionKind, *more: str) -> pd.DataFrame:
    table = read(path, "batch_size", "isl", *HEADS.values(), "head_dim", "kv_cache_dtype", "latency", *more)
    if "window_size" not in table:
        table = table.assign(window_size=0)
    named = CALLED.get(kind.kv_dtype, kind.kv_dtype)
    of_kind = (table.head_dim == kind.head_dim) & (table.window_size == kind.window)
    return table[of_kind & (table.kv_cache_dtype == named)]


def vllm_allreduce(path: Path, degree: int) -> Samples:
    """vLLM's custom all-reduce inside a CUDA graph, up to 32 MiB (a batch of 2048 at hidden 8192)."""
    table = read(path, "message_size", "backend", "num_gpus", "latency")
    # message_size counts bf16 elements, not bytes: only then does the bus bandwidth agree with Vidur's.
    table = table.assign(bytes=2 * table.message_size)
    keep = (table.backend == "vllm_graph") & (table.num_gpus == degree) & (table.bytes <= 2**25)
    table = table[keep].groupby("bytes", as_index=False).latency.median()
    return samples_of(table, {"bytes": "bytes"}, latency_s(table))


def vidur_allreduce(path: Path, degree: int) -> Samples:
    """NCCL all-reduce in one node: the fastest repetition, as the slower ones include waiting for ranks."""
    fastest = "time_stats.all_reduce.min"
    table = read(path, "num_workers", "devices_per_node", "size", fastest)
    one_node = (table.num_workers == degree) & (table.devices_per_node == degree)
    table = table[one_node & (table["size"] <= 2**25)]
    table = table.groupby("size", as_index=False)[fastest].median()
    return samples_of(table, {"bytes": "size"}, table[fastest].to_numpy(np.float64) * 1e-3)


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
    table = read(path, degree, "num_tokens", *(f"time_stats.{name}{ending}" for name in VIDUR_OPS))
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
    row = read(path, *sizes, "use_gated_mlp").iloc[0]
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


def latency_s(table: pd.DataFrame) -> Float64:
    seconds: Float64 = table["latency"].to_numpy(np.float64) * 1e-3
    return seconds


def samples_of(table: pd.DataFrame, names: dict[str, str], seconds: Float64) -> Samples:
    return Samples({name: table[column].to_numpy(np.float64) for name, column in names.items()}, seconds)


def read(path: Path, *columns: str) -> pd.DataFrame:
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
