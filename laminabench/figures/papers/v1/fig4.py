"""v1 Figure 4: the share of a decode step that attention takes, by context."""

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
from laminabench.figures.style import CYCLE, foot, no_legend, published_line, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TITLE = "Share of LLaMA-13B's time that attention takes on an A100"
_BATCHES = (128, 512)
_CONTEXT, _PERCENT = 1500, 80.0  # from where on, and how much, the paper says


def make(ground: Ground) -> Made:
    """Attention's time over that of a whole step, without host."""
    import pandas as pd

    shape, card = model("llama-13b"), device(MEASURED_CARD)
    contexts = np.arange(100, 4001, 100)
    frames = []
    for costs in ground.costs():
        for batch in _BATCHES:
            attention = costs.attention_seconds(shape, card, batch * contexts, batch)
            step = attention + costs.model_step_seconds(shape, card, 1, batch)
            columns = {"costs": costs.name, "batch": batch, "context": contexts}
            frames.append(pd.DataFrame({**columns, "attention_percent": 100 * attention / step}))
    frame = pd.concat(frames, ignore_index=True)
    there = frame[frame["context"] == _CONTEXT]["attention_percent"]
    how = f"modelled: {ground.sets} on A100 (SXM, 80 GB), as if its memory sufficed"
    claim = Claim(
        f"share of attention from a context of {_CONTEXT} on, batches 128 and 512",
        "section 3.1",
        _PERCENT,
        (float(there.min()), float(there.max())),
        how,
        "%",
        "at least",
        f"With batch {_BATCHES[0]} it is a little less there; all are above from a context of about "
        f"{_all_above(frame):,} on.",
    )
    return Made(frame, (claim,), f"{sentence(how)}; bands span the sets.")


def _all_above(frame: pd.DataFrame) -> int:
    """The shortest context with more than the paper's share for both batches and sets."""
    least = frame.groupby("context")["attention_percent"].min()
    return int(least.index[least > _PERCENT].min())


def draw(made: Made) -> Figure:
    """A band for each batch."""
    figure, axes = sheet(height=2.7)
    band(
        axes,
        made.frame,
        "context",
        "attention_percent",
        hue="batch",
        style="batch",
        palette=dict(zip(_BATCHES, CYCLE, strict=False)),
    )
    published_line(axes, _PERCENT, f"published: over {_PERCENT:.0f} % from {_CONTEXT} on")
    published_line(axes, _CONTEXT, "_", vertical=True)
    axes.set(xlabel="context, tokens", ylabel="attention's share of time, %", ylim=(0, 100))
    handles, labels = axes.get_legend_handles_labels()
    no_legend(axes)
    words = [f"batch {label}" if label.isdigit() else label for label in labels]
    figure.legend(handles, words, loc="outside upper left", ncols=2)
    foot(figure, made.how)
    return figure
