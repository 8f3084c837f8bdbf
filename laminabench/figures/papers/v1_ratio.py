"""v1's estimate of throughput per cost (section 4.1): best numbers of devices, with memory devices or not."""

from __future__ import annotations

import numpy as np

from laminabench.candidates import NODE_DEVICES
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape

# Memory devices for each configuration of model workers.
MOST_MEMORY_DEVICES = 64


def homogeneous(costs: CostSet, model: ModelShape, card: Device, context: int) -> float:
    """Tokens a second and device of the best degree of tensor parallelism, its memory full of KV."""
    best = 0.0
    for tp in model.tp_degrees(NODE_DEVICES):
        free = card.memory_bytes - model.weight_bytes_per_worker(tp)
        batch = int(free * tp // (context * model.kv_bytes_per_token))
        if batch < 1:
            continue
        seconds = costs.model_step_seconds(model, card, tp, batch)
        seconds = seconds + costs.attention_seconds(model, card, batch * context, batch, tp)
        best = max(best, batch / float(seconds) / tp)
    return best


def offloaded(
    costs: CostSet, model: ModelShape, card: Device, memory: Device, price_ratio: float, context: int
) -> float:
    """Tokens a second for the price of a `card`, of the best numbers of both kinds of devices.

    Two batches take turns, so that both kinds work all the time; a memory device costs 1 / `price_ratio` of a
    card. Transfers are hidden.
    """
    counts = np.arange(1, MOST_MEMORY_DEVICES + 1)
    batches = counts * memory.memory_bytes // (context * model.kv_bytes_per_token)
    half = batches / 2
    terms = costs.attention_terms(model, memory)
    attention = terms.seconds(half / counts * context, half / counts)
    best = 0.0
    for tp in model.tp_degrees(NODE_DEVICES):
        if model.weight_bytes_per_worker(tp) > card.memory_bytes:
            continue
        slices = costs.model_step_seconds(model, card, tp, half)
        cycle = np.maximum(2 * np.maximum(slices, attention), slices + attention)
        rates = np.where(batches >= 2, batches / np.maximum(cycle, 1e-12), 0.0)
        best = max(best, float(np.max(rates / (tp + counts / price_ratio))))
    return best
