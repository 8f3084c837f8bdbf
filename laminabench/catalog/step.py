"""A step of the model workers, and its attention: which terms of a cost set a layer is made of."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from laminabench.catalog.cost_keys import OperatorKey
from laminabench.catalog.cost_terms import ACTIVATION_BYTES, DISPATCH_BYTES, Float64
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import Device
from laminabench.catalog.layout import Layout, Split, layout_of
from laminabench.catalog.models import ModelShape, Place, Product
from laminabench.catalog.routers import router_seconds
from laminabench.catalog.routing import ExpertLoad, RoutingCurve, sampled, skewed, uniform
from laminabench.util.errors import UserError

# How tokens choose experts: each as often as any other, some far more often than others, or as measured.
Routing = Literal["skewed", "uniform"] | RoutingCurve
# The power laws of the tables that experts were measured by; that of models whose experts are in groups.
SKEW, SKEW_OF_GROUPS = 1.2, 1.01
# vLLM computes shared experts concurrently with the routed ones, on their own stream, up to these rows.
OVERLAPPED_ROWS = 256
# What a norm over all heads needs of a token from other workers: the squares of its query and of its key.
SQUARES_BYTES = 8
# Rows at which loads of experts are drawn: four to each doubling.
ROWS = np.unique(np.geomspace(1, 2**20, 81).round())


# A matrix product, and its seconds by rows.
Priced = tuple[Product, Float64]


class StepTime(NamedTuple):
    """A decode step of the model workers by part, without attention and host."""

    gemm_s: Float64
    elementwise_s: Float64
    allreduce_s: Float64  # and all that model workers send each other
    lm_head_s: Float64
    experts_s: Float64
    before_s: Float64  # of the GEMMs, those before attention
    absorb_s: Float64  # of these, the part that could be the attention workers'
    expand_s: Float64  # the same of those after attention

    @property
    def total_s(self) -> Float64:
        return self.layers_s + self.lm_head_s

    @property
    def layers_s(self) -> Float64:
        """All layers."""
        return self.gemm_s + self.elementwise_s + self.allreduce_s + self.experts_s


def model_step(
    costs: CostSet,
    model: ModelShape,
    device: Device,
    split: Split,
    batch: ArrayLike,
    routing: Routing = "skewed",
) -> StepTime:
    """Return the seconds of a decode step of model workers: all layers and the LM head, by part.

    With data parallelism every group has its share of the rows. Not counted: attention, the network to
    attention workers, the host, gathering logits over TP.
    """
    batch = np.asarray(batch, np.float64)
    if np.any(batch < 0):
        raise UserError("costs-negative-batch", "a batch has at least 0 requests")
    layout = layout_of(split)
    some = batch > 0
    rows = np.maximum(batch, 1)
    own = np.ceil(rows / layout.dp)
    padded = costs.measured.padded(own)
    products = priced(costs, device, model.products(layout), padded)

    def placed(place: Place, batched: bool = False) -> Float64:
        return summed((each, s) for each, s in products if each.place == place and each.heads >= batched)

    experts = experts_seconds(costs, model, device, layout, padded * layout.dp, routing)
    parts = (
        summed(products) - overlapped_seconds(products, padded, experts),
        costs.elementwise_seconds(model, device, layout, padded),
        collective_seconds(costs, model, device, layout, padded, routing),
        _lm_head_seconds(costs, model, device, layout, own),
        experts,
        placed("before"),
        placed("before", batched=True),
        placed("after", batched=True),
    )
    return StepTime(*(np.where(some, part, 0.0) for part in parts))


def model_step_seconds(
    costs: CostSet,
    model: ModelShape,
    device: Device,
    split: Split,
    batch: ArrayLike,
    routing: Routing = "skewed",
) -> Float64:
    seconds: Float64 = model_step(costs, model, device, split, batch, routing).total_s
    return seconds


def lm_head_seconds(
    costs: CostSet, model: ModelShape, device: Device, split: Split, batch: ArrayLike
) -> Float64:
    """Return the LM head's time for so many requests that get a token, sampling included."""
    layout, rows = layout_of(split), np.asarray(batch, np.float64)
    own = np.ceil(np.maximum(rows, 1) / layout.dp)
    return np.where(rows > 0, _lm_head_seconds(costs, model, device, layout, own), 0.0)


