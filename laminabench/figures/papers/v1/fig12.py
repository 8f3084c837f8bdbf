"""v1 Figure 12: throughput by batch, of vLLM and of Lamina with and without rotational pipelining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laminabench.catalog.cost_file import load_costs
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band
from laminabench.figures.papers.v1.testbed import (
    DOPS,
    HOW,
    LAMINA,
    ROTATIONAL,
    TESTBED,
    VLLM,
    WAYS,
    most_requests,
    points_frame,
    setup,
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
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Token throughput of LLaMA-13B and LLaMA-33B by batch and context"
CONTEXTS = (512, 1024, 2048, 4096)
_BATCHES = (1, 4, 16, 64, 129, 256)
# "When the batch size is large (exceeding 128)", section 6.1.
_LARGE = 128
# The smallest that two batches can share as one has it.
_SMALL = 4
_KEYS = ["costs", "model", "context"]
COLOURS = {
    VLLM: SYSTEM_COLOURS["vllm"],
    LAMINA: SYSTEM_COLOURS["lamina-v1"],
    ROTATIONAL: SYSTEM_COLOURS["lamina"],
}
_PUBLISHED = {"batch": (10.7, 64.0), "throughput": (1.75, 20.5), "rotation": (1.13, 1.63)}
_RATIOS = {
    "batch": "largest batch\nover vLLM's",
    "throughput": "throughput there\nover vLLM's",
    "rotation": "what rotation adds,\nbatch above 128",
}


def make(ground: Ground) -> Made:
    """Every way on every context, both cost sets, batches until memory is full."""
    frame = points_frame(ground, WAYS, CONTEXTS, _BATCHES)
    how = HOW.format(sets=ground.sets)
    return Made(frame, _claims(frame, how), f"{sentence(how)}. Bands span the sets; grey is published.")


def _claims(frame: pd.DataFrame, how: str) -> tuple[Claim, ...]:
    """Section 6.1's ratios, lowest and highest of models and contexts."""
    remarks = {
        "batch": "The lower end is LLaMA-13B's, whose numbers of devices are known. The upper one is "
        "LLaMA-33B's with long contexts, of which vLLM has room for one or two beside the weights: it is "
        "proportional to the number of memory devices, which is assumed; twelve would come to "
        f"{_with_twelve():.0f}.",
        "throughput": "The upper end, LLaMA-33B's with 4096 tokens, grows with the number of memory devices, "
        "which is assumed. The lower one, LLaMA-13B's with 512, does not come down to the paper's: v1's "
        "slower GEMMs, as its Table 3 implies, would explain a part only.",
        "rotation": "Two batches in turn gain most where computation and attention take equally long, which "
        "depends on how many memory devices there are, and read the weights twice: just above 128 that costs "
        "LLaMA-33B more than it gains here.",
    }
    whats = {
        "batch": "largest batch over vLLM's",
        "throughput": "throughput with the largest batch over vLLM's, no rotation",
        "rotation": f"what rotational pipelining adds, batch above {_LARGE}",
    }
    ratios = {kind: _ratios(frame, kind) for kind in _RATIOS}
    ranges = (
        Claim(
            f"{whats[kind]}, lowest and highest",
            "section 6.1",
            _PUBLISHED[kind],
            (float(found.min()), float(found.max())),
            f"computed: memory left for KV; {TESTBED}" if kind == "batch" else how,
            "times",
            remark=remarks[kind],
        )
        for kind, found in ratios.items()
    )
    return (*ranges, *_at_equal_batches(frame, how))


def _at_equal_batches(frame: pd.DataFrame, how: str) -> tuple[Claim, ...]:
    """What section 6.1 says of batches that vLLM can have too, and of small ones."""
    rates = frame.set_index([*_KEYS, "batch", "system"])["tokens_per_s"].unstack()
    over_vllm = (rates[LAMINA] / rates[VLLM]).dropna()
    small = frame[frame["batch"] == _SMALL].set_index([*_KEYS, "system"])["tbt_ms"].unstack()
    slower = (small[ROTATIONAL] / small[LAMINA]).dropna()
    return (
        Claim(
            "throughput over vLLM's with the same batch, no rotation",
            "section 6.1",
            '"comparable"',
            f"{over_vllm.min():.2f} to {over_vllm.max():.2f} times",
            how,
        ),
        Claim(
            f"latency with rotation over that without, small batch; ours at {_SMALL}",
            "section 6.1",
            2.0,
            (float(slower.min()), float(slower.max())),
            how,
            "times",
            remark='The paper says "nearly". The weights are read twice, but a step has attention, network '
            "and host besides, which are not doubled.",
        ),
    )


