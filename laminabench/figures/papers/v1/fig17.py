"""v1 Figure 17: latency against throughput, and cost efficiency, on real conversations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from laminabench.catalog.costs import CostSet
from laminabench.compare.spec import without_longer
from laminabench.figures.claims import Claim
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import ends
from laminabench.figures.papers.v1.testbed import LAMINA, VLLM, longest_request, setup, system_name, usd
from laminabench.figures.style import CYCLE, INK, PAGE, SYSTEM_COLOURS, foot, sentence, sheet
from laminabench.replay import Workload, replay
from laminabench.traces.table import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Latency and throughput of LLaMA-33B on ShareGPT, by number of memory devices"
_MODEL, _TRACE = "llama-33b", "sharegpt"
# The paper's are not in its text.
_MEMORY_DEVICES = (2, 4, 8, 12)
_LIMITS = (2, 4, 8, 16, 32, 64, 128, 256)
# Enough for a steady state of the largest batch.
_REQUESTS = 1000
_PALETTE = {VLLM: SYSTEM_COLOURS["vllm"]} | {
    f"{count} memory devices": colour
    for count, colour in zip(_MEMORY_DEVICES, (CYCLE[0], *CYCLE[2:]), strict=False)
}
_COLUMNS = ["costs", "system", "limit", "batch", "tokens_per_s", "tbt_ms", "usd", "tokens_per_s_per_1000_usd"]


def make(ground: Ground) -> Made:
    """Each deployment with ever larger limits on its batch."""
    import pandas as pd

    trace, dropped = _fitting(ground)
    rows = [
        row
        for costs in ground.costs()
        for memory in (None, *_MEMORY_DEVICES)
        for row in _curve(trace, costs, memory)
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    best = frame[frame["system"] != VLLM].groupby(["costs", "system"], sort=False)[_COLUMNS[-1]].max()
    spread = best.groupby("costs").max() / best.groupby("costs").min() - 1
    how = (
        f"modelled: {ground.sets}; {ground.source_of(_TRACE)}, its first "
        f"{len(trace) + dropped:,} requests without {dropped:,} that do not fit vLLM"
    )
    claim = Claim(
        'cost efficiency of all "APs"',
        "section 6.4",
        "similar",
        f"best {100 * spread.min():.0f} to {100 * spread.max():.0f} % above worst of "
        f"{_MEMORY_DEVICES[0]} to {_MEMORY_DEVICES[-1]} memory devices",
        f"{how}; AP is read as the number of memory devices",
        remark="Not so here: the batches that few memory devices have room for are too small to pay for "
        "the computation devices. Which numbers the paper compares is not in its text.",
    )
    return Made(
        frame,
        (claim,),
        f"{sentence(how)}; two A100-40G compute, as many more as said hold KV; limits on the batch of 2 to "
        "256; prices as in v1-fig13. Lines are the sets' mean, marks each of them.",
    )


def _fitting(ground: Ground) -> tuple[Trace, int]:
    """The trace's first requests without those that vLLM could never hold, and how many those are."""
    whole = ground.trace(_TRACE)
    trace = whole.first(_REQUESTS)
    fitting = without_longer(trace, longest_request(VLLM, setup(VLLM, _MODEL, ground.costs()[0])))
    return fitting, len(trace) - len(fitting)


def _curve(trace: Trace, costs: CostSet, memory_devices: int | None) -> list[tuple[object, ...]]:
    """One deployment's points, up to the limit that its memory makes pointless."""
    way = VLLM if memory_devices is None else LAMINA
    chosen = setup(way, _MODEL, costs, memory_devices)
    price = usd(chosen.deployment)
    rows: list[tuple[object, ...]] = []
    for limit in _LIMITS:
        summary = replay(trace, system_name(way), replace(chosen, max_num_seqs=limit), Workload()).summary
        batch, rate = summary.mean_batch, summary.throughput_tokens_per_s
        assert rate is not None
        label = VLLM if memory_devices is None else f"{memory_devices} memory devices"
        rows.append((costs.name, label, limit, batch, rate, summary.tbt_ms.p50, price, 1000 * rate / price))
        if batch < 0.7 * limit:
            break
    return rows


def draw(made: Made) -> Figure:
    """Latency against throughput, and the best for the money."""
    figure, axes = sheet(1, 2, width=PAGE, height=2.9, width_ratios=(1.4, 1))
    _curves(axes[0], made.frame)
    _bars(axes[1], made.frame)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=5, columnspacing=1.2)
    foot(figure, made.how)
    return figure


def _curves(axes: Axes, frame: pd.DataFrame) -> None:
    """A line for the middle of the sets, a mark for each of them."""
    for label, colour in _PALETTE.items():
        mine = frame[frame["system"] == label]
        middle = mine.groupby("limit")[["tokens_per_s", "tbt_ms"]].mean()
        axes.plot(middle["tokens_per_s"], middle["tbt_ms"], color=colour, label=label)
        axes.plot(mine["tokens_per_s"], mine["tbt_ms"], "o", color=colour, markersize=2.5)
    axes.set(xlabel="tokens/s", ylabel="TBT p50, ms", xscale="log", ylim=(0, None))
    axes.set_xticks((20, 50, 100, 200, 500, 1000, 2000))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_formatter("")


def _bars(axes: Axes, frame: pd.DataFrame) -> None:
    import seaborn as sns

    best = frame.groupby(["costs", "system"], sort=False)[_COLUMNS[-1]].max().reset_index()
    sns.barplot(
        best,
        x="system",
        y=_COLUMNS[-1],
        hue="system",
        palette=_PALETTE,
        saturation=1,
        errorbar=ends,
        err_kws={"linewidth": 1, "color": INK},
        ax=axes,
    )
    labels = [VLLM, *(str(count) for count in _MEMORY_DEVICES)]
    axes.set_xticks(range(len(labels)), labels)
    axes.set(xlabel="memory devices", ylabel="best tokens/s for $1,000")
    axes.grid(visible=False, axis="x")
