"""v1's network: in a token's latency (figure 14), beside attention (15), and hidden behind it (16)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.catalog.network import load_networks
from laminabench.figures.claims import STEP, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.spans import band, ends, panels, stacked
from laminabench.figures.papers.v1 import tried
from laminabench.figures.papers.v1.testbed import (
    CARD,
    DERIVED_LABEL,
    DERIVED_MARK,
    DOPS,
    HOW,
    LAMINA,
    NOT_MEASURED,
    VLLM,
    as_derived,
    derived,
    measured,
    most_requests,
    point,
    points_frame,
    setup,
)
from laminabench.render.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PAGE,
    PAPER,
    SKY,
    VERMILION,
    published_line,
    sentence,
    sheet,
)
from laminabench.systems.modelled.lamina_v1 import STREAM_CHUNKS

_PARTS = {"model": BLUE, "attention": VERMILION, "network": GREEN, "host": ORANGE}
_PARTS_CONTEXTS = (512, 4096)
_WIDTH = 0.38


def fig14(ground: Ground) -> Made:
    """What a token's latency is made of, without rotational pipelining, with every batch that fits."""
    frame = points_frame(ground, (VLLM, LAMINA), _PARTS_CONTEXTS, (1, 4, 16, 64))
    how = HOW.format(sets=ground.sets)
    says = Section("section 6.2", f"{how}, batch 1", "performance", STEP)
    claim = says("Lamina's latency over vLLM's, small batch", "slightly higher", _slower(measured(frame)))
    return Made(
        frame,
        [claim, as_derived(claim, _slower(derived(frame)))],
        f"{sentence(how)}. Bars are the sets' mean, lines span their totals; network is what overlap "
        f"leaves. The last batch of each system is the largest that fits. {NOT_MEASURED}",
        _draw_fig14,
    )


def _slower(frame: pd.DataFrame) -> str:
    """Lamina's latency over vLLM's, batch 1."""
    alone = frame[frame["batch"] == 1].set_index(["costs", "model", "context", "system"])["tbt_ms"].unstack()
    low, high = ends(100 * (alone[LAMINA] / alone[VLLM] - 1))
    return f"{low:.0f} to {high:.0f} % higher"


def _draw_fig14(frame: pd.DataFrame) -> Figure:
    """Stacked bars, vLLM beside Lamina."""
    figure, axes = sheet(1, 4, width=PAGE, height=2.7)
    for each, (name, context), mine in panels(axes, frame, model=DOPS, context=_PARTS_CONTEXTS):
        _parts(each, mine)
        each.set_title(f"{name}, {context} tokens")
    axes[0].set_ylabel("ms per token")
    handles: list[Artist] = [Patch(color=colour, label=part) for part, colour in _PARTS.items()]
    handles.append(Patch(facecolor="none", edgecolor=INK, hatch="////", label="hatched: vLLM"))
    handles.append(Line2D([], [], **DERIVED_MARK, label=f"total, {DERIVED_LABEL}"))
    figure.legend(handles=handles, loc="outside upper left", ncols=6)
    return figure


def _parts(axes: Axes, frame: pd.DataFrame) -> None:
    batches = sorted(frame["batch"].unique())
    grouped = measured(frame).groupby(["system", "batch"])
    totals = derived(frame).set_index(["system", "batch"])["tbt_ms"]
    for (system, batch), mean in grouped.mean(numeric_only=True).iterrows():
        shift, hatch = (-_WIDTH / 2, "////") if system == VLLM else (_WIDTH / 2, None)
        place, bottom = batches.index(batch) + shift, 0.0
        for part, colour in _PARTS.items():
            height = float(mean[f"{part}_ms"])
            axes.bar(place, height, _WIDTH, bottom, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0)
            bottom += height
        axes.vlines(place, *ends(grouped.get_group((system, batch))["tbt_ms"]), color=INK, lw=1)
        axes.plot(place, totals[system, batch], **DERIVED_MARK)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("batch")


_CONTEXT = 512  # not in the paper's text
_TRANSFERS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
_COLOURS = {"vanilla RDMA": VERMILION, "device-side polling": SKY, "polling and GPUDirect": BLUE}
_ATTENTION = "attention"


def fig15(ground: Ground) -> Made:
    """A layer's transfers on the networks that the paper measured, beside a layer's attention."""
    shape, card = model("llama-13b"), device(CARD)
    vanilla, best = load_networks()["v1-vanilla"], load_networks()["v1-gdr"]
    sent = 4 * ACTIVATION_BYTES * shape.hidden * _TRANSFERS
    steps = {
        "vanilla RDMA": vanilla.rtt_s + sent / vanilla.bandwidth_bytes_per_s,
        "device-side polling": best.rtt_s + sent / vanilla.bandwidth_bytes_per_s,
        "polling and GPUDirect": best.rtt_s + sent / best.bandwidth_bytes_per_s,
    }
    parts = [(what, "", seconds) for what, seconds in steps.items()]
    for costs in ground.costs():
        seconds = costs.attention_seconds(shape, card, _TRANSFERS * _CONTEXT, _TRANSFERS) / shape.layers
        parts.append((_ATTENTION, costs.name, seconds))
    frame = stacked(
        {"what": what, "costs": costs, "batch": _TRANSFERS, "us": 1e6 * seconds}
        for what, costs, seconds in parts
    )
    alone = [float(seconds[0]) for what, _, seconds in parts if what == _ATTENTION]
    entered = Section(
        "section 6.3",
        "the published value; nothing was measured here",
        "performance",
        ("paper's own numbers",),
    )
    no_nic = (
        "Measuring it needs GPUs on two nodes with InfiniBand, which were not at hand. Ours are computed "
        "from this value."
    )
    claims = (
        entered("round trip without device-side polling", 100.0, None, "us", remark=no_nic),
        entered("round trip with it", 33.0, None, "us", remark=no_nic),
        entered("bandwidth without GPUDirect", 17.2, None, "GB/s", remark=no_nic),
        entered("bandwidth with it", 24.2, None, "GB/s", remark=no_nic),
        entered(
            "that is of the link",
            96.8,
            100 * best.bandwidth_bytes_per_s / best.line_rate_bytes_per_s,
            "%",
            how=f"computed: {best.bandwidth_bytes_per_s / GB:g} GB/s over 200 Gbit/s",
            about="bookkeeping",
        ),
        entered(
            "share of 100 us in attention's execution time, small batch",
            70.0,
            [100 * vanilla.rtt_s / (vanilla.rtt_s + seconds) for seconds in alone],
            "%",
            "at least",
            how=f"modelled: attention of {ground.sets}, batch 1, context {_CONTEXT}",
            rests_on=STEP,
            remark="With longer contexts, which the paper may have had or not, attention takes longer and "
            "the share is less.",
        ),
    )
    return Made(
        frame,
        claims,
        "Computed: a layer's q, k, v and output over the published round trips and bandwidths, none "
        f"measured here; attention modelled with {ground.sets}, context {_CONTEXT}, on "
        "A100-40G. Every modelled result of v1's Lamina takes 33 us and 24.2 GB/s from here.",
        _draw_fig15,
    )


