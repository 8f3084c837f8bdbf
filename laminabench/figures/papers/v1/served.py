"""v1's LLaMA-13B and LLaMA-33B served: throughput by batch (figure 12), and for the money (13), of real
conversations too (17).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from laminabench.catalog.costs import CostSet
from laminabench.figures.claims import SERVED, STEP, Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends, panels, set_bars
from laminabench.figures.papers.v1 import tried
from laminabench.figures.papers.v1.testbed import (
    DERIVED_LABEL,
    DERIVED_MARK,
    DOPS,
    HOW,
    LAMINA,
    NOT_MEASURED,
    ROTATIONAL,
    TESTBED,
    VLLM,
    WAYS,
    as_derived,
    deployment,
    derived,
    longest_request,
    measured,
    points_frame,
    setup,
    system_name,
    usd,
)
from laminabench.render.style import (
    CYCLE,
    INK,
    PAGE,
    PURPLE,
    SYSTEM_COLOURS,
    Looks,
    published_band,
    sentence,
    sheet,
)
from laminabench.traces.table import Trace
from laminabench.workflows.compare.spec import without_longer
from laminabench.workflows.replay import Workload, replay

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
_DASHES = {VLLM: ":", LAMINA: "--", ROTATIONAL: "-."}
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
    """Every way on every context, both cost sets and the derived one, batches until memory is full."""
    frame = points_frame(ground, WAYS, CONTEXTS, _BATCHES)
    how = HOW.format(sets=ground.sets)
    words = f"{sentence(how)}. Bands span the sets; grey is published. {NOT_MEASURED}"
    return Made(frame, _claims(frame, how, ground.costs()), words, _draw_fig12)


def _claims(frame: pd.DataFrame, how: str, sets: list[CostSet]) -> list[Claim]:
    """Section 6.1's ratios, lowest and highest of models and contexts."""
    says = Section("section 6.1", how, "performance", STEP)
    slow, frame = derived(frame), measured(frame)
    remarks = {
        "batch": "The lower end is LLaMA-13B's, whose numbers of devices are known. The upper one is "
        "LLaMA-33B's with long contexts, of which vLLM has room for one or two beside the weights: it is "
        "proportional to the number of memory devices, which is assumed.",
        "throughput": "The upper end, LLaMA-33B's with 4096 tokens, grows with the number of memory devices, "
        "which is assumed; no one number gives both this and the largest batch. The lower one, LLaMA-13B's "
        "with 512 tokens, falls with the length of requests, which the paper's text does not say; v1's slow "
        "GEMMs do not explain it, as they slow small batches down more. The rest stays unexplained.",
        "rotation": "Two batches in turn gain most where computation and attention take equally long, which "
        "depends on how many memory devices there are, and read the weights twice: just above 128 that costs "
        "LLaMA-33B more than it gains here.",
    }
    experiments = {
        "batch": tried.memory_devices(CONTEXTS, _PUBLISHED["batch"][1]),
        "throughput": tried.largest_batches(sets, CONTEXTS[0], CONTEXTS[-1]),
        "rotation": tried.large_batches(sets, CONTEXTS, tuple(batch for batch in _BATCHES if batch > _LARGE)),
    }
    ranges = [
        says(
            f"{what}, lowest and highest",
            _PUBLISHED[kind],
            ratios(frame, kind),
            "times",
            how=f"computed: memory left for KV; {TESTBED}" if kind == "batch" else how,
            rests_on=("data sheet", "shape", "assumption") if kind == "batch" else STEP,
            remark=remarks[kind],
            experiment=experiments[kind],
        )
        for kind, what in _WHATS.items()
    ]
    slower = {
        "throughput": "vLLM's small batches are slowed down more than Lamina's large ones: ratios grow.",
        "rotation": "Half a batch takes almost as long as a whole one in Table 3, so that two halves in turn "
        "gain little: the table and this claim fit each other only if smaller batches were faster.",
    }
    implied = [
        as_derived(ranges[place], ends(ratios(slow, kind)), slower[kind])
        for place, kind in enumerate(_WHATS)
        if kind in slower  # memory is the same at any speed
    ]
    stays = says(
        "batches that take turns of which none migrates",
        2,
        2,
        where="section 5.1.1",
        how="the rule of that section: n batches on n - 1 replicas, of which there is one",
        about="bookkeeping",
        rests_on=("paper's own numbers",),
        entered=True,
    )
    # What is said of batches that vLLM can have too, and of small ones.
    rates = frame.set_index([*_KEYS, "batch", "system"])["tokens_per_s"].unstack()
    low, high = ends(rates[LAMINA] / rates[VLLM])
    small = frame[frame["batch"] == _SMALL].set_index([*_KEYS, "system"])["tbt_ms"].unstack()
    return [
        *ranges,
        *implied,
        stays,
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
            experiment=tried.small_batches(sets, CONTEXTS, _SMALL),
        ),
    ]


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
    below.legend(*compared[-1].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


def _throughput(axes: Axes, frame: pd.DataFrame) -> None:
    looks: Looks = {"palette": _COLOURS, "marker": "o", "markersize": 3}
    band(axes, measured(frame), "batch", "tokens_per_s", hue="system", hue_order=WAYS, **looks)
    # It lies on Lamina's line, where there is one.
    axes.lines[WAYS.index(VLLM)].set(zorder=3, marker="D", markersize=4)
    slow = derived(frame).set_index(["system", "batch"])["tokens_per_s"]
    for way, dashes in _DASHES.items():
        axes.plot(slow[way], color=PURPLE, ls=dashes, lw=1, label=f"{way}, {DERIVED_LABEL}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="", ylabel="", xticks=(1, 8, 64, 512), yticks=(20, 100, 500, 2500), ylim=(9, 6000))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()


def _compared(axes: Axes, frame: pd.DataFrame, kind: str) -> None:
    published_band(axes, *_PUBLISHED[kind], "published range")
    _by_context(axes, ratios(measured(frame), kind), markersize=3.5)
    if kind != "batch":  # speed has no part in it
        _by_context(axes, ratios(derived(frame), kind), DERIVED_LABEL, markersize=3.5)
    axes.set(ylabel=_RATIOS[kind], xlim=(-0.5, len(CONTEXTS) - 0.5))
    if kind == "rotation":
        axes.axhline(1, color=INK, lw=0.6)
        return
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    marks = [mark for mark in (1, 2, 5, 10, 20, 50, 100) if low <= mark <= high]
    axes.set_yticks(marks, [str(mark) for mark in marks])
    axes.minorticks_off()


def _by_context(axes: Axes, found: pd.Series[float], words: str = "", **looks: Any) -> None:
    """Ratios as points, the models beside each other; hollow and of one colour where `words` say what of."""
    for place, name in enumerate(DOPS):
        mine = found[found.index.get_level_values("model") == name]
        contexts = [CONTEXTS.index(each) for each in mine.index.get_level_values("context")]
        places = [each + 0.2 * (place - 0.5) for each in contexts]
        more: Looks = {"color": CYCLE[2 + place], "label": name}
        if words:
            more = {"color": PURPLE, "fillstyle": "none", "label": "_" if place else words}
        axes.plot(places, mine, "os"[place], **more, **looks)
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
    found = _per_usd(measured(frame))
    by_model = zip(found.index.get_level_values("model"), found, strict=True)
    claim = Section(
        "section 6.1, abstract, section 1, section 8", how, "performance", (*STEP, "paper's own numbers")
    )(
        "throughput per cost over vLLM's, lowest and highest of models and contexts",
        _PUBLISHED_PER_USD,
        found,
        "times",
        remark="What the paper divides by is not in its text: neither how many devices serve "
        "LLaMA-33B, nor what it takes an A100 of 40 GB to cost, nor how short its shortest requests are.",
        experiment=tried.prices(by_model, ground.costs()),
    )
    implied = as_derived(
        claim, ends(_per_usd(derived(frame))), "As in figure 12, vLLM's small batches are slowed down most."
    )
    return Made(frame, [claim, implied], f"{sentence(how)}. Lines span the sets. {NOT_MEASURED}", _draw_fig13)


def _per_usd(frame: pd.DataFrame) -> pd.Series[float]:
    table = frame.set_index([*_KEYS, "system"])[_PER_USD].unstack()
    found: pd.Series[float] = (table["Lamina"] / table[VLLM]).dropna()
    return found


def _draw_fig13(frame: pd.DataFrame) -> Figure:
    """Bars for both models, and their ratios in the paper's range."""
    figure, axes = sheet(1, 3, width=PAGE, height=2.5)
    for each, (name,), mine in panels(axes[:2], frame, model=DOPS):
        looks: Looks = {"hue_order": list(_SYSTEMS), "palette": _SYSTEMS}
        set_bars(each, measured(mine), "context", _PER_USD, hue="system", **looks)
        for place, system in zip((-0.2, 0.2), _SYSTEMS, strict=True):
            slow = derived(mine[mine["system"] == system]).sort_values("context")[_PER_USD]
            words = "_" if system == VLLM else DERIVED_LABEL
            each.plot([at + place for at in range(len(slow))], slow, **DERIVED_MARK, label=words)
        each.set(xlabel="context, tokens", ylabel="tokens/s for $1,000")
        each.set_title(name)
    published_band(axes[2], *_PUBLISHED_PER_USD, "published range, 1.48 to 12.1")
    _by_context(axes[2], _per_usd(measured(frame)))
    _by_context(axes[2], _per_usd(derived(frame)), "_")
    axes[2].set(ylabel="Lamina over vLLM", yscale="log")
    axes[2].set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes[2].set_title("ratio")
    handles, labels = axes[0].get_legend_handles_labels()
    more = axes[2].get_legend_handles_labels()
    figure.legend(handles + more[0], labels + more[1], loc="outside upper left", ncols=6)
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
    claim = Section(
        "section 6.4", f"{how}; AP is read as the number of memory devices", "performance", SERVED
    )(
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
        "256; prices as in v1-fig13. Lines are the sets' mean, marks each of them. The paper explains its "
        'label "AP" nowhere: that it is the number of memory devices is a guess. The network\'s 33 us and '
        "24.2 GB/s are v1's own (figure 15).",
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
