"""The memory and time of attention and feed-forward workers, and the transfers between them."""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np

from laminabench.catalog.cost_terms import ACTIVATION_BYTES, Float64
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import Device
from laminabench.catalog.layout import Layout
from laminabench.catalog.models import DTYPE_BYTES, ModelShape
from laminabench.catalog.step import (
    Routing,
    experts_seconds,
    lm_head_seconds,
    norm_seconds,
    overlapped_seconds,
    priced,
    summed,
)


def attention_bytes(model: ModelShape, tp: int) -> float:
    """Return the weights on an attention worker. Norms and biases, which are few, are counted on both."""
    small = model.weights().biases_and_norms * DTYPE_BYTES[model.rest_dtype]
    return model.attention_weight_bytes(tp) + small


def feed_bytes(model: ModelShape, layout: Layout) -> float:
    """Return the weights on a feed-forward worker: all others."""
    return model.weight_bytes_per_worker(layout) - model.attention_weight_bytes(layout.tp)


def nodes_reached(model: ModelShape, device: Device, layout: Layout) -> tuple[float, float]:
    """Return the nodes of feed-forward workers that a token is sent to, by dense and expert layers.

    A node has the devices that fast links connect. In the latter, those that have one of its experts, each
    of which is as likely as any other; all nodes where experts are not distributed.
    """
    dense = device.link_domains(layout.tp)
    if model.experts is None:
        return dense, 0.0
    nodes = device.link_domains(layout.stage)
    count, parts = model.experts.count, min(layout.ep, nodes)
    others = count - -(-count // parts)
    missed = comb(others, model.experts.top_k) / comb(count, model.experts.top_k)
    return dense, nodes * (1 - missed)


def copies(model: ModelShape, device: Device, layout: Layout) -> float:
    """Return how often a hidden state is sent to the feed-forward workers, on average over layers."""
    dense, experts = nodes_reached(model, device, layout)
    return (model.dense_layers * dense + model.expert_layers * experts) / model.layers


@lru_cache(maxsize=128)
def attention_seconds(
    costs: CostSet, model: ModelShape, device: Device, tp: int, most: int, *, router: bool = False
) -> Float64:
    """Return one layer's seconds on `tp` attention workers, without attention itself, by rows up to `most`.

    The group gathers its tokens when they come and sums up what goes: the two halves of an all-reduce. Where
    the feed-forward side is a fused kernel of experts alone, router and small operators are here.
    """
    rows = np.arange(most + 1.0)
    padded = costs.measured.padded(np.maximum(rows, 1.0))
    products = model.products(tp) if router else model.attention_products(tp)
    work = summed(priced(costs, device, products, padded))
    work = work + costs.elementwise_seconds(model, device, tp, padded, None if router else "attention")
    exchange = costs.allreduce_seconds(device, tp, ACTIVATION_BYTES * model.hidden * padded)
    exchange = exchange + norm_seconds(costs, model, device, tp, padded)
    seconds = np.where(rows > 0, work / model.layers + exchange, 0.0)
    seconds.setflags(write=False)
    return seconds


def feed_seconds(
    costs: CostSet, model: ModelShape, device: Device, layout: Layout, rows: Float64, routing: Routing
) -> Float64:
    """Return one layer's seconds on the feed-forward workers: the mean of all."""
    own = costs.measured.padded(np.ceil(np.maximum(rows, 1.0) / layout.dp))
    feed = (each for each in model.products(layout) if each.place == "feed")
    products = priced(costs, device, feed, own)
    work = summed(products) + costs.elementwise_seconds(model, device, layout, own, "feed")
    experts = experts_seconds(costs, model, device, layout, own * layout.dp, routing)
    work = work + experts - overlapped_seconds(products, own, experts)
    work = work + _exchange_seconds(costs, model, device, layout, own)
    return np.where(rows > 0, work / model.layers, 0.0)


def fused_layout(layout: Layout) -> Layout:
    """Return the layout of workers that have nothing but their part of the experts."""
    return Layout(1, dp=layout.devices, ep=layout.devices, low_latency=True)


@lru_cache(maxsize=128)
def fused_seconds(
    costs: CostSet, model: ModelShape, device: Device, layout: Layout, most: int, routing: Routing
) -> Float64:
    """Return a layer's seconds of experts fused with their exchange, by rows: the busiest of all workers."""
    sent = fused_layout(layout)
    model.check_split(sent)
    rows = np.arange(most + 1.0)
    seconds = experts_seconds(costs, model, device, sent, np.maximum(rows, 1.0), routing) / model.layers
    return np.where(rows > 0, seconds, 0.0)


def exchange_degrees(model: ModelShape, device: Device, layout: Layout) -> tuple[int, int]:
    """Return how many workers of a node share a dense layer's tokens, and how many an expert layer's."""
    dense = -(-layout.tp // device.link_domains(layout.tp))
    return dense, -(-layout.stage // device.link_domains(layout.stage)) if model.experts else 1


def _exchange_seconds(
    costs: CostSet, model: ModelShape, device: Device, layout: Layout, own: Float64
) -> Float64:
    """Return all layers' exchanges: workers of a node gather arriving tokens, and sum up the results."""
    size = ACTIVATION_BYTES * model.hidden * own
    dense, experts = exchange_degrees(model, device, layout)
    share = nodes_reached(model, device, layout)[1] / device.link_domains(layout.stage)
    of_experts = costs.allreduce_seconds(device, experts, share * layout.dp * size)
    return model.dense_layers * costs.allreduce_seconds(device, dense, size) + (
        model.expert_layers * of_experts
    )


# A plan has thousands of candidates, of which many have the same feed-forward workers.
@lru_cache(maxsize=128)
def feed_slices(
    costs: CostSet,
    model: ModelShape,
    device: Device,
    layout: Layout,
    most: int,
    routing: Routing,
    *,
    head: bool,
) -> tuple[Float64, Float64]:
    """Return the seconds between two attentions, and after the last: by rows."""
    rows = np.arange(most + 1.0)
    mid = feed_seconds(costs, model, device, layout, rows, routing)
    last = mid + costs.host.gap_s * (rows > 0)
    if head:
        last = last + lm_head_seconds(costs, model, device, layout, rows)
    for table in (mid, last):
        table.setflags(write=False)
    return mid, last
