"""H20-3e (141 GB) by SGLang's kernels, and from it the H20 of 96 GB, in a set of vLLM's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_terms import CollectiveCost, Float64, GemmCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.fitting.formulas import head_counts
from laminabench.catalog.fitting.mixtures import line
from laminabench.catalog.fitting.samples import AttentionKind, Samples
from laminabench.catalog.fitting.terms import mape
from laminabench.catalog.hardware import device
from laminabench.catalog.importing import aiconfigurator
from laminabench.catalog.importing.tables import SOURCE, tables_in
from laminabench.catalog.importing.vllm_tables import vllm_decode
from laminabench.catalog.measured import Curve

MEASURED_ON, SCALED_TO = device("h20-3e"), device("h20")
# None of these tables is in a release; of vLLM's kernels there are none of an H20.
PULL_REQUEST = "ai-dynamo/aiconfigurator pull request 134 (Apache-2.0)"
COLLECTIVES = "ai-dynamo/aiconfigurator commit 0bd529d (Apache-2.0)"
# Terms in these tables. Its decode attention has names: kernels.toml has it, for both. All else is borrowed.
TERMS = ("gemm", "prompt_attention", "prompt_attention_of", "latent_prompts", "collectives")
SAME = "measured on H20-3e, and the same on H20"
# Formats whose GEMMs are bound by memory at small batches; in others tiles of 64 rows are computed in full,
# which takes as long on both.
READS = ("bf16",)


def with_h20(costs: CostSet, folder: Path) -> CostSet:
    """Return the set with both H20s as SGLang's kernels were measured on one of them."""
    tables = tables_in(folder / "aiconfigurator" / "h20_3e", {}, "sglang")
    own = aiconfigurator.cost_set("", tables, [], {})
    added: dict[str, Any] = {}
    for name in TERMS:
        of_3e = {key: _sourced(cost) for key, cost in getattr(own, name).items()}
        added[name] = {**getattr(costs, name), **of_3e, **_renamed(of_3e, SAME)}
    for key, cost in own.gemm.items():
        added["gemm"][key._replace(device=SCALED_TO.name)] = _gemm(_sourced(cost), key.dtype)
    curves = {key: _sourced(curve) for key, curve in own.measured.gemm.items()}
    scaled = {
        key._replace(device=SCALED_TO.name): _curve(curve, own.gemm[key[:2]], *key[1:])
        for key, curve in curves.items()
    }
    measured = replace(costs.measured, gemm={**costs.measured.gemm, **curves, **scaled})
    return replace(costs, **added, measured=measured)


def _sourced(cost: Any) -> Any:
    where = COLLECTIVES if isinstance(cost, CollectiveCost) else PULL_REQUEST
    return replace(cost, origin=replace(cost.origin, source=cost.origin.source.replace(SOURCE, where)))


def _renamed(terms: Mapping[Any, Any], how: str) -> dict[Any, Any]:
    name = SCALED_TO.name
    return {
        name if isinstance(key, str) else key._replace(device=name): _scaled(cost, how)
        for key, cost in terms.items()
    }


def _scaled(cost: Any, how: str, **values: Any) -> msgspec.Struct:
    origin: Origin = replace(cost.origin, kind="scaled", source=f"{how}: {cost.origin.source}")
    scaled: msgspec.Struct = replace(cost, origin=origin, **values)
    return scaled


def _gemm(cost: GemmCost, dtype: str) -> msgspec.Struct:
    if dtype in READS:
        return _scaled(cost, "H20-3e's share of bandwidth and of FLOPS")
    slower = MEASURED_ON.bandwidth_bytes_per_s / SCALED_TO.bandwidth_bytes_per_s
    return _scaled(cost, SAME, bandwidth_efficiency=cost.bandwidth_efficiency * slower)


def _curve(curve: Curve, cost: GemmCost, dtype: str, n: int, k: int) -> msgspec.Struct:
    if dtype not in READS:
        return _scaled(curve, SAME)
    here, there = (cost.seconds(on, curve.rows, n, k, dtype) for on in (SCALED_TO, MEASURED_ON))
    how = "measured on H20-3e, by the ratio of the formula on H20's bandwidth"
    return _scaled(curve, how, seconds=curve.seconds * here / there)


# Attention by tiles: FlashAttention-3 computes as many as requests have KV heads, on 78 SMs


class TileLines(NamedTuple):
    """A line in the KV tokens of all tiles, for each number of these; and the errors of all lines."""

    tiles: Float64
    fixed_s: Float64
    per_token_s: Float64
    errors: Mapping[str, float]


def tile_lines(folder: Path, kv_dtype: str) -> TileLines:
    """Fit decode attention by tiles of 128 rows; held out is each fifth of the head counts."""
    table = folder / "aiconfigurator/h20_3e/attention/sglang/0.5.5.post2/generation_attention_perf.parquet"
    samples = vllm_decode(table, AttentionKind(128, kv_dtype, 0))
    samples = samples.where((samples["step"] >= 256) & (samples["heads"] <= 16 * samples["kv_heads"]))
    lines = _by_tiles(samples)
    left_out = [_error(_by_tiles(samples.where(~part)), samples.where(part)) for part in head_counts(samples)]
    return TileLines(*lines, {"op": _error(lines, samples), "held_out_op": float(np.mean(left_out))})


def _by_tiles(samples: Samples) -> tuple[Float64, ...]:
    tiles = samples["batch"] * samples["kv_heads"]
    tokens = tiles * samples["context"]
    # No line is steeper than the fastest row: a tile has other work too, which short contexts show as tokens.
    fastest = (samples.seconds / tokens).min()
    rows = []
    for count in np.unique(tiles):
        part = tiles == count
        if len(np.unique(tokens[part])) > 2:
            fixed, per_token = line(tokens[part], samples.seconds[part])
            if per_token < fastest:
                per_token = fastest
                fixed = float(np.median(samples.seconds[part] - fastest * tokens[part]))
            rows.append((count, fixed, per_token))
    return tuple(np.array(rows, np.float64).T)


def _error(lines: tuple[Float64, ...], samples: Samples) -> float:
    counts, fixed, per_token = lines
    tiles = samples["batch"] * samples["kv_heads"]
    tokens = tiles * samples["context"]
    within = (tiles >= counts[0]) & (tiles <= counts[-1])
    predicted = np.interp(tiles, counts, fixed) + np.interp(tiles, counts, per_token) * tokens
    return mape(predicted[within], samples.seconds[within])
