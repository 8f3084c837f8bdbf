"""Figure 4: the bandwidth that splitting attention off asks of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.catalog.models import ModelShape
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends
from laminabench.figures.style import CYCLE, PAGE, foot, no_legend, published_line, sentence, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Network bandwidth for LLaMA3-70B with at most 20 % of latency added"
ALPHA = 0.2
DOPS = ((2, 2), (4, 4))
# Not in the paper's text.
CONTEXTS = (4096, 8192, 16384)
BATCHES = (1, *range(5, 301, 5))
_LIMIT = 30.0
_COLOURS = dict(zip(CONTEXTS, CYCLE, strict=False))
_KINDS = {"aggregate_gb_per_s": "all NICs together", "nic_gb_per_s": "each NIC"}


def make(ground: Ground) -> Made:
    """Section 3.1's formula with the times of both cost sets."""
    import pandas as pd

    shape, batches = model("llama3-70b"), np.array(BATCHES)
    frames = []
    for costs in ground.costs():
        for dop in DOPS:
            for context in CONTEXTS:
                needed = least_bandwidth(costs, shape, dop, context, batches) / GB
                columns = {"costs": costs.name, "dop": str(dop), "context": context, "batch": batches}
                rates = dict(zip(_KINDS, (needed, needed / min(dop)), strict=True))
                frames.append(pd.DataFrame({**columns, **rates}))
    frame = pd.concat(frames, ignore_index=True)
    how = f"modelled: {ground.sets} in the formula of section 3.1, alpha {ALPHA}"
    at_most = frame.groupby(["dop", "costs"], sort=False)[list(_KINDS)].max()
    remark = (
        "Of all links together, with the faster sets and the shortest context, more is needed; each worker "
        "has a NIC of its own, and for each the claim holds. The paper does not say which it means."
    )
    claims = [
        Claim(
            f"bandwidth for batches up to {BATCHES[-1]}, DOP {dop}, {words}",
            "section 3.1",
            _LIMIT,
            ends(at_most.loc[str(dop)][column]),
            how,
            "GB/s",
            "at most",
            remark if column == "aggregate_gb_per_s" else "",
        )
        for dop in DOPS
        for column, words in _KINDS.items()
    ]
    nic = device("h100").nic_bytes_per_s / GB
    claims.append(
        Claim(
            "what one 400 Gbit/s NIC has to carry",
            "section 3.1",
            nic,
            ends(at_most["nic_gb_per_s"]),
            how,
            "GB/s",
            "at most",
        )
    )
    return Made(
        frame,
        tuple(claims),
        f"{sentence(how)}; DOPs of (2, 2) and (4, 4) and the contexts are assumed. Bands span the sets.",
    )


def least_bandwidth(
    costs: CostSet, shape: ModelShape, dop: tuple[int, int], context: int, batches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(2 + 2/G) e d B L bytes in alpha times the time of model and attention, all links together."""
    h100, h20 = device("h100"), device("h20")
    sent = (2 + 2 / shape.group) * ACTIVATION_BYTES * shape.hidden * batches * shape.layers
    model_s = costs.model_step_seconds(shape, h100, dop[0], batches)
    attention_s = costs.attention_seconds(shape, h20, batches * context, batches, dop[1])
    needed: NDArray[np.float64] = sent / (ALPHA * (model_s + attention_s))
    return needed


def draw(made: Made) -> Figure:
    """DOPs beside each other, all NICs above and each NIC below."""
    figure, axes = sheet(2, 2, width=PAGE, height=3.8, sharex=True, sharey="row")
    for column, dop in enumerate(DOPS):
        mine = made.frame[made.frame["dop"] == str(dop)]
        for row, (kind, words) in enumerate(_KINDS.items()):
            panel = axes[row][column]
            band(panel, mine, "batch", kind, hue="context", palette=_COLOURS)
            no_legend(panel)
            published_line(panel, _LIMIT, f"published: at most {_LIMIT:.0f} GB/s")
            panel.set(xlabel="batch", ylabel=f"{words},\nGB/s", xlim=(0, BATCHES[-1]))
        axes[0][column].set_title(f"DOP {dop}")
    for row in axes:
        row[0].set_ylim(0, None)
    handles, labels = axes[0][0].get_legend_handles_labels()
    named = [f"{label} tokens" if label.isdigit() else label for label in labels]
    figure.legend(handles, named, loc="outside upper left", ncols=4)
    foot(figure, made.how)
    return figure