def _with_twelve() -> float:
    """LLaMA-33B's highest ratio of batches with twelve memory devices; costs have no part in it."""
    costs = load_costs("roofline")
    ours, theirs = setup(LAMINA, "llama-33b", costs, 12), setup(VLLM, "llama-33b", costs)
    return max(
        most_requests(LAMINA, ours, context) / most_requests(VLLM, theirs, context) for context in CONTEXTS
    )


def _ratios(frame: pd.DataFrame, kind: str) -> pd.Series[float]:
    """Of one kind, by costs, model and context."""
    if kind == "rotation":
        large = (
            frame[frame["batch"] > _LARGE].set_index([*_KEYS, "batch", "system"])["tokens_per_s"].unstack()
        )
        over_serial: pd.Series[float] = (large[ROTATIONAL] / large[LAMINA]).dropna()
        return over_serial
    largest = frame.loc[frame.groupby([*_KEYS, "system"])["batch"].idxmax()]
    value = "batch" if kind == "batch" else "tokens_per_s"
    table = largest.set_index([*_KEYS, "system"])[value].unstack()
    over_vllm: pd.Series[float] = (table[LAMINA] / table[VLLM]).dropna()
    return over_vllm


def draw(made: Made) -> Figure:
    """Throughput by models and contexts, and below what the paper says of it as ratios."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE, 5.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(2, 1.15))
    above, below = halves
    panels = above.subplots(len(DOPS), len(CONTEXTS), sharex=True, sharey=True)
    for row, name in enumerate(DOPS):
        for column, context in enumerate(CONTEXTS):
            mine = made.frame[(made.frame["model"] == name) & (made.frame["context"] == context)]
            _throughput(panels[row][column], mine)
            panels[row][column].set_title(f"{name}, {context} tokens")
        panels[row][0].set_ylabel("tokens/s")
    for each in panels[-1]:
        each.set_xlabel("batch")
    above.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    ratios = below.subplots(1, len(_RATIOS))
    for each, kind in zip(ratios, _RATIOS, strict=True):
        _compared(each, made.frame, kind)
    below.legend(*ratios[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    foot(figure, made.how)
    return figure


def _throughput(axes: Axes, frame: pd.DataFrame) -> None:
    band(
        axes,
        frame,
        "batch",
        "tokens_per_s",
        hue="system",
        hue_order=WAYS,
        palette=COLOURS,
        marker="o",
        markersize=3,
    )
    no_legend(axes)
    # It lies on Lamina's line, where there is one.
    axes.lines[WAYS.index(VLLM)].set(zorder=3, marker="D", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="", ylabel="", xticks=(1, 8, 64, 512), yticks=(20, 100, 500, 2500), ylim=(18, 6000))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()


def _compared(axes: Axes, frame: pd.DataFrame, kind: str) -> None:
    """Ours as points by context, the paper's range as a band."""
    published_band(axes, *_PUBLISHED[kind], "published range")
    ratios = _ratios(frame, kind)
    for place, name in enumerate(DOPS):
        mine = ratios[ratios.index.get_level_values("model") == name]
        contexts = [CONTEXTS.index(each) for each in mine.index.get_level_values("context")]
        places = [each + 0.2 * (place - 0.5) for each in contexts]
        axes.plot(places, mine, "os"[place], color=CYCLE[2 + place], markersize=3.5, label=name)
    axes.set_xticks(range(len(CONTEXTS)), [str(each) for each in CONTEXTS])
    axes.set(xlabel="context, tokens", ylabel=_RATIOS[kind], xlim=(-0.5, len(CONTEXTS) - 0.5))
    if kind == "rotation":
        axes.axhline(1, color=INK, lw=0.6)
        return
    axes.set_yscale("log")
    marks = [mark for mark in (1, 2, 5, 10, 20, 50, 100) if _inside(axes, mark)]
    axes.set_yticks(marks, [str(mark) for mark in marks])
    axes.minorticks_off()


def _inside(axes: Axes, mark: float) -> bool:
    low, high = axes.get_ylim()
    return low <= mark <= high
