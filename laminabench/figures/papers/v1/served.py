"""v1's LLaMA-13B and LLaMA-33B served: throughput by batch (figure 12), and for the money (13), of real
conversations too (17).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.compare.spec import without_longer
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends, panels, set_bars
from laminabench.figures.papers.v1.testbed import (
    DOPS,
    HOW,
    LAMINA,
    ROTATIONAL,
    TESTBED,
    VLLM,
    WAYS,
    deployment,
    longest_request,
    most_requests,
    points_frame,
    setup,
    system_name,
    usd,
)
from laminabench.figures.style import CYCLE, INK, PAGE, SYSTEM_COLOURS, Looks, published_band, sentence, sheet
from laminabench.replay import Workload, replay
from laminabench.traces.table import Trace

CONTEXTS = (512, 1024, 2048, 4096)
_BATCHES = (1, 4, 16, 64, 129, 256)
# "When the batch size is large (exceeding 128)", section 6.1.
_LARGE = 128
# The smallest that two batches can share as one has it.
_SMALL = 4
_KEYS = ["costs", "model", "context"]
_COLOURS = {
    VLLM: SYSTEM_COLOURS["vllm"],
    LAMINA: SYSTEM_COLOURS["lamina-v1"],
    ROTATIONAL: SYSTEM_COLOURS["lamina"],
}
_PUBLISHED = {"batch": (10.7, 64.0), "throughput": (1.75, 20.5), "rotation": (1.13, 1.63)}
_WHATS = {
    "batch": "largest batch over vLLM's",
    "throughput": "throughput with the largest batch over vLLM's, no rotation",
    "rotation": f"what rotational pipelining adds, batch above {_LARGE}",
}
_RATIOS = {
    "batch": "largest batch\nover vLLM's",
    "throughput": "throughput there\nover vLLM's",
    "rotation": "what rotation adds,\nbatch above 128",
}


def fig12(ground: Ground) -> Made:
    """Every way on every context, both cost sets, batches until memory is full."""
    frame = points_frame(ground, WAYS, CONTEXTS, _BATCHES)
    how = HOW.format(sets=ground.sets)
    words = f"{sentence(how)}. Bands span the sets; grey is published."
    return Made(frame, _claims(frame, how), words, _draw_fig12)


def _claims(frame: pd.DataFrame, how: str) -> list[Claim]:
    """Section 6.1's ratios, lowest and highest of models and contexts."""
    says = Section("section 6.1", how)
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
    ranges = [
        says(
            f"{what}, lowest and highest",
            _PUBLISHED[kind],
            ratios(frame, kind),
            "times",
            how=f"computed: memory left for KV; {TESTBED}" if kind == "batch" else how,
            remark=remarks[kind],
        )
        for kind, what in _WHATS.items()
    ]
    # What is said of batches that vLLM can have too, and of small ones.
    rates = frame.set_index([*_KEYS, "batch", "system"])["tokens_per_s"].unstack()
    low, high = ends(rates[LAMINA] / rates[VLLM])
    small = frame[frame["batch"] == _SMALL].set_index([*_KEYS, "system"])["tbt_ms"].unstack()
    return [
        *ranges,
        says(
            "throughput over vLLM's with the same batch, no rotation",
            '"comparable"',
            f"{low:.2f} to {high:.2f} times",
        ),
        says(
            f"latency with rotation over that without, small batch; ours at {_SMALL}",
            2.0,
            (small[ROTATIONAL] / small[LAMINA]).dropna(),
            "times",
            remark='The paper says "nearly". The weights are read twice, but a step has attention, network '
            "and host besides, which are not doubled.",
        ),
    ]


def _with_twelve() -> float:
    """LLaMA-33B's highest ratio of batches with twelve memory devices; costs have no part in it."""
    costs = load_costs("roofline")
    ours, theirs = setup(LAMINA, "llama-33b", costs, 12), setup(VLLM, "llama-33b", costs)
    return max(
        most_requests(LAMINA, ours, context) / most_requests(VLLM, theirs, context) for context in CONTEXTS
    )


