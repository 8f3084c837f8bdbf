"""Figure 14: TBT with resource utilization overlapping (Q sent early) and without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends
from laminabench.figures.papers.v2.steps import most_requests, serial, sizes, step
from laminabench.figures.style import BLUE, PAGE, VERMILION, foot, no_legend, published_line, sentence, sheet

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "TBT with and without resource utilization overlapping"
CONTEXT = 4096
# Per cent; the first is called a speed-up, the second a reduction of latency.
PUBLISHED = {"llama-65b": 13.2, "llama3-70b": 3.5}
_COLUMNS = {"llama-65b": "speed_up_percent", "llama3-70b": "reduction_percent"}
_WORDS = {"speed_up_percent": "speed-up, %", "reduction_percent": "latency reduction, %"}


def make(ground: Ground) -> Made:
    """Every batch twice, with both cost sets."""
    import pandas as pd

    rows = []
    for costs in ground.costs():
        for name in PUBLISHED:
            setup = serial(name, costs)
            without = replace(setup, overlap=False)
            for batch in sizes(most_requests(setup, CONTEXT)):
                on, off = (step(each, CONTEXT, batch).tbt_ms for each in (setup, without))
                percents = 100 * (off / on - 1), 100 * (1 - on / off)
                rows.append((costs.name, name, str(setup.deployment), batch, on, off, *percents))
    columns = ["costs", "model", "deployment", "batch", "enabled_ms", "disabled_ms", *_WORDS]
    frame = pd.DataFrame(rows, columns=columns)
    how = (
        f"modelled: {ground.sets}, network fhbn; Table 5's devices are assumed, "
        "combining is free, the host takes 2 ms and 20 us a request"
    )
    of_gqa = (
        "With GQA, K and V are a fifth of the rows of the QKV projection: the time of those rows and of "
        "their bytes on the network is all that is hidden here."
    )
    claims = (
        _claim(frame, "llama-65b", how),
        _claim(frame, "llama3-70b", how, of_gqa),
        _trend(frame, how),
    )
    return Made(frame, claims, f"{sentence(how)}. Bands span the sets; lines end where memory is full.")


def _claim(frame: pd.DataFrame, name: str, how: str, remark: str = "") -> Claim:
    column = _COLUMNS[name]
    best = frame[frame["model"] == name].groupby("costs")[column].max()
    return Claim(
        f"{_WORDS[column].removesuffix(', %')} of {name}, best batch",
        "section 6.4",
        PUBLISHED[name],
        ends(best),
        how,
        "%",
        remark=remark,
    )


def _trend(frame: pd.DataFrame, how: str) -> Claim:
    mine = frame[frame["model"] == "llama-65b"]
    best = mine.loc[mine.groupby("costs")["speed_up_percent"].idxmax(), "batch"]
    last = mine.loc[mine.groupby("costs")["batch"].idxmax()]
    words = f"most at {best.min()} to {best.max()}" if best.min() < best.max() else f"most at {best.min()}"
    low, high = ends(last["speed_up_percent"])
    return Claim(
        "speed-up of llama-65b by batch",
        "section 6.4",
        '"particularly notable for larger batch sizes"',
        f"{words}, {low:.1f} to {high:.1f} % at {last['batch'].max()}",
        how,
        remark="The opposite here beyond small batches: what is hidden is mostly the projection of K and V, "
        "which takes as long for any of these batches, while the whole step grows with the batch.",
    )


def draw(made: Made) -> Figure:
    """TBT above, what overlapping saves of it below."""
    figure, axes = sheet(2, len(PUBLISHED), width=PAGE, height=3.8, sharex="col")
    for column, (name, published) in enumerate(PUBLISHED.items()):
        mine = made.frame[made.frame["model"] == name]
        above, below = axes[0][column], axes[1][column]
        _line(above, mine, "disabled_ms", VERMILION, "disabled")
        _line(above, mine, "enabled_ms", BLUE, "enabled")
        above.set(title=f"{name} on {mine['deployment'].iloc[0]}", ylabel="TBT, ms", ylim=(0, None))
        saved = _COLUMNS[name]
        _line(below, mine, saved, BLUE, "_saved")
        published_line(below, published, f"published: up to {published} %")
        below.legend()
        below.set(xlabel="batch", ylabel=_WORDS[saved], ylim=(0, 1.25 * max(published, mine[saved].max())))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    foot(figure, made.how)
    return figure


def _line(axes: Axes, frame: pd.DataFrame, column: str, colour: str, words: str) -> None:
    band(axes, frame, "batch", column, color=colour, label=words, marker="o", markersize=3)
    no_legend(axes)
    axes.set_xlim(0, None)
