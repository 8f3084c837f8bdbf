"""Sources of each coefficient and measured time of a modelled step, for manifests and `costs show`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from laminabench.catalog.cost_keys import GemmKey
from laminabench.catalog.cost_terms import DISPATCH_BYTES, Origin, coefficients
from laminabench.catalog.costs import CostSet, curves_of
from laminabench.catalog.entries import Table
from laminabench.catalog.hardware import Device, canonical_dtype
from laminabench.catalog.layout import Layout, Split, layout_of
from laminabench.catalog.measured import AttentionGrids, AttentionLines, Curve
from laminabench.catalog.models import ModelShape, Side
from laminabench.catalog.routers import ROUTER_ORIGIN


def provenance(
    costs: CostSet,
    device: Device,
    split: Split = 1,
    dtype: str = "bf16",
    *,
    prompts: bool = False,
    model: ModelShape | None = None,
) -> list[Table]:
    """Return every coefficient used for `device` and where it is from: for manifests and `costs show`."""
    layout = layout_of(split)
    attention: Any = costs.latent_cost if model and model.latent else costs.attention_cost
    of_prompts: Any = costs.latent_prompt_cost if model and model.latent else costs.prompt_attention_cost
    sizes = {"head_dim": model.head_dim} if model and not model.latent else {}
    kv = {"kv_dtype": model.kv_dtype} if model else {}
    terms: list[tuple[str, Any]] = [
        ("gemm", costs.gemm_cost(device, dtype)),
        ("attention", attention(device, **sizes, **kv)),
    ]
    if layout.tp > 1:
        terms.append((f"allreduce over {layout.tp}", costs.allreduce_cost(device, layout.tp)))
    if prompts:
        terms.append(("prompts", of_prompts(device, **sizes)))
    terms += _own_terms(costs, model, device, layout) if model else []
    terms += [
        ("elementwise", costs.elementwise_cost(device)),
        ("host", costs.host),
    ]
    rows = []
    for name, term in terms:
        row = _provenance_row(costs, name, term)
        if borrowed := costs.borrows(device, term):
            row["kind"] = "assumed"
            row["borrowed_from"] = borrowed.device
            row["reason"] = borrowed.reason
        rows.append(row)
    return rows


def _own_terms(costs: CostSet, model: ModelShape, device: Device, layout: Layout) -> list[tuple[str, Any]]:
    """Return the terms that only some models and layouts have, by name."""
    terms: list[tuple[str, Any]] = []
    if model.experts:
        masked = costs.masked_cost(device, model.expert_dtype) if layout.dispatches else None
        experts = masked or costs.expert_cost(device, model.expert_dtype)
        terms.append((f"{'masked ' if masked else ''}experts in {model.expert_dtype}", experts))
    if model.latent:
        terms.append(("batched", costs.batched_cost(device)))
    if model.window:
        size = (model.head_dim, model.kv_dtype, model.window.tokens)
        terms.append(("windows", costs.attention_cost(device, *size)))
    if layout.dispatches:
        for op in DISPATCH_BYTES:
            cost = costs.dispatch_cost(device, op, layout.stage)
            measured = f", measured on {cost.ranks:g}" if cost.ranks else ""
            terms.append((f"{op} over {layout.stage} ranks{measured}", cost))
    elif layout.dp > 1:
        for op in ("all_gather", "reduce_scatter"):
            terms.append((f"{op} over {layout.dp}", costs.collective_cost(device, op, layout.dp)))
    return terms


def step_sources(
    costs: CostSet, model: ModelShape, device: Device, split: Split, side: Side | None = None
) -> list[Table]:
    """Return what prices each GEMM and operator of a step: measured times or the formula."""
    tp = layout_of(split).tp
    products = model.attention_products(tp) if side == "attention" else model.products(split)
    priced = [each for each in products if not each.heads and (side != "feed" or each.place == "feed")]
    gemms = [(each.gemm, each.dtype) for each in priced if not each.computed_in]
    if side != "attention":
        gemms.append((model.lm_head_gemm(tp), model.rest_dtype))
    rows = [
        _source(
            costs,
            f"{gemm.name} {gemm.n}x{gemm.k}",
            costs.measured.gemm.get(GemmKey(device.name, canonical_dtype(dtype), gemm.n, gemm.k)),
            partial(costs.gemm_cost, device, dtype),
        )
        for gemm, dtype in gemms
    ]
    # A router may compute in a type of its own, whose times are no cost set's.
    own = [(each.gemm, each.computed_in) for each in priced if each.computed_in]
    rows += [
        _row(costs, f"{gemm.name} {gemm.n}x{gemm.k} in {dtype}", ROUTER_ORIGIN, priced_by="measurements")
        for gemm, dtype in own
    ]
    if costs.measured.nearest and curves_of(costs, device.name, canonical_dtype(model.dtype)):
        for row in rows:
            row["priced_by"] = row["priced_by"].replace("formula", "formula, nearest")
    curves = costs.operators(model, device, tp, side)
    for i, (name, width, _) in enumerate(model.operators(tp, side)):
        curve = curves[i][1] if curves else None
        rows.append(_source(costs, f"{name} {width}", curve, partial(costs.elementwise_cost, device)))
    return rows


def attention_sources(costs: CostSet, model: ModelShape, device: Device, workers: int) -> list[Table]:
    """Return what prices attention on one of so many workers."""
    heads, kv_heads = model.heads_of_worker(workers)
    measured = costs.measured_attention(model, device, workers)
    name = f"attention {heads} heads, {kv_heads} of KV, size {model.head_dim}"
    grids = measured.grids if measured else None
    return [_source(costs, name, grids, partial(costs.attention_cost, device))]


def _source(
    costs: CostSet,
    term: str,
    measured: Curve | AttentionGrids | AttentionLines | None,
    formula: Callable[[], Any],
) -> Table:
    origin: Origin = (measured or formula()).origin
    times = f"{origin.kind} times" if origin.kind in ("derived", "scaled") else "measurements"
    return _row(costs, term, origin, priced_by=times if measured else "formula")


def host_provenance(costs: CostSet) -> Table:
    """Return the host's row alone, for devices whose own times are not from cost sets."""
    return _provenance_row(costs, "host", costs.host)


def _provenance_row(costs: CostSet, name: str, term: Any) -> Table:
    kind: type[msgspec.Struct] = type(term)
    declared = coefficients(kind)
    values = {name: getattr(term, name) for name in declared}
    values = {name: value for name, value in values.items() if value or not declared[name].optional}
    kernel = getattr(term, "kernel", "")
    row = _row(costs, name, term.origin)
    return row | ({"kernel": kernel} if kernel else {}) | {"coefficients": values}


def _row(costs: CostSet, term: str, origin: Origin, priced_by: str = "") -> Table:
    """Return the row of a source, or of a formula's coefficients, which have a range."""
    return {
        "term": term,
        "set": costs.name,
        "kind": origin.kind,
        **({"priced_by": priced_by} if priced_by else {}),
        "source": origin.source,
        **({} if priced_by else {"range": origin.range}),
        "samples": origin.samples,
        "errors_percent": dict(origin.errors),
        **({"unstable": True} if origin.unstable else {}),
    }
