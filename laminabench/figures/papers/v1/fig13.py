"""v1 Figure 13: the most throughput for the money, by context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import ends
from laminabench.figures.papers.v1.testbed import (
    DOPS,
    HOW,
    ROTATIONAL,
    VLLM,
    WAYS,
    deployment,
    points_frame,
    usd,
)
from laminabench.figures.style import (
    CYCLE,
    INK,
    PAGE,
    SYSTEM_COLOURS,
    foot,
    no_legend,
    published_band,
    sentence,
    sheet,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Throughput per hardware cost of LLaMA-13B and LLaMA-33B"
_CONTEXTS = (512, 1024, 2048, 4096)
_SYSTEMS = (VLLM, "Lamina")
_PALETTE = {VLLM: SYSTEM_COLOURS["vllm"], "Lamina": SYSTEM_COLOURS["lamina-v1"]}
_PUBLISHED = (1.48, 12.1)


def make(ground: Ground) -> Made:
    """The best of all ways that a system has, over the price of its devices."""
    frame = points_frame(ground, WAYS, _CONTEXTS, ())
    frame["usd"] = [
        usd(deployment(way, name)) for way, name in zip(frame["system"], frame["model"], strict=True)
    ]
    frame["tokens_per_s_per_1000_usd"] = 1000 * frame["tokens_per_s"] / frame["usd"]
    frame["system"] = frame["system"].where(frame["system"] != ROTATIONAL, "Lamina")
    best = frame.groupby(["costs", "model", "context", "system"])["tokens_per_s_per_1000_usd"].idxmax()
    frame = frame.loc[best].reset_index(drop=True)
    ratios = _ratios(frame)
    how = (
        HOW.format(sets=ground.sets)
        + "; $17,500 a computation device, an RTX 3090's $/GB for the memory of others"
    )
    claims = (
        Claim(
            "throughput per cost over vLLM's, lowest and highest of models and contexts",
            "section 6.1",
            _PUBLISHED,
            (float(ratios.min()), float(ratios.max())),
            how,
            "times",
            remark="What the paper divides by is not in its text: neither how many devices serve "
            "LLaMA-33B, nor what it takes an A100 of 40 GB to cost. Ours would be lower with a cheaper "
            "one.",
        ),
    )
    columns = [
        "model",
        "system",
        "costs",
        "context",
        "batch",
        "tokens_per_s",
        "usd",
        "tokens_per_s_per_1000_usd",
    ]
    return Made(frame[columns], claims, f"{sentence(how)}. Lines span the sets.")


def _ratios(frame: pd.DataFrame) -> pd.Series[float]:
    keys = ["costs", "model", "context", "system"]
    table = frame.set_index(keys)["tokens_per_s_per_1000_usd"].unstack()
    ratios: pd.Series[float] = (table["Lamina"] / table[VLLM]).dropna()
    return ratios


def draw(made: Made) -> Figure:
    """Bars for both models, and their ratios in the paper's range."""
    figure, axes = sheet(1, 3, width=PAGE, height=2.5)
    for each, name in zip(axes, DOPS, strict=False):
        _bars(each, made.frame[made.frame["model"] == name])
        each.set_title(name)
    _gains(axes[2], made.frame)
    handles, labels = axes[0].get_legend_handles_labels()
    more = axes[2].get_legend_handles_labels()
    figure.legend(handles + more[0], labels + more[1], loc="outside upper left", ncols=5)
    foot(figure, made.how)
    return figure


def _bars(axes: Axes, frame: pd.DataFrame) -> None:
    import seaborn as sns

    sns.barplot(
        frame,
        x="context",
        y="tokens_per_s_per_1000_usd",
        hue="system",
        hue_order=_SYSTEMS,
        palette=_PALETTE,
        saturation=1,
        errorbar=ends,
        err_kws={"linewidth": 1, "color": INK},
        ax=axes,
    )
    no_legend(axes)
    axes.set(xlabel="context, tokens", ylabel="tokens/s for $1,000")
    axes.grid(visible=False, axis="x")


def _gains(axes: Axes, frame: pd.DataFrame) -> None:
    published_band(axes, *_PUBLISHED, "published range, 1.48 to 12.1")
    ratios = _ratios(frame)
    for place, name in enumerate(DOPS):
        mine = ratios[ratios.index.get_level_values("model") == name]
        contexts = [_CONTEXTS.index(each) for each in mine.index.get_level_values("context")]
        places = [each + 0.2 * (place - 0.5) for each in contexts]
        axes.plot(places, mine, "os"[place], color=CYCLE[2 + place], label=name)
    axes.set_xticks(range(len(_CONTEXTS)), [str(each) for each in _CONTEXTS])
    axes.set(xlabel="context, tokens", ylabel="Lamina over vLLM", yscale="log")
    axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.set_title("ratio")
