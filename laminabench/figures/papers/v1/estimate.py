"""v1 Figure 1: estimated throughput per cost of attention offloading over that of A100 alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.layout import NODE_DEVICES
from laminabench.catalog.models import ModelShape
from laminabench.catalog.step import model_step_seconds
from laminabench.figures.claims import Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, panels, span
from laminabench.render.style import CYCLE, PAGE, PUBLISHED, powers_of_two, sheet

MODELS = ("llama-7b", "llama-13b", "llama-33b", "llama-65b")
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)
# "We conservatively take the minimum" (section 4.1): memory devices are A100 at a 3.27th of the price.
ALPHA = 3.27
_AT, _PUBLISHED = 512, (2.1, 2.8)
_MOST_ALPHA = 17.3
_IDEAL, _SHEET, _MEASURED = ESTIMATES = (
    *("roofline, alpha 3.27", "roofline, RTX 3090", "cost sets, RTX 3090"),
)


def fig1(ground: Ground) -> Made:
    """The paper's estimate, and the same with measured efficiencies and the RTX 3090's own data sheet."""
    card, consumer = device("a100-80g"), device("rtx-3090")
    # What is estimated, with which costs, memory device and price ratio.
    ideal, ratio = load_costs("roofline"), _price_ratio(card, consumer)
    better = ratio * consumer.bandwidth_bytes_per_s / card.bandwidth_bytes_per_s
    settings = [(_IDEAL, ideal, card, ALPHA), (_SHEET, ideal, consumer, ratio)]
    settings += [(_MEASURED, costs, consumer, ratio) for costs in ground.costs()]
    rows = []
    for estimate, costs, memory, price_ratio in settings:
        for shape in map(model, MODELS):
            for context in CONTEXTS:
                ours = offloaded(costs, shape, card, memory, price_ratio, context)
                relative = ours / homogeneous(costs, shape, card, context)
                rows.append((estimate, costs.name, shape.name, context, relative))
    frame = pd.DataFrame(rows, columns=["estimate", "costs", "model", "context", "relative"])
    relative = frame.set_index(["estimate", "context"])["relative"].sort_index()
    words = {estimate: span(relative[estimate, _AT]) for estimate in ESTIMATES}
    says = Section(
        "section 4.1",
        "computed: ideal roofline, memory devices with 3.27 times an A100's memory and bandwidth for "
        "its price",
        "performance",
        ("paper's own numbers", "data sheet", "shape"),
    )
    claims = (
        says(
            "throughput per cost over the homogeneous cluster's, 4 models, context 512",
            _PUBLISHED,
            relative[_IDEAL, _AT],
            "times",
            where="section 4.1, figure 1",
            remark="The paper does not say which models, batches or numbers of devices it went through, nor "
            "on which A100; none of what was tried comes to its upper end.",
            experiment=f"with the RTX 3090's own bandwidth, {better:.2f} times as much for the money, "
            f"{words[_SHEET]}; with the cost sets' efficiencies and that card {words[_MEASURED]}; "
            f"{_tried(ideal, card)}",
        ),
        says(
            "the margin at longer contexts",
            "wider",
            f"{words[_IDEAL]} at {_AT}, {span(relative[_IDEAL, CONTEXTS[-1]])} at {CONTEXTS[-1]}",
        ),
    )
    return Made(
        frame,
        claims,
        "Computed from data sheets: ideal rooflines; modelled with "
        f"{ground.sets} (right; bands span the sets). A100 of 80 GB, v1's prices.",
        _draw,
    )


def _tried(ideal: CostSet, card: Device) -> str:
    """The ideal with A100s of 40 GB, and the alpha that the published upper end needs."""
    shapes = [model(name) for name in MODELS]

    def relative(on: Device, alpha: float) -> list[float]:
        return [
            offloaded(ideal, shape, on, on, alpha, _AT) / homogeneous(ideal, shape, on, _AT)
            for shape in shapes
        ]

    enough = next(
        alpha for alpha in np.arange(ALPHA, _MOST_ALPHA, 0.5) if max(relative(card, alpha)) >= _PUBLISHED[1]
    )
    return (
        f"with A100 of 40 GB {span(relative(device('a100-40g'), ALPHA))}. The upper end takes an alpha of "
        f"{enough:.1f}."
    )


def _price_ratio(card: Device, memory: Device) -> float:
    assert card.purchase is not None
    assert memory.purchase is not None
    return card.purchase.usd / memory.purchase.usd


def _draw(frame: pd.DataFrame) -> Figure:
    """The paper's ideal, the card's data sheet, measured efficiencies; a line for each model."""
    figure, axes = sheet(1, 3, width=PAGE, height=2.4, sharey=True)
    marks = {"dashes": False, "markers": ["o", "s", "^", "D"], "palette": list(CYCLE[: len(MODELS)])}
    for each, (estimate,), mine in panels(axes, frame, estimate=ESTIMATES):
        band(each, mine, "context", "relative", hue="model", style="model", **marks)
        powers_of_two(each)
        each.vlines(_AT, *_PUBLISHED, color=PUBLISHED, lw=2, ls=":", label="published, 2.1 to 2.8")
        each.axhline(1, color=PUBLISHED, lw=0.6)
        each.set_title(estimate)
        each.set(xlabel="context, tokens", ylabel="throughput per cost, relative")
    axes[0].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


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
        seconds = model_step_seconds(costs, model, card, tp, batch)
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
        slices = model_step_seconds(costs, model, card, tp, half)
        cycle = np.maximum(2 * np.maximum(slices, attention), slices + attention)
        rates = np.where(batches >= 2, batches / np.maximum(cycle, 1e-12), 0.0)
        best = max(best, float(np.max(rates / (tp + counts / price_ratio))))
    return best
