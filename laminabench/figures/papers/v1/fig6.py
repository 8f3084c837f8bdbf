"""v1 Figure 6: how much of a device's bandwidth attention uses, by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band
from laminabench.figures.papers.v1.model_part import MEASURED_CARD
from laminabench.figures.style import (
    CYCLE,
    PAGE,
    foot,
    no_legend,
    powers_of_two,
    published_line,
    sentence,
    sheet,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Bandwidth utilisation of LLaMA-13B's attention"
_CONTEXTS = (512, 1024, 2048, 4096)
_DEVICES = (MEASURED_CARD, "h100", "rtx-3090")
_BATCHES = np.array([1, 2, 4, 8, 16, 32, 64])


def make(ground: Ground) -> Made:
    """MBU and MFU of decode attention on three devices, one of them with borrowed efficiencies."""
    import pandas as pd

    shape = model("llama-13b")
    frames = []
    for costs in ground.costs():
        for name in _DEVICES:
            card = device(name)
            for context in _CONTEXTS:
                seconds = costs.attention_seconds(shape, card, _BATCHES * context, _BATCHES)
                read = _BATCHES * context * shape.kv_bytes_per_token
                # q times K and scores times V: two operations for each element of K and of V.
                operations = 2 * read / shape.dtype_bytes * shape.group
                columns = {"costs": costs.name, "device": name, "context": context, "batch": _BATCHES}
                shares = {
                    "mbu_percent": 100 * read / (seconds * card.bandwidth_bytes_per_s),
                    "mfu_percent": 100 * operations / (seconds * card.flops_for(shape.dtype)),
                }
                frames.append(pd.DataFrame({**columns, **shares}))
    frame = pd.concat(frames, ignore_index=True)
    best = {name: float(frame[frame["device"] == name]["mbu_percent"].max()) for name in _DEVICES}
    how = f"modelled: {ground.sets}, whose attention is vLLM 0.14's, measured with up to 8 KV heads"
    claims = (
        Claim(
            "best bandwidth utilisation of attention, A100",
            "section 3.1",
            80.0,
            best[MEASURED_CARD],
            how,
            "%",
            "at least",
            f"vLLM 0.14's kernel keeps at most {best[MEASURED_CARD]:.0f} % of an A100's bandwidth busy "
            f"here; on an H100 the same kernel comes to {best['h100']:.0f} %.",
        ),
        Claim(
            "compute utilisation of attention, any batch and context",
            "section 3.1",
            5.0,
            float(frame[frame["device"] == MEASURED_CARD]["mfu_percent"].max()),
            how,
            "%",
            "at most",
        ),
    )
    return Made(frame, claims, f"{sentence(how)}; RTX 3090 borrows A100's efficiency.")


def draw(made: Made) -> Figure:
    """A panel for each device, a line for each context."""
    figure, axes = sheet(1, 3, width=PAGE, height=2.2, sharey=True)
    for place, (each, name) in enumerate(zip(axes, _DEVICES, strict=True)):
        _lines(each, made.frame[made.frame["device"] == name])
        published_line(each, 80, "published: over 80 %")
        each.set_title(name + (" (borrowed)" if name == "rtx-3090" else ""))
        each.set(xlabel="batch", ylabel="MBU, %" if place == 0 else "", ylim=(0, 100))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", title="context")
    foot(figure, made.how)
    return figure


def _lines(axes: Axes, frame: pd.DataFrame) -> None:
    band(
        axes,
        frame,
        "batch",
        "mbu_percent",
        hue="context",
        palette=list(CYCLE[: len(_CONTEXTS)]),
        marker="o",
    )
    no_legend(axes)
    powers_of_two(axes)
