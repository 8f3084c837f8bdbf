"""v1 Figure 5: how little several RTX 4080 speed up what is not attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import ends
from laminabench.figures.style import CYCLE, INK, foot, no_legend, published_line, sentence, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Speed-up of LLaMA-7B by tensor parallelism over RTX 4080, attention excluded"
_DEGREES = (1, 2, 4)
# The paper's batch is not in its text.
_BATCHES = (1, 16, 64, 128, 256, 512)
_PUBLISHED = 1.41


def make(ground: Ground) -> Made:
    """One device's time over that of several, by batch."""
    import pandas as pd

    shape, card = model("llama-7b"), device("rtx-4080")
    rows = []
    for costs in ground.costs():
        for batch in _BATCHES:
            alone = float(costs.model_step_seconds(shape, card, 1, batch))
            for degree in _DEGREES:
                seconds = float(costs.model_step_seconds(shape, card, degree, batch))
                rows.append((costs.name, batch, degree, 1000 * seconds, alone / seconds))
    frame = pd.DataFrame(rows, columns=["costs", "batch", "devices", "step_ms", "speed_up"])
    four = frame[frame["devices"] == 4]["speed_up"]
    how = (
        f"modelled: {ground.sets}, A100's efficiencies on the RTX 4080's data sheet "
        "(no measurement of it), all-reduce over PCIe 4.0"
    )
    claims = (
        Claim(
            "peak rate of an RTX 4080 over an A100's",
            "section 3.2",
            31.2,
            100 * card.flops_for("bf16") / device("a100-80g").flops_for("bf16"),
            "computed: data sheets",
            "%",
        ),
        Claim(
            f"speed-up by four devices, batches {_BATCHES[0]} to {_BATCHES[-1]}",
            "section 3.2",
            _PUBLISHED,
            (float(four.min()), float(four.max())),
            how,
            "times",
            remark="The paper does not say at which batch. Over our batches the speed-up falls from the "
            "upper to the lower end as all-reduce over PCIe, with an A100's share of the link, takes "
            "over; what that share is on these cards, which cannot reach each other's memory, is not "
            "known.",
        ),
    )
    return Made(frame, claims, f"{sentence(how)}.")


def draw(made: Made) -> Figure:
    """Groups of bars by batch; lines span the cost sets."""
    import seaborn as sns

    figure, axes = sheet(height=2.7)
    sns.barplot(
        made.frame,
        x="batch",
        y="speed_up",
        hue="devices",
        palette=list(CYCLE[: len(_DEGREES)]),
        saturation=1,
        errorbar=ends,
        err_kws={"linewidth": 1, "color": INK},
        ax=axes,
    )
    published_line(axes, _PUBLISHED, f"published, four devices: {_PUBLISHED}")
    axes.set(xlabel="batch", ylabel="speed-up")
    axes.grid(visible=False, axis="x")
    handles, labels = axes.get_legend_handles_labels()
    no_legend(axes)
    words = {"1": "1 device", "2": "2 devices", "4": "4 devices"}
    labels = [words.get(label, label) for label in labels]
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    foot(figure, made.how)
    return figure
