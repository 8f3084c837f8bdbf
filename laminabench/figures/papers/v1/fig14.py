"""v1 Figure 14: what a token's latency is made of, without rotational pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.v1.testbed import DOPS, HOW, LAMINA, VLLM, points_frame
from laminabench.figures.style import BLUE, GREEN, INK, ORANGE, PAGE, PAPER, VERMILION, foot, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Token latency of LLaMA-13B and LLaMA-33B by part"
_CONTEXTS = (512, 4096)
_BATCHES = (1, 4, 16, 64)
_PARTS = {"model": BLUE, "attention": VERMILION, "network": GREEN, "host": ORANGE}
_WIDTH = 0.38


def make(ground: Ground) -> Made:
    """Both systems on every batch that fits."""
    frame = points_frame(ground, (VLLM, LAMINA), _CONTEXTS, _BATCHES)
    alone = frame[frame["batch"] == 1].set_index(["costs", "model", "context", "system"])["tbt_ms"].unstack()
    more = 100 * (alone[LAMINA] / alone[VLLM] - 1)
    how = HOW.format(sets=ground.sets)
    claim = Claim(
        "Lamina's latency over vLLM's, small batch",
        "section 6.2",
        "slightly higher",
        f"{more.min():.0f} to {more.max():.0f} % higher",
        f"{how}, batch 1",
    )
    return Made(
        frame,
        (claim,),
        f"{sentence(how)}. Bars are the sets' mean, lines span their totals; network is what overlap "
        "leaves. The last batch of each system is the largest that fits.",
    )


def draw(made: Made) -> Figure:
    """Stacked bars, vLLM beside Lamina."""
    from matplotlib.patches import Patch

    figure, axes = sheet(1, 4, width=PAGE, height=2.7)
    places = [(name, context) for name in DOPS for context in _CONTEXTS]
    for each, (name, context) in zip(axes, places, strict=True):
        _bars(each, made.frame[(made.frame["model"] == name) & (made.frame["context"] == context)])
        each.set_title(f"{name}, {context} tokens")
    axes[0].set_ylabel("ms per token")
    handles = [Patch(color=colour, label=part) for part, colour in _PARTS.items()]
    handles.append(Patch(facecolor="none", edgecolor=INK, hatch="////", label="hatched: vLLM"))
    figure.legend(handles=handles, loc="outside upper left", ncols=5)
    foot(figure, made.how)
    return figure


def _bars(axes: Axes, frame: pd.DataFrame) -> None:
    batches = sorted(frame["batch"].unique())
    grouped = frame.groupby(["system", "batch"])
    for (system, batch), mean in grouped.mean(numeric_only=True).iterrows():
        place = batches.index(batch) + (-_WIDTH / 2 if system == VLLM else _WIDTH / 2)
        bottom = 0.0
        for part, colour in _PARTS.items():
            height = float(mean[f"{part}_ms"])
            axes.bar(
                place,
                height,
                _WIDTH,
                bottom,
                color=colour,
                hatch="////" if system == VLLM else None,
                edgecolor=PAPER,
                linewidth=0,
            )
            bottom += height
        totals = grouped.get_group((system, batch))["tbt_ms"]
        axes.vlines(place, totals.min(), totals.max(), color=INK, lw=1)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("batch")