def priced(costs: CostSet, device: Device, products: Iterable[Product], rows: Float64) -> list[Priced]:
    """Return each product with its time in one layer."""
    return [(product, _product_seconds(costs, device, product, rows)) for product in products]


def summed(products: Iterable[Priced]) -> Float64:
    """Sum over all layers that have them."""
    total: Float64 = np.zeros(())
    for layers, group in groupby(products, key=lambda each: each[0].layers):
        total = total + layers * sum((seconds for _, seconds in group), np.zeros(()))
    return total


def overlapped_seconds(products: Iterable[Priced], rows: Float64, experts: Float64) -> Float64:
    """Return the time saved by computing shared experts while the routed ones are computed."""
    shared = summed((each, seconds) for each, seconds in products if each.gemm.name.startswith("shared"))
    return np.where(rows <= OVERLAPPED_ROWS, np.minimum(shared, experts), 0.0)


def _product_seconds(costs: CostSet, device: Device, product: Product, rows: Float64) -> Float64:
    gemm = product.gemm
    if product.computed_in:
        return router_seconds(product.computed_in, rows, gemm.n, gemm.k)
    if product.heads:
        return costs.batched_cost(device).seconds(device, product.heads, rows, gemm.n, gemm.k)
    return costs.gemm_seconds(device, rows, gemm.n, gemm.k, product.dtype)


def _lm_head_seconds(
    costs: CostSet, model: ModelShape, device: Device, layout: Layout, rows: Float64
) -> Float64:
    head = model.lm_head_gemm(layout.tp)
    last = costs.gemm_seconds(device, rows, head.n, head.k, model.rest_dtype)
    sampler = costs.measured.operators.get(OperatorKey(device.name, "sampler", head.n))
    return last + sampler.at(rows) if sampler else last


def experts_seconds(
    costs: CostSet, model: ModelShape, device: Device, layout: Layout, rows: Float64, routing: Routing
) -> Float64:
    """Return the seconds of all layers' experts on the busiest device, for all rows of the stage."""
    experts = model.experts
    if experts is None:
        return np.zeros_like(rows)
    masked = costs.masked_cost(device, model.expert_dtype) if layout.dispatches else None
    if masked:
        points = _points(rows)
        local, inter = experts.count / layout.ep, experts.intermediate // layout.expert_tp
        load = _load_by_token(model, layout, points, routing)
        each = masked.seconds(device, model.hidden, inter, model.expert_dtype, local, *load)
        return model.expert_layers * np.interp(rows, points, each)
    cost = costs.expert_cost(device, model.expert_dtype)
    curve = costs.measured_experts(model, device, layout)
    there = costs.as_measured(device)
    if routing == "skewed" and curve and rows.max() <= curve.rows[-1] and device == there:
        return model.expert_layers * curve.at(rows)
    points = _points(rows)
    if curve:
        points = np.union1d(points, curve.rows)
    load = _load(model, layout, points, routing)
    inter = experts.intermediate // layout.expert_tp

    def formula(on: Device) -> Float64:
        return cost.seconds(on, model.hidden, inter, model.expert_dtype, *load, points)

    each = formula(device)
    if routing == "skewed" and curve:
        # Of the device as it is in the catalogue; of one that is thought faster, in the ratio of the formula.
        measured = formula(there)
        last = float(np.interp(curve.rows[-1], points, measured))
        each = curve.at(points, measured, last) * (each / measured)
    return model.expert_layers * np.interp(rows, points, each)


def _points(tokens: Float64) -> Float64:
    """Return the points of ROWS that cover these; loads are drawn there alone, as that takes a while."""
    points: Float64 = ROWS[: 1 + int(np.searchsorted(ROWS, float(tokens.max())))]
    return points


def _load(model: ModelShape, layout: Layout, tokens: Float64, routing: Routing) -> ExpertLoad:
    """Return the load of the busiest rank, or of all if they are equal."""
    experts = model.experts
    assert experts
    if isinstance(routing, RoutingCurve):
        return routing.load(experts.count, experts.top_k, layout.ep, tokens)
    if routing == "uniform":
        return uniform(experts.count, experts.top_k, layout.ep, tokens)
    skew = SKEW if experts.groups == 1 else SKEW_OF_GROUPS
    return skewed(experts.count, experts.top_k, layout.ep, tokens, skew)