def _draw_fig15(frame: pd.DataFrame) -> Figure:
    """Microseconds a layer by batch; the published round trips dotted."""
    figure, axes = sheet(height=2.7)
    for what, colour in _COLOURS.items():
        mine = frame[frame["what"] == what]
        axes.plot(mine["batch"], mine["us"], color=colour, marker="o", markersize=3, label=what)
    attention = frame[frame["what"] == _ATTENTION].groupby("batch")["us"]
    axes.plot(attention.mean(), color=GREEN, ls="--", label=_ATTENTION)
    axes.fill_between(attention.min().index, attention.min(), attention.max(), color=GREEN, alpha=0.2, lw=0)
    published_line(axes, 100, "published: 100 and 33 us")
    published_line(axes, 33, "_")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="batch", ylabel="us per layer", yscale="log", yticks=(20, 50, 100, 200, 500, 1000, 2000))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure


_BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224)
_MASKED, _SAVED = 62.2, 16.2


def fig16(ground: Ground) -> Made:
    """A step with and without streaming attention in mini-batches, while they are sent, by batch."""
    rows = []
    for costs in ground.costs():
        whole = replace(setup(LAMINA, "llama-13b", costs), stream_chunks=1)
        streamed = replace(whole, stream_chunks=STREAM_CHUNKS)
        for batch in (*_BATCHES, most_requests(LAMINA, whole, _CONTEXT)):
            before, after = (point(LAMINA, each, _CONTEXT, batch) for each in (whole, streamed))
            saved = before.tbt_ms - after.tbt_ms
            masked = 100 * saved / before.network_ms
            times = (before.tbt_ms, after.tbt_ms, before.network_ms)
            rows.append((costs.name, batch, *times, masked, 100 * saved / before.tbt_ms))
    columns = ["costs", "batch", "tbt_ms", "streamed_tbt_ms", "network_ms", "masked_percent", "saved_percent"]
    frame = pd.DataFrame(rows, columns=columns)
    best = frame.groupby("costs")[["masked_percent", "saved_percent"]].max()
    how = (
        f"modelled: {ground.sets}; A100-40G in both roles, {STREAM_CHUNKS} mini-batches "
        f"and a context of {_CONTEXT} are assumed"
    )
    says = Section("section 6.3", how, "performance", STEP)
    remark = (
        "The transfers take less of a step here than behind the paper's percentages, which hold for a "
        "context and a number of mini-batches that it does not name; each mini-batch costs a launch "
        "besides."
    )
    on = "1 computation and 3 memory devices, best batch"
    experiment = tried.overlap(ground.costs(), (tried.SHORTEST, _CONTEXT), (STREAM_CHUNKS, 2 * STREAM_CHUNKS))
    claims = (
        says(
            f"networking time hidden behind attention, {on}",
            _MASKED,
            best["masked_percent"],
            "%",
            remark=remark,
            experiment=experiment,
        ),
        says(
            f"end-to-end latency saved, {on}",
            _SAVED,
            best["saved_percent"],
            "%",
            remark=remark,
            experiment=experiment,
        ),
    )
    words = "Bands span the sets. The network's 33 us and 24.2 GB/s are v1's own (figure 15)."
    return Made(frame, claims, f"{sentence(how)}. {words}", _draw_fig16)


def _draw_fig16(frame: pd.DataFrame) -> Figure:
    """Times on the left, what is saved on the right."""
    figure, axes = sheet(1, 3, width=PAGE, height=2.3)
    _line(axes[0], frame, "tbt_ms", VERMILION, "sent whole")
    _line(axes[0], frame, "streamed_tbt_ms", BLUE, f"{STREAM_CHUNKS} mini-batches")
    axes[0].set(ylabel="ms per token", ylim=(0, None))
    axes[0].legend()
    for each, column, words, published in (
        (axes[1], "masked_percent", "networking time hidden, %", _MASKED),
        (axes[2], "saved_percent", "latency saved, %", _SAVED),
    ):
        _line(each, frame, column, BLUE, "_ours")
        published_line(each, published, f"published: up to {published} %")
        each.set_ylabel(words)
        each.legend(loc="lower right")
    for each in axes:
        each.set_xlabel("batch")
    return figure


def _line(axes: Axes, frame: pd.DataFrame, column: str, colour: str, words: str) -> None:
    band(axes, frame, "batch", column, color=colour, label=words, marker="o")
