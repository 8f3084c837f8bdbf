"""v1 Figure 3: how much of an A100 LLaMA-13B uses without attention, by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.v1.model_part import BATCHES, MEASURED_CARD, TABLE3, implied_mfu, mfu
from laminabench.figures.style import CYCLE, PUBLISHED, foot, powers_of_two, sentence, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Model FLOPS utilisation of an A100 serving LLaMA-13B, attention excluded"
_MODEL = "llama-13b"
_MOST = 2048  # as far as the cost sets were measured
_IMPLIED = "implied by v1 Table 3"


def make(ground: Ground) -> Made:
    """MFU by batch of every cost set and of the ideal, with what Table 3 implies."""
    import pandas as pd

    from laminabench.catalog.cost_file import load_costs

    shape, card = model(_MODEL), device(MEASURED_CARD)
    batches = np.unique(np.geomspace(1, _MOST, 45).round()).astype(np.int64)
    shares = {
        costs.name: mfu(costs, shape, card, 1, batches) for costs in (*ground.costs(), load_costs("roofline"))
    }
    frames = [
        pd.DataFrame({"source": name, "batch": batches, "mfu_percent": 100 * share})
        for name, share in shares.items()
    ]
    implied = [100 * implied_mfu(shape, card, 1, rate * GB) for rate in TABLE3[_MODEL, 1]]
    frames.append(pd.DataFrame({"source": _IMPLIED, "batch": BATCHES, "mfu_percent": implied}))
    how = f"modelled: {', '.join(ground.cost_sets)} on A100 (SXM, 80 GB)"
    rising = min(int(batches[np.argmax(shares[name])]) for name in ground.cost_sets)
    claims = (
        Claim(
            "batch up to which MFU rises",
            "section 3.1",
            _MOST,
            rising,
            f"{how}; measured up to {_MOST}",
            relation="at least",
        ),
    )
    return Made(pd.concat(frames, ignore_index=True), claims, f"{sentence(how)}.")


def draw(made: Made) -> Figure:
    """Lines for the cost sets, points for what Table 3 implies."""
    figure, axes = sheet(height=2.3)
    sources = [source for source in made.frame["source"].unique() if source != _IMPLIED]
    for colour, source in zip(CYCLE, sources, strict=False):
        mine = made.frame[made.frame["source"] == source]
        ideal = source == "roofline"
        axes.plot(
            mine["batch"],
            mine["mfu_percent"],
            color=colour,
            ls="--" if ideal else "-",
            label="roofline (ideal)" if ideal else source,
        )
    printed = made.frame[made.frame["source"] == _IMPLIED]
    axes.plot(printed["batch"], printed["mfu_percent"], "o:", color=PUBLISHED, lw=1, label=_IMPLIED)
    powers_of_two(axes)
    axes.set(xlabel="batch", ylabel="MFU, %", ylim=(0, 105))
    axes.legend(loc="upper left")
    foot(figure, made.how)
    return figure