def ratios(frame: pd.DataFrame, kind: str) -> pd.Series[float]:
    """Of one kind, by costs, model and context."""
    over, under, value, keys = LAMINA, VLLM, "tokens_per_s", _KEYS
    if kind == "rotation":
        over, under, keys = ROTATIONAL, LAMINA, [*_KEYS, "batch"]
        frame = frame[frame["batch"] > _LARGE]
    else:
        value = "batch" if kind == "batch" else value
        frame = frame.loc[frame.groupby([*_KEYS, "system"])["batch"].idxmax()]
    table = frame.set_index([*keys, "system"])[value].unstack()
    found: pd.Series[float] = (table[over] / table[under]).dropna()
    return found


def _draw_fig12(frame: pd.DataFrame) -> Figure:
    """Throughput by models and contexts, and below what the paper says of it as ratios."""
    figure = Figure(figsize=(PAGE, 5.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(2, 1.15))
    above, below = halves
    grid = above.subplots(len(DOPS), len(CONTEXTS), sharex=True, sharey=True)
    for panel, (name, context), mine in panels(grid, frame, model=DOPS, context=CONTEXTS):
        _throughput(panel, mine)
        panel.set_title(f"{name}, {context} tokens")
    for row in grid:
        row[0].set_ylabel("tokens/s")
    for each in grid[-1]:
        each.set_xlabel("batch")
    above.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    compared = below.subplots(1, len(_RATIOS))
    for each, kind in zip(compared, _RATIOS, strict=True):
        _compared(each, frame, kind)
    below.legend(*compared[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def _throughput(axes: Axes, frame: pd.DataFrame) -> None:
    looks: Looks = {"palette": _COLOURS, "marker": "o", "markersize": 3}
    band(axes, frame, "batch", "tokens_per_s", hue="system", hue_order=WAYS, **looks)
    # It lies on Lamina's line, where there is one.
    axes.lines[WAYS.index(VLLM)].set(zorder=3, marker="D", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="", ylabel="", xticks=(1, 8, 64, 512), yticks=(20, 100, 500, 2500), ylim=(18, 6000))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()


def _compared(axes: Axes, frame: pd.DataFrame, kind: str) -> None:
    published_band(axes, *_PUBLISHED[kind], "published range")
    _by_context(axes, ratios(frame, kind), markersize=3.5)
    axes.set(ylabel=_RATIOS[kind], xlim=(-0.5, len(CONTEXTS) - 0.5))
    if kind == "rotation":
        axes.axhline(1, color=INK, lw=0.6)
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    marks = [mark for mark in (1, 2, 5, 10, 20, 50, 100) if low <= mark <= high]
    axes.set_yticks(marks, [str(mark) for mark in marks])
    axes.minorticks_off()


def _by_context(axes: Axes, found: pd.Series[float], **looks: Any) -> None:
    """Ratios as points, the models beside each other."""
    for place, name in enumerate(DOPS):
        mine = found[found.index.get_level_values("model") == name]
        contexts = [CONTEXTS.index(each) for each in mine.index.get_level_values("context")]
        places = [each + 0.2 * (place - 0.5) for each in contexts]
        axes.plot(places, mine, "os"[place], color=CYCLE[2 + place], label=name, **looks)
    axes.set_xticks(range(len(CONTEXTS)), [str(each) for each in CONTEXTS])
    axes.set_xlabel("context, tokens")


_SYSTEMS = {VLLM: SYSTEM_COLOURS["vllm"], "Lamina": SYSTEM_COLOURS["lamina-v1"]}
_PER_USD = "tokens_per_s_per_1000_usd"
_PUBLISHED_PER_USD = (1.48, 12.1)


def fig13(ground: Ground) -> Made:
    """The best of all ways that a system has, over the price of its devices."""
    frame = points_frame(ground, WAYS, CONTEXTS, ())
    served = zip(frame["system"], frame["model"], strict=True)
    frame["usd"] = [usd(deployment(way, name)) for way, name in served]
    frame[_PER_USD] = 1000 * frame["tokens_per_s"] / frame["usd"]
    frame["system"] = frame["system"].where(frame["system"] != ROTATIONAL, "Lamina")
    best = frame.groupby([*_KEYS, "system"])[_PER_USD].idxmax()
    columns = ["model", "system", "costs", "context", "batch", "tokens_per_s", "usd", _PER_USD]
    frame = frame.loc[best].reset_index(drop=True)[columns]
    how = (
        HOW.format(sets=ground.sets)
        + "; $17,500 a computation device, an RTX 3090's $/GB for the memory of others"
    )
    claim = Section("section 6.1", how)(
        "throughput per cost over vLLM's, lowest and highest of models and contexts",
        _PUBLISHED_PER_USD,
        _per_usd(frame),
        "times",
        remark="What the paper divides by is not in its text: neither how many devices serve "
        "LLaMA-33B, nor what it takes an A100 of 40 GB to cost. Ours would be lower with a cheaper "
        "one.",
    )
    return Made(frame, [claim], f"{sentence(how)}. Lines span the sets.", _draw_fig13)


def _per_usd(frame: pd.DataFrame) -> pd.Series[float]:
    table = frame.set_index([*_KEYS, "system"])[_PER_USD].unstack()
    found: pd.Series[float] = (table["Lamina"] / table[VLLM]).dropna()
    return found


def _draw_fig13(frame: pd.DataFrame) -> Figure:
    """Bars for both models, and their ratios in the paper's range."""
    figure, axes = sheet(1, 3, width=PAGE, height=2.5)
    for each, (name,), mine in panels(axes[:2], frame, model=DOPS):
        looks: Looks = {"hue_order": list(_SYSTEMS), "palette": _SYSTEMS}
        set_bars(each, mine, "context", _PER_USD, hue="system", **looks)
        each.set(xlabel="context, tokens", ylabel="tokens/s for $1,000")
        each.set_title(name)
    published_band(axes[2], *_PUBLISHED_PER_USD, "published range, 1.48 to 12.1")
    _by_context(axes[2], _per_usd(frame))
    axes[2].set(ylabel="Lamina over vLLM", yscale="log")
    axes[2].set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes[2].set_title("ratio")
    handles, labels = axes[0].get_legend_handles_labels()
    more = axes[2].get_legend_handles_labels()
    figure.legend(handles + more[0], labels + more[1], loc="outside upper left", ncols=5)
    return figure


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
_COLUMNS = ["costs", "system", "limit", "batch", "tokens_per_s", "tbt_ms", "usd", _PER_USD]


def fig17(ground: Ground) -> Made:
    """Latency, throughput and cost efficiency on real conversations, with ever larger limits on the batch."""
    trace, dropped = _fitting(ground)
    rows = [
        row
        for costs in ground.costs()
        for memory in (None, *_MEMORY_DEVICES)
        for row in _curve(trace, costs, memory)
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    best = frame[frame["system"] != VLLM].groupby(["costs", "system"], sort=False)[_PER_USD].max()
    spread = best.groupby("costs").max() / best.groupby("costs").min() - 1
    how = (
        f"modelled: {ground.sets}; {ground.source_of(_TRACE)}, its first "
        f"{len(trace) + dropped:,} requests without {dropped:,} that do not fit vLLM"
    )
    claim = Section("section 6.4", f"{how}; AP is read as the number of memory devices")(
        'cost efficiency of all "APs"',
        "similar",
        f"best {100 * spread.min():.0f} to {100 * spread.max():.0f} % above worst of "
        f"{_MEMORY_DEVICES[0]} to {_MEMORY_DEVICES[-1]} memory devices",
        remark="Not so here: the batches that few memory devices have room for are too small to pay for "
        "the computation devices. Which numbers the paper compares is not in its text.",
    )
    return Made(
        frame,
        [claim],
        f"{sentence(how)}; two A100-40G compute, as many more as said hold KV; limits on the batch of 2 to "
        "256; prices as in v1-fig13. Lines are the sets' mean, marks each of them.",
        _draw_fig17,
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


def _draw_fig17(frame: pd.DataFrame) -> Figure:
    """Latency against throughput, and the best for the money."""
    figure, axes = sheet(1, 2, width=PAGE, height=2.9, width_ratios=(1.4, 1))
    _curves(axes[0], frame)
    best = frame.groupby(["costs", "system"], sort=False)[_PER_USD].max().reset_index()
    set_bars(axes[1], best, "system", _PER_USD, hue="system", palette=_PALETTE)
    labels = [VLLM, *map(str, _MEMORY_DEVICES)]
    axes[1].set_xticks(range(len(labels)), labels)
    axes[1].set(xlabel="memory devices", ylabel="best tokens/s for $1,000")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=5, columnspacing=1.2)
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
