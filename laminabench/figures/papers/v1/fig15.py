"""v1 Figure 15: what the network costs beside attention, and what device-side polling and GPUDirect save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.catalog.network import load_networks
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.v1.testbed import CARD
from laminabench.figures.style import BLUE, GREEN, SKY, VERMILION, foot, published_line, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Networking overhead of LLaMA-13B, one computation and one memory device"
_CONTEXT = 512  # not in the paper's text
_BATCHES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
_COLOURS = {"vanilla RDMA": VERMILION, "device-side polling": SKY, "polling and GPUDirect": BLUE}
_ATTENTION = "attention"
_NO_NIC = (
    "Measuring it needs GPUs on two nodes with InfiniBand, which were not at hand. Ours are computed from "
    "this value."
)


def make(ground: Ground) -> Made:
    """A layer's transfers on the networks that the paper measured, beside a layer's attention."""
    import pandas as pd

    shape, card = model("llama-13b"), device(CARD)
    vanilla, best = load_networks()["v1-vanilla"], load_networks()["v1-gdr"]
    sent = 4 * ACTIVATION_BYTES * shape.hidden * _BATCHES
    steps = {
        "vanilla RDMA": vanilla.rtt_s + sent / vanilla.bandwidth_bytes_per_s,
        "device-side polling": best.rtt_s + sent / vanilla.bandwidth_bytes_per_s,
        "polling and GPUDirect": best.rtt_s + sent / best.bandwidth_bytes_per_s,
    }
    frames = [
        pd.DataFrame({"what": what, "costs": "", "batch": _BATCHES, "us": 1e6 * seconds})
        for what, seconds in steps.items()
    ]
    alone = []
    for costs in ground.costs():
        seconds = costs.attention_seconds(shape, card, _BATCHES * _CONTEXT, _BATCHES) / shape.layers
        columns = {"what": _ATTENTION, "costs": costs.name, "batch": _BATCHES, "us": 1e6 * seconds}
        frames.append(pd.DataFrame(columns))
        alone.append(100 * vanilla.rtt_s / float(vanilla.rtt_s + seconds[0]))
    published = "the published value; nothing was measured here"
    claims = (
        Claim(
            "round trip without device-side polling",
            "section 6.3",
            100.0,
            None,
            published,
            "us",
            remark=_NO_NIC,
        ),
        Claim("round trip with it", "section 6.3", 33.0, None, published, "us", remark=_NO_NIC),
        Claim("bandwidth without GPUDirect", "section 6.3", 17.2, None, published, "GB/s", remark=_NO_NIC),
        Claim("bandwidth with it", "section 6.3", 24.2, None, published, "GB/s", remark=_NO_NIC),
        Claim(
            "that is of the link",
            "section 6.3",
            96.8,
            100 * best.bandwidth_bytes_per_s / best.line_rate_bytes_per_s,
            f"computed: {best.bandwidth_bytes_per_s / GB:g} GB/s over 200 Gbit/s",
            "%",
        ),
        Claim(
            "share of 100 us in attention's execution time, small batch",
            "section 6.3",
            70.0,
            (min(alone), max(alone)),
            f"modelled: attention of {ground.sets}, batch 1, context {_CONTEXT}",
            "%",
            "at least",
            "With longer contexts, which the paper may have had or not, attention takes longer and the "
            "share is less.",
        ),
    )
    return Made(
        pd.concat(frames, ignore_index=True),
        claims,
        "Computed: a layer's q, k, v and output over the published round trips and bandwidths, none "
        f"measured here; attention modelled with {ground.sets}, context {_CONTEXT}, on "
        "A100-40G.",
    )


def draw(made: Made) -> Figure:
    """Microseconds a layer by batch; the published round trips dotted."""
    figure, axes = sheet(height=2.7)
    for what, colour in _COLOURS.items():
        mine = made.frame[made.frame["what"] == what]
        axes.plot(mine["batch"], mine["us"], color=colour, marker="o", markersize=3, label=what)
    attention = made.frame[made.frame["what"] == _ATTENTION].groupby("batch")["us"]
    axes.plot(attention.mean(), color=GREEN, ls="--", label=_ATTENTION)
    axes.fill_between(attention.min().index, attention.min(), attention.max(), color=GREEN, alpha=0.2, lw=0)
    published_line(axes, 100, "published: 100 and 33 us")
    published_line(axes, 33, "_")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="batch", ylabel="us per layer", yscale="log", yticks=(20, 50, 100, 200, 500, 1000, 2000))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    foot(figure, made.how)
    return figure
