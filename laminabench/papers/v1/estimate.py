"""v1 Figure 1: estimated throughput per cost of attention offloading over that of A100 alone."""

from __future__ import annotations

import numpy as np
import pandas as pd

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.layout import NODE_DEVICES
from laminabench.catalog.models import ModelShape
from laminabench.catalog.step import model_step_seconds
from laminabench.papers.context import Context
from laminabench.papers.paper import Result

MODELS = ("llama-7b", "llama-13b", "llama-33b", "llama-65b")
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)
# "We conservatively take the minimum" (section 4.1): memory devices are A100 at a 3.27th of the price.
ALPHA = 3.27
_AT = 512
_MOST_ALPHA = 17.3


def fig1(context: Context) -> Result:
    """Compute the paper's estimate, and with measured efficiencies and the RTX 3090's own data sheet."""
    card, consumer = device("a100-80g"), device("rtx-3090")
    assert card.purchase is not None
    assert consumer.purchase is not None
    ideal, ratio = load_costs("roofline"), card.purchase.usd / consumer.purchase.usd
    # What is estimated, with which costs, memory device and price ratio.
    settings = [("roofline, alpha 3.27", ideal, card, ALPHA), ("roofline, RTX 3090", ideal, consumer, ratio)]
    settings += [("cost sets, RTX 3090", costs, consumer, ratio) for costs in context.costs()]
    rows = []
    for estimate, costs, memory, price_ratio in settings:
        for shape in map(model, MODELS):
            for length in CONTEXTS:
                ours = offloaded(costs, shape, card, memory, price_ratio, length)
                relative = ours / homogeneous(costs, shape, card, length)
                rows.append((estimate, costs.name, shape.name, length, relative))
    frame = pd.DataFrame(rows, columns=["estimate", "costs", "model", "context", "relative"])
    groups = frame.groupby(["estimate", "context"])["relative"]
    gains: dict[str, dict[int, pd.Series[float]]] = {}
    for (estimate, length), values in groups:
        gains.setdefault(str(estimate), {})[int(length)] = values
    small = device("a100-40g")
    published = context.published("v1-fig1")["gain"]
    return Result(
        frame,
        {
            "gains": gains,
            "better": ratio * consumer.bandwidth_bytes_per_s / card.bandwidth_bytes_per_s,
            "small_card": _ideal_gains(small, ALPHA),
            "enough": next(
                alpha
                for alpha in np.arange(ALPHA, _MOST_ALPHA, 0.5)
                if max(_ideal_gains(card, alpha)) >= published[1]
            ),
        },
    )


def _ideal_gains(card: Device, alpha: float) -> list[float]:
    """Return each model's gain by the ideal roofline, with memory devices that are such cards."""
    ideal = load_costs("roofline")
    return [
        offloaded(ideal, shape, card, card, alpha, _AT) / homogeneous(ideal, shape, card, _AT)
        for shape in map(model, MODELS)
    ]


# Memory devices for each configuration of model workers.
MOST_MEMORY_DEVICES = 64


def homogeneous(costs: CostSet, model: ModelShape, card: Device, context: int) -> float:
    """Return tokens a second and device of the best tensor parallelism, its memory full of KV."""
    best = 0.0
    for tp in model.tp_degrees(NODE_DEVICES):
        free = card.memory_bytes - model.weight_bytes_per_worker(tp)
        batch = int(free * tp // (context * model.kv_bytes_per_token))
        if batch < 1:
            continue
        seconds = model_step_seconds(costs, model, card, tp, batch)
        seconds = seconds + costs.attention_seconds(model, card, batch * context, batch, tp)
        best = max(best, batch / float(seconds) / tp)
    return best


def offloaded(
    costs: CostSet, model: ModelShape, card: Device, memory: Device, price_ratio: float, context: int
) -> float:
    """Return tokens a second for the price of a `card`, of the best numbers of both kinds of devices.

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
        slices = model_step_seconds(costs, model, card, tp, half)
        cycle = np.maximum(2 * np.maximum(slices, attention), slices + attention)
        rates = np.where(batches >= 2, batches / np.maximum(cycle, 1e-12), 0.0)
        best = max(best, float(np.max(rates / (tp + counts / price_ratio))))
    return best