def _load_by_token(model: ModelShape, layout: Layout, tokens: Float64, routing: Routing) -> ExpertLoad:
    """Return the load of kernels that were not measured with the loads of a power law themselves."""
    experts = model.experts
    assert experts
    if routing == "skewed" and experts.groups == 1:
        return sampled(experts.count, experts.top_k, layout.ep, tokens)
    return _load(model, layout, tokens, routing)


def collective_seconds(
    costs: CostSet,
    model: ModelShape,
    device: Device,
    layout: Layout,
    rows: Float64,
    routing: Routing = "skewed",
) -> Float64:
    """Return the seconds of all layers' exchanges, with so many rows per data-parallel group.

    Tensor parallelism sums up after attention and after the feed-forward part. Groups gather all tokens for
    experts and scatter the sums; across nodes tokens go to their experts' devices and back. A norm over all
    heads has one more, before attention.
    """
    size = ACTIVATION_BYTES * model.hidden * rows
    reduce = costs.allreduce_seconds(device, layout.tp, size)
    squares = model.layers * norm_seconds(costs, model, device, layout.tp, rows)
    if layout.dp == 1:
        return model.layers * (2 * reduce) + squares
    if not layout.dispatches:
        total = layout.dp * size
        exchange = costs.collective_cost(device, "all_gather", layout.dp).seconds(device, layout.dp, total)
        exchange = exchange + costs.collective_cost(device, "reduce_scatter", layout.dp).seconds(
            device, layout.dp, total
        )
    else:
        exchange = sum(
            (dispatch_seconds(costs, model, device, layout, rows, op, routing) for op in DISPATCH_BYTES),
            np.zeros_like(rows),
        )
    return (model.layers + model.dense_layers) * reduce + model.expert_layers * exchange + squares


def dispatch_seconds(
    costs: CostSet,
    model: ModelShape,
    device: Device,
    layout: Layout,
    rows: Float64,
    op: str,
    routing: Routing,
) -> Float64:
    """Return the seconds in which the busiest rank receives a layer's tokens, or sends their results back.

    Of measurements with fewer ranks the bytes are scaled: more of them leave the rank.
    """
    assert model.experts is not None
    cost = costs.dispatch_cost(device, op, layout.stage)
    size = np.ceil(rows / layout.tp) * model.experts.top_k * DISPATCH_BYTES[op](model.hidden)
    if cost.ranks:
        points = _points(rows * layout.dp)
        load = _load_by_token(model, layout, points, routing)
        busiest = load.pairs / (points * model.experts.top_k / layout.ep)
        size = size * np.interp(rows * layout.dp, points, busiest) * cost.share(layout.stage)
    return cost.seconds(size, model.experts.count)


def norm_seconds(costs: CostSet, model: ModelShape, device: Device, tp: int, rows: Float64) -> Float64:
    """Return the time to exchange norms between the workers of a layer's heads."""
    size = SQUARES_BYTES * model.qk_norm_over_heads * rows
    return costs.allreduce_seconds(device, tp if model.qk_norm_over_heads else 1, size)


class DecodeAttention(NamedTuple):
    """Attention of a layer on a worker, by requests: fixed + tokens x per token + in windows x windowed.

    Of layers that differ it is the mean.
    """

    fixed_s: Float64
    per_token_s: Float64
    windowed_per_token_s: Float64


def decode_attention(
    costs: CostSet, model: ModelShape, device: Device, workers: int, requests: ArrayLike
) -> DecodeAttention:
    """Return attention on one of `workers` sharing the heads or, by requests, on one with so many."""
    batch = np.asarray(requests, np.float64)
    fixed, unwindowed, windowed = (np.zeros_like(batch) for _ in range(3))
    for layers, window in model.layer_kinds():
        share = layers / model.layers
        terms = costs.layer_attention(model, device, workers, window)
        if lines := costs.attention_lines(model, device, workers, window):
            of_layer, each = lines.at(batch)
            there = costs.layer_attention(model, costs.as_measured(device), workers, window)
            each = each * (terms.per_kv_token_s / there.per_kv_token_s)
        else:
            of_layer = terms.fixed_s + terms.per_request_s * batch
            each = terms.per_kv_token_s + terms.per_mean_token_s / np.maximum(batch, 1)
        fixed, per_token = fixed + share * of_layer, share * each
        if window:
            windowed = windowed + per_token
        else:
            unwindowed = unwindowed + per_token
    return DecodeAttention(fixed, unwindowed, windowed)
