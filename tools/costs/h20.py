"""H20-3e (141 GB) by SGLang's kernels, and from it the H20 of 96 GB, in a set of vLLM's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from laminabench.catalog.cost_terms import CollectiveCost, GemmCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import device
from laminabench.catalog.importing import aiconfigurator
from laminabench.catalog.importing.tables import SOURCE, tables_in
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
